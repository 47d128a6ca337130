"""A page of the browser in its own context: navigation, screenshots and the page's clock.

A page's time advances only by a fixed amount per action, so the effects of an action are the same on slow and fast machines, and
a policy's computing time doesn't count: `clock.js` replaces the page's timers, animation frames and dates, and transitions end at
once.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from PIL import Image

from mmrl import EnvironmentFailed
from mmrl_browser.site import Site

DEADLINE_S = 10.0
"""Timeout of every operation on a page; a page that takes longer counts as hanging."""
LOADING_MS = 20
"""Milliseconds of the page's time before the first observation."""
EPOCH_MS = 1_767_225_600_000
"""The time in a page when it is loaded: the beginning of 2026."""
FETCHING_S = 2.0
"""Real seconds to wait for a page's requests."""
FRAME_S = 1.0
"""Real seconds to wait for a frame in a page."""
REPLACED = "context was destroyed"
"""The browser's error where another document has taken the place of the page's, as a link to `javascript:'text'` does without
navigating."""
CLOCK = "__mmrl"
"""Name of the clock in a page."""
AT_ONCE = 1000.0
"""Speed-up of transitions."""
WORN = 200
"""Episodes after which a page is replaced by a new one in a new context."""
WINDOW = "a window that the page opened was closed"
NOTES = 5
"""Maximum of notes after an action; for the rest, only their number is given."""
STORED = "cookies,local_storage,indexeddb,cache_storage,service_workers"


class Shape(NamedTuple):
    """The observed part of a window, in pixels."""

    size: tuple[int, int]
    """(width, height) of the pictures, from the top left corner."""
    window: tuple[int, int]


