"""Pages given as HTML text, for tasks that generate pages: the name of a page is its HTML."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from mmrl import UserError
from mmrl_browser.acting import ACTIONS
from mmrl_browser.driver import After, Driver
from mmrl_browser.page import Page
from mmrl_browser.screens import Browser, State
from mmrl_browser.site import Page as Given

KEPT = 64
"""Maximum number of stored texts, and so of concurrent episodes of one simulator."""
LONGEST = 2**20
_numbers = itertools.count()


class Html(Browser):
    """Screens that show the HTML that they are started with. There is no task: episodes never end, and the reward is 0."""

    def __init__(self, *, size: Sequence[int] = (640, 480), step_ms: int = 500) -> None:
        """size: [width, height] of the window in pixels. step_ms: milliseconds of the page's time per action."""
        super().__init__(Texts, size, step_ms)


class Texts:
    """Implements `mmrl_browser.screens.Pages`."""

    pages: Sequence[str] = ()
    actions = ACTIONS - {"open"}
    aside = ""
    after: After = "nothing"

    def __init__(self, driver: Driver) -> None:
        self._numbers = itertools.count()
        self._texts: dict[str, bytes] = {}
        self._url = driver.site.host(f"html-{next(_numbers)}", self._give)

    def address(self, page: str) -> str:
        if len(page) > LONGEST:
            raise UserError(f"the HTML has {len(page):,} characters; the maximum is {LONGEST:,}")
        name = f"{next(self._numbers)}.html"
        self._texts[name] = page.encode("utf-8", errors="replace")
        while len(self._texts) > KEPT:
            self._texts.pop(next(iter(self._texts)))
        return self._url + name

    def _give(self, path: str) -> Given | None:
        body = self._texts.get(path)
        return None if body is None else Given(body, "text/html; charset=utf-8", lasting=False)

    def expert(self, page: str) -> None:
        """None: there is no expert."""

    def opened(self, text: str) -> str | None:
        return None

    async def begin(self, page: Page, name: str, seed: int) -> State:
        return State()

    async def state(self, page: Page) -> State:
        return State()
