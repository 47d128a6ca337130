"""Which Chromium, and how it is started: no network but the proxy's, nothing asked at start."""

from __future__ import annotations

import os
import shutil

from mmrl import UserError

NAMES = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
"""The shells have no windows, and need half the memory."""
CURE = "install Chromium (in mmrl's repository `make system` does), or set MMRL_BROWSER to its path"


def executable() -> str:
    """Its path: what MMRL_BROWSER names, or the first of `NAMES` on the path. Raises UserError where there is none."""
    named = os.environ.get("MMRL_BROWSER")
    found = next((path for name in ([named] if named else NAMES) if (path := shutil.which(name))), None)
    if found is None:
        raise UserError(f"there is no browser ({named or ', '.join(NAMES)}): {CURE}")
    return found


def arguments(proxy_port: int) -> list[str]:
    """Of its command line. All requests go to the proxy, those for loopback too; names are never resolved."""
    return [
        *("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--mute-audio", "--no-first-run"),
        *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
        "--disable-partial-raster",  # with it what was drawn before shows in the edges of what is drawn now
        *("--disable-quic", "--disable-domain-reliability", "--disable-client-side-phishing-detection", "--no-pings"),
        "--disable-features=DnsOverHttps,Translate,OptimizationHints,MediaRouter,AutofillServerCommunication,HttpsUpgrades,"
        "HttpsFirstBalancedModeAutoEnable",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
        # WebRTC goes past the proxy; the shells know the one name, the whole browser the other
        *(f"--{name}webrtc-ip-handling-policy=disable_non_proxied_udp" for name in ("", "force-")),
        *(f"--proxy-server=http://127.0.0.1:{proxy_port}", "--proxy-bypass-list=<-loopback>"),
        *("--font-render-hinting=none", "--force-device-scale-factor=1"),
    ]
