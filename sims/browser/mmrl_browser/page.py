"""A page of the browser in a context of its own: shown, looked at, and its clock.

Time stands still in a page but for what an action is given, so that what follows an action is the same on a slow machine and a
fast one, and thinking costs nothing: its timers, its frames and its dates are ours (`clock.js`), and its transitions are over at
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
"""For anything that a page is asked; one that takes longer hangs."""
LOADING_MS = 20
"""Of the page's time that pass before it is first looked at."""
EPOCH_MS = 1_767_225_600_000
"""The time in a page when it is shown: the beginning of 2026."""
FETCHING_S = 2.0
"""Real time for which what a page asks for is waited for."""
FRAME_S = 1.0
"""Real time for which a frame within a page is waited for."""
CLOCK = "__mmrl"
"""What the clock is called in a page."""
AT_ONCE = 1000.0
"""How much faster transitions are."""
WORN = 200
"""Episodes after which a page is replaced by a new one in a new context."""
NOTES = 5
"""That are told after an action; of more, how many."""
STORED = "cookies,local_storage,indexeddb,cache_storage,service_workers"


class Shape(NamedTuple):
    """What of a window is looked at, in pixels."""

    size: tuple[int, int]
    """(width, height) of pictures, from the top left corner."""
    window: tuple[int, int]


