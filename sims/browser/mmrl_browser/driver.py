"""One Chromium for a process, driven by Playwright in a thread of its own, and a pool of pages in it, each in its own context.

The thread's event loop serves all pages side by side; what other threads ask is handed to it. A page that crashes or hangs is
thrown away with its context, and a browser that dies is started again.
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
"""What becomes of a page that an episode is done with."""
PATIENCE_S = 60.0
"""For the browser to start, and for a new page."""
KEPT = 8
"""Pages that stay as they were prepared, in case that is wanted, before one of them is shown something else."""
SPARE = 2
"""Pages that are being prepared before others wait for them instead of opening new ones."""
GONE = "Failed to find context"
"""What the browser says of a context that is closed already, as after a crash: there is nothing left to close."""
AT_ONCE = 2
"""Pages that do something at the same time, for each core."""


class Driver:
    """See the module. Made by `driver()`, one for each process."""

    def __init__(self) -> None:
        """Raises UserError where Playwright or Chromium are missing or don't start."""
        try:
            from playwright.async_api import async_playwright
        except ModuleNotFoundError:
            raise UserError(
                'a browser is driven by playwright, which is not installed: pip install "multimodal-rl[browser]"'
            ) from None
        self.path = executable()
        self.site = Site()
        self.lost = 0
        """Pages that crashed or hung, so far."""
        self._idle: dict[Shape, list[Page]] = {}
        self._preparing: dict[Shape, int] = {}
        self._prepared = asyncio.Condition()
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="browser", daemon=True).start()
        self.turn = asyncio.Semaphore(AT_ONCE * (os.cpu_count() or 1))
        """Whatever is asked of a page takes one: more at once would be slower, and seem to hang."""
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
        """What this comes to, awaited by the browser's thread. Raises EnvironmentFailed where it takes more than `patience_s`."""
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result(patience_s)
        except TimeoutError:
            future.cancel()
            raise EnvironmentFailed(f"the browser took more than {patience_s:g} s") from None

    # -- pages ------------------------------------------------------------------------------------------------------------

    async def page(self, shape: Shape, wanted: tuple[str, int]) -> Page:
        """A page that nobody else has, best one that shows what is wanted already. Raises EnvironmentFailed where none can be
        made."""
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
            async with asyncio.timeout(PATIENCE_S):
                return await Page.opened(await self._launched(), shape, self.site)
        except Exception as error:
            raise EnvironmentFailed(f"no page could be opened: {first_line(error)}") from error

    def give_back(self, page: Page, then: After = "nothing") -> None:
        """From the browser's thread. A page that is broken or worn is closed. then: `prepare` shows again what it showed, for the
        next episode, while nobody waits; `keep` leaves it as it is for that."""
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
        """Makes a page ready for another episode."""
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
        """Done while nobody waits for it."""
        task = self._loop.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)

    async def _closed(self, page: Page) -> None:
        """A context that can't be closed holds a renderer that doesn't stop: then the browser is started anew."""
        browser = page.browser
        try:
            async with asyncio.timeout(DEADLINE_S):
                await page.context.close()
        except TimeoutError:
            warnings.warn("the browser doesn't close a page that hangs: it is started anew", stacklevel=1)
            with contextlib.suppress(Exception):  # it is being given up: whether it says good-bye doesn't matter
                await asyncio.wait_for(browser.close(), DEADLINE_S)
        except Exception as error:  # noqa: BLE001
            if browser.is_connected() and GONE not in str(error):
                warnings.warn(f"a page of the browser could not be closed: {first_line(error)}", stacklevel=1)

    async def _launched(self) -> Any:
        """The browser, started where it isn't running."""
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
                    self._play = None  # what drives it may have died with it: once more with another
            return self._browser

    async def processes(self) -> dict[str, list[int]]:
        """The ids of the browser's processes, by what they are: browser, renderer, GPU, utility."""
        session = await (await self._launched()).new_browser_cdp_session()
        found: dict[str, list[int]] = {}
        for process in (await session.send("SystemInfo.getProcessInfo"))["processInfo"]:
            found.setdefault(process["type"], []).append(process["id"])
        await session.detach()
        return found

    # -- the end ----------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Ends the browser and its thread."""
        if self._loop.is_closed():
            return
        with contextlib.suppress(EnvironmentFailed):
            self.run(self._ended(), DEADLINE_S)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self.site.close()

    async def _ended(self) -> None:
        if self._browser is not None:
            with contextlib.suppress(Exception):  # it may be gone already
                await self._browser.close()
        if self._play is not None:
            await self._play.stop()


@contextlib.contextmanager
def _in_a_session_of_their_own(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Processes that are started by this loop meanwhile: Ctrl-C in a terminal is for the run, which ends the browser itself."""
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
    """This process's browser, started when it is first asked for and closed when the process ends."""
    with _making:
        pid = os.getpid()  # a forked child has none of its parent's threads
        if pid not in _made:
            _made.clear()
            _made[pid] = Driver()
            atexit.register(close)
        return _made[pid]


def close() -> None:
    """Ends this process's browser, if there is one; the next `driver()` starts another."""
    found = _made.pop(os.getpid(), None)
    if found is not None:
        found.close()


__all__ = ["After", "Driver", "close", "driver", "first_line"]
