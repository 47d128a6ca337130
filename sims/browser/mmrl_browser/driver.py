"""One Chromium per process, controlled by Playwright in a separate thread, with a pool of pages, each in its own context.

The thread's event loop serves all pages concurrently; other threads submit their calls to it. A page that crashes or hangs is
discarded with its context, and a browser that dies is restarted.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import warnings
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Literal, TypeVar

from mmrl import EnvironmentFailed, UserError
from mmrl_browser.chromium import arguments, executable
from mmrl_browser.page import DEADLINE_S, Page, Shape
from mmrl_browser.site import Site

T = TypeVar("T")
After = Literal["nothing", "prepare", "keep"]
"""What happens to a page after an episode, see `Driver.give_back`."""
PATIENCE_S = 60.0
"""Timeout for the browser's start, and for a new page."""
KEPT = 8
"""Maximum of pages that stay prepared; above it, one of them is reused for other content."""
SPARE = 2
"""Number of pages in preparation from which a request waits for one instead of opening a new page."""
GONE = "Failed to find context"
"""The browser's error for a context that is already closed, as after a crash."""
AT_ONCE = 2
"""Pages that work at the same time, per core."""


class Driver:
    """See the module. Made by `driver()`, one per process."""

    def __init__(self) -> None:
        """Raises UserError if Playwright or Chromium is missing or doesn't start."""
        try:
            from playwright.async_api import async_playwright
        except ModuleNotFoundError:
            raise UserError('a browser needs playwright, which is not installed: pip install "multimodal-rl[browser]"') from None
        self.path = executable()
        self.site = Site()
        self.lost = 0
        """Number of pages that crashed or hung."""
        self._idle: dict[Shape, list[Page]] = {}
        self._preparing: dict[Shape, int] = {}
        self._prepared = asyncio.Condition()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="browser", daemon=True).start()
        self.turn = asyncio.Semaphore(AT_ONCE * (os.cpu_count() or 1))
        """Every operation on a page takes a slot: more at once would be slower, and seem to hang."""
        self._starting = asyncio.Lock()
        self._play: Any = None
        self._browser: Any = None
        self._beside: set[asyncio.Task[None]] = set()
        self._manager = async_playwright
        try:
            self.run(self._launched())
        except BaseException:
            self.close()
            raise

    def run(self, work: Coroutine[Any, Any, T], patience_s: float | None = None) -> T:
        """The result of a coroutine, run in the browser's thread. Raises EnvironmentFailed if it takes longer than `patience_s`
        seconds."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(patience_s)
        except TimeoutError:
            future.cancel()
            raise EnvironmentFailed(f"the browser took more than {patience_s:g} s") from None

    # -- pages ------------------------------------------------------------------------------------------------------------

    async def page(self, shape: Shape, wanted: tuple[str, int]) -> Page:
        """A page for exclusive use, preferably one that already shows the `wanted` address and seed. Call it without a slot: the
        pages in preparation for which it may wait need one. Raises EnvironmentFailed if none can be opened."""
        async with self._prepared:
            idle = self._idle.setdefault(shape, [])
            while not idle and self._preparing.get(shape, 0) > SPARE:
                await self._prepared.wait()
            for page in [page for page in idle if not page.usable]:
                idle.remove(page)
                self._discard(page)
            best = next((page for page in idle if wanted == page.prepared), None)
            if best is None and idle and (idle[0].prepared is None or len(idle) >= KEPT):
                best = idle[0]
            if best is not None:
                idle.remove(best)
                return best
        try:
            async with self.turn, asyncio.timeout(PATIENCE_S):
                return await Page.opened(await self._launched(), shape, self.site)
        except Exception as error:
            raise EnvironmentFailed(f"no page could be opened: {first_line(error)}") from error

    def give_back(self, page: Page, then: After = "nothing") -> None:
        """Returns a page to the pool; call it in the browser's thread. Closes a broken or worn page. then: `prepare` reloads its
        content in the background for the next episode; `keep` leaves it as it is for the next episode."""
        if page.broken:
            self.lost += 1
        if not page.usable:
            self._discard(page)
        elif then == "prepare":
            self._preparing[page.shape] = self._preparing.get(page.shape, 0) + 1
            self._aside(self._again(page, page.prepare))
        elif then == "keep":
            page.keep()
            self._idle.setdefault(page.shape, []).append(page)
        else:
            self._preparing[page.shape] = self._preparing.get(page.shape, 0) + 1
            self._aside(self._again(page, page.leave))

    async def _again(self, page: Page, ready: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Makes a page ready for the next episode."""
        try:
            async with self.turn:
                await ready()
        except EnvironmentFailed:
            self._discard(page)
        else:
            self._idle.setdefault(page.shape, []).append(page)
        finally:
            async with self._prepared:
                self._preparing[page.shape] -= 1
                self._prepared.notify_all()

    def _discard(self, page: Page) -> None:
        self._aside(self._closed(page))

    def _aside(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine in the background."""
        task = self._loop.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _closed(self, page: Page) -> None:
        """Closes the page's context. A context that can't be closed has a renderer that doesn't stop: then the browser is
        restarted."""
        browser = page.browser
        try:
            async with asyncio.timeout(DEADLINE_S):
                await page.context.close()
        except TimeoutError:
            warnings.warn("the browser can't close a page that hangs, so the browser is restarted", stacklevel=1)
            with contextlib.suppress(Exception):  # the browser is discarded: errors don't matter
                await asyncio.wait_for(browser.close(), DEADLINE_S)
        except Exception as error:  # noqa: BLE001
            if browser.is_connected() and GONE not in str(error):
                warnings.warn(f"a page of the browser could not be closed: {first_line(error)}", stacklevel=1)

    async def _launched(self) -> Any:
        """The browser, started if it isn't running."""
        async with self._starting:
            if self._browser is not None and self._browser.is_connected():
                return self._browser
            for again in (False, True):
                if self._play is None:
                    with _in_a_session_of_their_own(self._loop):
                        self._play = await self._manager().start()
                try:
                    self._browser = await self._play.chromium.launch(
                        executable_path=self.path,
                        headless=True,
                        args=arguments(self.site.port),
                        timeout=1000 * PATIENCE_S / 2,
                        **dict.fromkeys(("handle_sigint", "handle_sigterm", "handle_sighup"), False),
                    )
                    break
                except Exception as error:
                    if again:
                        raise UserError(
                            f"{self.path} doesn't start: {first_line(error)}; try `{self.path} --headless --version`"
                        ) from error
                    self._play = None  # Playwright may have died with it: try once more with a new one
            return self._browser

    async def processes(self) -> dict[str, list[int]]:
        """The ids of the browser's processes by type: browser, renderer, GPU, utility."""
        session = await (await self._launched()).new_browser_cdp_session()
        found: dict[str, list[int]] = {}
        for process in (await session.send("SystemInfo.getProcessInfo"))["processInfo"]:
            found.setdefault(process["type"], []).append(process["id"])
        await session.detach()
        return found

    # -- the end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes the browser and ends its thread."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(EnvironmentFailed):
            self.run(self._ended(), DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.site.close()

    async def _ended(self) -> None:
        if self._browser is not None:
            with contextlib.suppress(Exception):  # it may be closed already
                await self._browser.close()
        if self._play is not None:
            await self._play.stop()


@contextlib.contextmanager
def _in_a_session_of_their_own(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Starts this loop's processes in a separate session, so that Ctrl-C in a terminal reaches only the run, which closes the
    browser."""
    plain = asyncio.create_subprocess_exec

    async def started(*command: Any, **options: Any) -> Any:
        own = {"start_new_session": True} if asyncio.get_running_loop() is loop else {}
        return await plain(*command, **{**options, **own})

    asyncio.create_subprocess_exec = started  # type: ignore[assignment]
    try:
        yield
    finally:
        asyncio.create_subprocess_exec = plain


def first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).strip().splitlines()[0][:200]


_made: dict[int, Driver] = {}
_making = threading.Lock()


def driver() -> Driver:
    """This process's browser, started at the first call and closed at the process's exit."""
    with _making:
        pid = os.getpid()  # a forked child has none of its parent's threads
        if pid not in _made:
            _made.clear()
            _made[pid] = Driver()
            atexit.register(close)
        return _made[pid]


def close() -> None:
    """Closes this process's browser, if there is one; the next `driver()` starts a new one."""
    found = _made.pop(os.getpid(), None)
    if found is not None:
        found.close()


__all__ = ["After", "Driver", "close", "driver", "first_line"]
