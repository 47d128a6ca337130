"""Finds Chromium, and its command line: network only through the proxy, no dialogs at start."""

from __future__ import annotations

import os
import shutil

from mmrl import UserError

NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
"""The headless shells come first: they need half the memory."""
CURE = "install Chromium (in mmrl's repository `make system` does), or set MMRL_BROWSER to its path"


def executable() -> str:
    """Chromium's path: MMRL_BROWSER, or the first of `NAMES` on the PATH. Raises UserError if there is none."""
    named = os.environ.get("MMRL_BROWSER")
    found = next((path for name in ([named] if named else NAMES) if (path := shutil.which(name))), None)
    if found is None:
        raise UserError(f"no browser found ({named or ', '.join(NAMES)}): {CURE}")
    return found


def arguments(proxy_port: int) -> list[str]:
    """Chromium's command line arguments. All requests go to the proxy, even those to loopback; names are never resolved."""
    return [
        *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
        "--disable-smooth-scrolling",  # it takes real time
        "--disable-partial-raster",  # with partial raster, earlier content shows at the edges of new content
        *("--disable-quic", "--disable-domain-reliability", "--disable-client-side-phishing-detection", "--no-pings"),
        "--disable-features=DnsOverHttps,Translate,OptimizationHints,MediaRouter,AutofillServerCommunication,HttpsUpgrades,"
        "HttpsFirstBalancedModeAutoEnable",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        # WebRTC bypasses the proxy; the shells know the first name, the full browser the second
        *(f"--{name}webrtc-ip-handling-policy=disable_non_proxied_udp" for name in ("", "force-")),
        *(f"--proxy-server=http://127.0.0.1:{proxy_port}", "--proxy-bypass-list=<-loopback>"),
        *("--font-render-hinting=none", "--force-device-scale-factor=1"),
    ]
