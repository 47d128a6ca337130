"""Web pages, rendered by Chromium: no scripts, no network, no files.

A page that contains anything but plain elements and inline style is refused before rendering. The others are rendered under a
content policy that allows only inline style, in a separate browser process that is killed with its children.
"""

from __future__ import annotations

import contextlib
import functools
import html.parser
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path

from PIL import Image

from mmrl import UserError
from mmrl.api.media.images import load_image
from mmrl.api.verifiers.parse import fenced_blocks, thought
from mmrl_rendering.svg import Refused

BROWSERS = ("chromium-headless-shell", "chrome-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
"""The headless shells come first: they take half the time, and full browsers without windows sometimes hang before the page."""
MAX_LENGTH, MAX_ELEMENTS, MAX_DEPTH = 20_000, 400, 40
SIZE = (224, 168)
DEADLINE_S = 8.0
"""Seconds that the browser may take for a page; it takes about half a second."""
STARTS = 2
"""How often a browser is started for a page: of 360 starts of Chromium 156 beside other work 6 hung, of its shell's 900 none."""
ELEMENTS = frozenset(
    (
        *("html", "head", "title", "style", "body", "div", "span", "p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li"),
        *("table", "thead", "tbody", "tr", "td", "th", "a", "b", "i", "em", "strong", "small", "br", "hr", "button", "input"),
        *("label", "nav", "header", "footer", "main", "section", "article", "aside", "form", "select", "option", "textarea"),
        *("code", "pre", "meta"),
    )
)
POLICY = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
_LEAVES = frozenset(("br", "hr", "input", "meta"))
_OUTSIDE = re.compile(r"url\s*\(|@import|expression\s*\(|javascript:|\\|<!ENTITY|<\?", re.IGNORECASE)


@functools.cache
def browser() -> str:
    """Chromium's path: what MMRL_BROWSER names, or the first of `BROWSERS` on the path. Raises UserError without one."""
    named = os.environ.get("MMRL_BROWSER")
    found = next((path for name in ([named] if named else BROWSERS) if (path := shutil.which(name))), None)
    if found is None:
        raise UserError(
            f"code = 'html' needs a browser, and there is no {named or ', '.join(BROWSERS)}: "
            "install Chromium (in mmrl's repository `make system` does), or set MMRL_BROWSER to its path"
        )
    return found


def find(completion: str) -> str:
    """The page in a completion: its one `<html>...</html>`, or the content of a ``` fence, or all of it after the thinking.

    Raises Refused for a page that is not allowed.
    """
    text = thought(completion)[1]
    start = text.lower().find("<html")
    end = text.lower().rfind("</html>")
    if 0 <= start < end:
        page = text[start : end + len("</html>")]
    else:
        page = next(fenced_blocks(text), text).strip()
    check(page)
    return page


def check(page: str) -> None:
    """Raises Refused unless it is a page of plain elements and inline style."""
    if not page or "<" not in page:
        raise Refused("there is no page")
    if len(page) > MAX_LENGTH:
        raise Refused(f"the page has more than {MAX_LENGTH:,} characters")
    if found := _OUTSIDE.search(page):
        raise Refused(f"{found[0][:20]!r} is not allowed in a page")
    reader = _Reader()
    reader.feed(page)
    reader.close()
    if not reader.count:
        raise Refused("there is no element in the page")


class _Reader(html.parser.HTMLParser):
    """Counts elements and refuses those that are not plain."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.count = self.depth = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count += 1
        self.depth += tag not in _LEAVES
        if tag not in ELEMENTS:
            raise Refused(f"the element {tag[:20]!r} is not allowed in a page")
        if self.count > MAX_ELEMENTS or self.depth > MAX_DEPTH:
            raise Refused(f"the page has more than {MAX_ELEMENTS} elements, or {MAX_DEPTH} inside each other")
        for name, value in attrs:
            if name.startswith("on") or name in ("src", "srcset", "action", "formaction", "background", "http-equiv"):
                raise Refused(f"the attribute {name[:20]!r} is not allowed in a page")
            if name == "href" and not (value or "#").startswith("#"):
                raise Refused("links may only lead to a place in the page, such as href='#'")

    def handle_endtag(self, tag: str) -> None:
        self.depth = max(self.depth - 1, 0)


def render(page: str, size: tuple[int, int] | None = None) -> Image.Image:
    """The page as Chromium shows it, RGB of `size` (width, height) in pixels. Raises Refused if it shows nothing in time,
    UserError without a browser."""
    return _shown(page, *(size or SIZE)).copy()


@functools.lru_cache(maxsize=128)
def _shown(page: str, width: int, height: int) -> Image.Image:
    """Cached, because a group often writes the same page, and several verifiers read it."""
    for _ in range(STARTS):
        with tempfile.TemporaryDirectory(prefix="mmrl-page-") as name:
            folder = Path(name)
            (folder / "page.html").write_text(f"<!DOCTYPE html>{POLICY}{page}", encoding="utf-8", errors="replace")
            if not _ended(_command(folder, width, height), folder):
                continue
            if not (folder / "shown.png").is_file():
                raise Refused("the browser shows nothing")
            shown = load_image(folder / "shown.png")
            return shown if shown.size == (width, height) else shown.crop((0, 0, width, height))
    raise Refused(f"the browser took more than {DEADLINE_S:g} s, {STARTS} times")


def _command(folder: Path, width: int, height: int) -> list[str]:
    """The browser's command line, which makes `shown.png` of the folder's `page.html`."""
    return [
        browser(),
        *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--no-first-run"),
        *("--force-device-scale-factor=1", "--disable-background-networking", "--disable-component-update", "--disable-sync"),
        *("--disable-extensions", "--disable-quic", "--host-resolver-rules=MAP * ~NOTFOUND", "--proxy-server=127.0.0.1:9"),
        f"--user-data-dir={folder / 'profile'}",
        f"--window-size={width},{height}",
        f"--screenshot={folder / 'shown.png'}",
        (folder / "page.html").as_uri(),
    ]


def _with_room() -> None:
    """Raise the memory limit: Chromium reserves more memory than it uses, and hangs under a verifier's limit."""
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _ended(command: list[str], folder: Path) -> bool:
    """Whether the browser ended in time, which runs in a process group of its own and is killed when the time is up."""
    none = subprocess.DEVNULL
    process = subprocess.Popen(
        command, cwd=folder, start_new_session=True, preexec_fn=_with_room, stdin=none, stdout=none, stderr=none
    )
    try:
        process.wait(DEADLINE_S)
    except subprocess.TimeoutExpired:
        return False
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return True