class Page:
    """See the module. Call all methods in the browser's thread."""

    def __init__(self, browser: Any, context: Any, page: Any, session: Any, shape: Shape, site: Site) -> None:
        self.browser, self.context, self.page, self.session, self.shape, self.site = browser, context, page, session, shape, site
        self.size = shape.size
        self.broken = False
        self.pointer: tuple[float, float] | None = None
        """Where this episode's last action left the pointer."""
        self.notes: list[str] = []
        """Events since the last `taken_notes`."""
        self.episode: Any = None
        """The site's data of the episode."""
        self.before: tuple[str, int] | None = None
        """The address and the seed that were loaded last."""
        self.prepared: tuple[str, int] | None = None
        """The address and the seed that are loaded for the next episode."""
        self._kept = False
        """Whether an earlier episode used the prepared page."""
        self.leaving = False
        """Whether it is loading another page."""
        self._went = False
        """Whether it started a navigation since it was loaded."""
        self._tabs = 0
        """Windows that were asked for and haven't come."""
        self._stopped = asyncio.Event()
        self._pending: set[Any] = set()
        """Open requests."""
        self._changed = asyncio.Event()
        self._clock: str | None = None
        self._frame = ""
        self._episodes = 0

    @classmethod
    async def opened(cls, browser: Any, shape: Shape, site: Site) -> Page:
        """A new blank page."""
        context = await browser.new_context(
            viewport={"width": shape.window[0], "height": shape.window[1]},
            **{"accept_downloads": False, "service_workers": "block", "locale": "en-GB", "timezone_id": "UTC"},
        )
        page = await context.new_page()
        session = await context.new_cdp_session(page)
        made = cls(browser, context, page, session, shape, site)
        page.on("crash", lambda _: made._note_broken())
        page.on("dialog", made._dialog)
        context.on("page", made._popup)  # also a tab of a middle click, which isn't the page's popup
        page.on("download", made._download)
        page.on("request", made._asked)
        page.on("requestfinished", made._given)
        page.on("requestfailed", made._given)
        await session.send("Page.enable")
        made._frame = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
        for event in ("Page.frameRequestedNavigation", "Page.frameStartedNavigating", "Page.frameStartedLoading"):
            session.on(event, made._starts)
        session.on("Page.frameStoppedLoading", made._stops)
        session.on("Page.windowOpen", made._asks_for_a_window)
        await session.send("Animation.enable")
        await session.send("Animation.setPlaybackRate", {"playbackRate": AT_ONCE})
        session.on("Fetch.requestPaused", made._led_away)
        await session.send("Fetch.enable", {"patterns": [{"urlPattern": f"{scheme}://*"} for scheme in ("https", "ftp", "file")]})
        return made

    @property
    def usable(self) -> bool:
        return not self.broken and self._episodes < WORN and self.browser.is_connected()

    async def within(self, what: str, work: Any) -> Any:
        """The result of an operation. If it fails or takes too long, the page counts as broken and EnvironmentFailed is
        raised."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await work
        except TimeoutError:
            self.broken = True
            raise EnvironmentFailed(f"the page hangs: {what} took more than {DEADLINE_S:g} s") from None
        except EnvironmentFailed:
            raise
        except Exception as error:  # Playwright raises many types
            self.broken = True
            line = (str(error) or type(error).__name__).strip().splitlines()[0][:200]
            raise EnvironmentFailed(f"the page broke: {what}: {line}") from error

    # -- what is shown ----------------------------------------------------------------------------------------------------

    async def show(self, url: str, seed: int) -> None:
        """Loads an address, without stored data of the last page. Its random numbers depend on the seed, and its time stops at
        `EPOCH_MS`."""
        self._episodes += 1
        self.pointer = None
        if self.prepared != (url, seed):
            await self.within("going to its address", self._shown(url, seed))
        elif self._kept:
            x, y = self.shape.window
            await self.within("the mouse", self.page.mouse.move(x - 1, y - 1))  # it may be over an element that reacts
        self.notes.clear()
        self.prepared, self.before = None, (url, seed)

    def keep(self) -> None:
        """Keeps the loaded page for the next episode, if that uses the same page."""
        self.prepared, self._kept = None if self._went else self.before, True

    async def leave(self) -> None:
        """Leaves the page for a blank one, so that its unload handlers run before the page is needed again."""
        await self.within("leaving it", self.page.goto("about:blank"))
        self.prepared = None

    async def prepare(self) -> None:
        """Loads the last address and seed again, for a later episode."""
        if self.before is not None:
            await self.within("going to its address", self._shown(*self.before))
            self.prepared, self._kept = self.before, False

    async def _shown(self, url: str, seed: int) -> None:
        origin = "/".join(url.split("/", 3)[:3])
        await self.session.send("Storage.clearDataForOrigin", {"origin": origin, "storageTypes": STORED})
        clock = f"window.name = ''; {_clock()}({json.dumps(CLOCK)}, {seed % 2**32}, {EPOCH_MS});"
        found = await self.session.send("Page.addScriptToEvaluateOnNewDocument", {"source": clock})
        if self._clock is not None:
            await self.session.send("Page.removeScriptToEvaluateOnNewDocument", {"identifier": self._clock})
        self._clock = found["identifier"]
        self._pending.clear()
        response = await self.page.goto(url, wait_until="load")
        if response is None or response.status != 200:
            raise EnvironmentFailed(f"{url} can't be shown: {'nothing' if response is None else f'status {response.status}'}")
        await self.session.send("Page.resetNavigationHistory")
        await self._waited(LOADING_MS)
        self._went = False

    async def script(self, code: str, argument: Any = None) -> Any:
        """The result of a JavaScript function, called with this argument."""
        return await self.within("its script", self.page.evaluate(code, argument))

    async def picture(self) -> Image.Image:
        """A screenshot of the page, RGB."""
        options = {"format": "png", "optimizeForSpeed": True}
        data = (await self.within("its picture", self.session.send("Page.captureScreenshot", options)))["data"]
        with Image.open(io.BytesIO(base64.b64decode(data))) as shown:
            return shown.crop((0, 0, *self.size)).convert("RGB")

    async def wait(self, ms: int) -> None:
        """Advances the page's time by `ms`, then waits for a navigation, if one started."""
        await self.within("waiting", self._waited(ms))

    async def _waited(self, ms: int) -> None:
        replaced = False
        for frame in self.page.frames:
            running = frame.evaluate(f"ms => window.{CLOCK} && window.{CLOCK}.run(ms)", ms)
            if frame is not self.page.main_frame:  # a frame that isn't loaded, or may not run scripts, never answers
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(FRAME_S):
                        await running
                continue
            try:
                await running
            except Exception as error:
                if not self.leaving and REPLACED not in str(error):
                    raise
                replaced = True
        if self.leaving or replaced:
            await self._arrived()
            await self._waited(LOADING_MS)
        elif self._pending:
            await self._quiet()

    async def _quiet(self) -> None:
        """Waits until requested resources, such as pictures, are loaded and rendered, at most `FETCHING_S`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FETCHING_S):
                while self._pending:
                    self._changed.clear()
                    await self._changed.wait()
        self._pending.clear()
        await self.page.evaluate(f"() => window.{CLOCK} && window.{CLOCK}.drawn()")

    async def _arrived(self) -> None:
        """Waits for a navigation to finish or be cancelled."""
        while self.leaving:
            self._stopped.clear()
            await self._stopped.wait()
        await self.page.wait_for_load_state("load")

    def _starts(self, event: Any) -> None:
        if event["frameId"] != self._frame:
            return
        if event.get("disposition") in ("newTab", "newWindow"):  # as a middle click on a link asks for
            self._asks_for_a_window(event)
        else:
            self.leaving = self._went = True

    def _stops(self, event: Any) -> None:
        if event["frameId"] == self._frame:
            self.leaving = False
            self._stopped.set()

    def taken_notes(self) -> tuple[str, ...]:
        found, self.notes = tuple(dict.fromkeys(self.notes)), []
        return found if len(found) <= NOTES else (*found[: NOTES - 1], f"and {len(found) - NOTES + 1} more like these")

    # -- what a page may not ----------------------------------------------------------------------------------------------

    def _note_broken(self) -> None:
        self.broken = True

    async def _dialog(self, dialog: Any) -> None:
        """Closes a dialog. Never blocks leaving a page."""
        with contextlib.suppress(Exception):  # the page may be closed by now
            if dialog.type == "beforeunload":
                await dialog.accept()
                return
            self.notes.append(f"a dialog ({dialog.type}) said {dialog.message[:80]!r} and was closed")
            await dialog.dismiss()

    def _asks_for_a_window(self, event: Any) -> None:
        """Notes it now: the window itself may come after the next action."""
        self._tabs += 1
        self.notes.append(WINDOW)

    async def _popup(self, page: Any) -> None:
        if self._tabs:
            self._tabs -= 1
        else:
            self.notes.append(WINDOW)
        with contextlib.suppress(Exception):
            await page.close()

    async def _download(self, download: Any) -> None:
        self.notes.append(f"a download ({download.suggested_filename[:40]!r}) was refused")
        with contextlib.suppress(Exception):
            await download.cancel()

    def _asked(self, request: Any) -> None:
        self._pending.add(request)
        url = request.url
        if not self.site.is_ours(url) and not url.startswith(("data:", "blob:", "about:")):
            self.notes.append(f"{url[:80]} was refused: there is no network")
        elif request.method != "GET":
            self.notes.append(f"{request.method} {url[:80]} was refused: pages are only read")

    def _given(self, request: Any) -> None:
        self._pending.discard(request)
        self._changed.set()

    async def _led_away(self, event: Any) -> None:
        """Handles a navigation that the proxy couldn't refuse without the page being lost."""
        with contextlib.suppress(Exception):  # it has navigated again meanwhile
            await self.session.send("Fetch.failRequest", {"requestId": event["requestId"], "errorReason": "Aborted"})


@cache
def _clock() -> str:
    return files("mmrl_browser").joinpath("clock.js").read_text(encoding="utf-8")