class Page:
    """See the module. All methods belong to the browser's thread."""

    def __init__(self, browser: Any, context: Any, page: Any, session: Any, shape: Shape, site: Site) -> None:
        self.browser, self.context, self.page, self.session, self.shape, self.site = browser, context, page, session, shape, site
        self.size = shape.size
        self.broken = False
        self.notes: list[str] = []
        """What happened since they were last taken."""
        self.episode: Any = None
        """What the site keeps of the episode."""
        self.before: tuple[str, int] | None = None
        """The address and the seed that were shown last."""
        self.prepared: tuple[str, int] | None = None
        """Those that are shown already, untouched."""
        self._kept = False
        """Those were shown to an episode before."""
        self.leaving = False
        """It is on its way to another page."""
        self._went = False
        """It did something about going elsewhere since it was shown."""
        self._stopped = asyncio.Event()
        self._pending: set[Any] = set()
        """Requests that are under way."""
        self._changed = asyncio.Event()
        self._clock: str | None = None
        self._frame = ""
        self._episodes = 0

    @classmethod
    async def opened(cls, browser: Any, shape: Shape, site: Site) -> Page:
        """A new one, blank."""
        context = await browser.new_context(
            viewport={"width": shape.window[0], "height": shape.window[1]},
            **{"accept_downloads": False, "service_workers": "block", "locale": "en-GB", "timezone_id": "UTC"},
        )
        page = await context.new_page()
        session = await context.new_cdp_session(page)
        made = cls(browser, context, page, session, shape, site)
        page.on("crash", lambda _: made._note_broken())
        page.on("dialog", made._dialog)
        page.on("popup", made._popup)
        page.on("download", made._download)
        page.on("request", made._asked)
        page.on("requestfinished", made._given)
        page.on("requestfailed", made._given)
        await session.send("Page.enable")
        made._frame = (await session.send("Page.getFrameTree"))["frameTree"]["frame"]["id"]
        for event in ("Page.frameRequestedNavigation", "Page.frameStartedNavigating", "Page.frameStartedLoading"):
            session.on(event, made._starts)
        session.on("Page.frameStoppedLoading", made._stops)
        await session.send("Animation.enable")
        await session.send("Animation.setPlaybackRate", {"playbackRate": AT_ONCE})
        session.on("Fetch.requestPaused", made._led_away)
        await session.send("Fetch.enable", {"patterns": [{"urlPattern": f"{scheme}://*"} for scheme in ("https", "ftp", "file")]})
        return made

    @property
    def usable(self) -> bool:
        return not self.broken and self._episodes < WORN and self.browser.is_connected()

    async def within(self, what: str, work: Any) -> Any:
        """What this comes to; one that fails or takes too long breaks the page: EnvironmentFailed."""
        try:
            async with asyncio.timeout(DEADLINE_S):
                return await work
        except TimeoutError:
            self.broken = True
            raise EnvironmentFailed(f"the page hangs: {what} took more than {DEADLINE_S:g} s") from None
        except EnvironmentFailed:
            raise
        except Exception as error:  # whatever Playwright raises
            self.broken = True
            line = (str(error) or type(error).__name__).strip().splitlines()[0][:200]
            raise EnvironmentFailed(f"the page broke: {what}: {line}") from error

    # -- what is shown ----------------------------------------------------------------------------------------------------

    async def show(self, url: str, seed: int) -> None:
        """This page anew, without anything that the last one stored; what it draws at random is drawn from the seed, and its time
        stands still at `EPOCH_S`."""
        self._episodes += 1
        if self.prepared != (url, seed):
            await self.within("going to its address", self._shown(url, seed))
        elif self._kept:
            x, y = self.shape.window
            await self.within("the mouse", self.page.mouse.move(x - 1, y - 1))  # it may lie on something that shows it
        self.notes.clear()
        self.prepared, self.before = None, (url, seed)

    def keep(self) -> None:
        """What is shown serves the next episode as it is, if that wants the same page."""
        self.prepared, self._kept = None if self._went else self.before, True

    async def leave(self) -> None:
        """Nothing is shown, so that what a page does when it is left is done before somebody waits."""
        await self.within("leaving it", self.page.goto("about:blank"))
        self.prepared = None

    async def prepare(self) -> None:
        """Shows what was shown before, for an episode to come."""
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
        """What a function of JavaScript gives, called with this argument."""
        return await self.within("its script", self.page.evaluate(code, argument))

    async def picture(self) -> Image.Image:
        """The page as it is now, RGB."""
        options = {"format": "png", "optimizeForSpeed": True}
        data = (await self.within("its picture", self.session.send("Page.captureScreenshot", options)))["data"]
        with Image.open(io.BytesIO(base64.b64decode(data))) as shown:
            return shown.crop((0, 0, *self.size)).convert("RGB")

    async def wait(self, ms: int) -> None:
        """So much of the page's time passes; and where it goes elsewhere, it is waited for."""
        await self.within("waiting", self._waited(ms))

    async def _waited(self, ms: int) -> None:
        for frame in self.page.frames:
            running = frame.evaluate(f"ms => window.{CLOCK} && window.{CLOCK}.run(ms)", ms)
            if frame is not self.page.main_frame:  # one that isn't loaded, or may not run scripts, never answers
                with contextlib.suppress(Exception):
                    async with asyncio.timeout(FRAME_S):
                        await running
                continue
            try:
                await running
            except Exception:
                if not self.leaving:
                    raise
        if self.leaving:
            await self._arrived()
            await self._waited(LOADING_MS)
        elif self._pending:
            await self._quiet()

    async def _quiet(self) -> None:
        """What was asked for is there, such as a picture, and drawn; one that takes too long is not waited for."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FETCHING_S):
                while self._pending:
                    self._changed.clear()
                    await self._changed.wait()
        self._pending.clear()
        await self.page.evaluate(f"() => window.{CLOCK} && window.{CLOCK}.drawn()")

    async def _arrived(self) -> None:
        """The page that it goes to is there, or it stays where it is."""
        while self.leaving:
            self._stopped.clear()
            await self._stopped.wait()
        await self.page.wait_for_load_state("load")

    def _starts(self, event: Any) -> None:
        if event["frameId"] == self._frame:
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
        """Nobody answers: it is closed. Leaving a page is never held up."""
        with contextlib.suppress(Exception):  # the page may be gone by now
            if dialog.type == "beforeunload":
                await dialog.accept()
                return
            self.notes.append(f"a dialog ({dialog.type}) said {dialog.message[:80]!r} and was closed")
            await dialog.dismiss()

    async def _popup(self, page: Any) -> None:
        self.notes.append("a window that the page opened was closed")
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

    def _given(self, request: Any) -> None:
        self._pending.discard(request)
        self._changed.set()

    async def _led_away(self, event: Any) -> None:
        """To a place that the proxy couldn't refuse without the page being gone."""
        with contextlib.suppress(Exception):  # it has gone elsewhere meanwhile
            await self.session.send("Fetch.failRequest", {"requestId": event["requestId"], "errorReason": "Aborted"})


@cache
def _clock() -> str:
    return files("mmrl_browser").joinpath("clock.js").read_text(encoding="utf-8")
