"""The browser's screens: a page starts from a seed, is observed and acted on. A site provides the pages."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

from mmrl import EnvironmentFailed, UserError
from mmrl.api.simulators.gui import Action, Element, ScreenObservation
from mmrl.api.tasks.option_checks import check_integer
from mmrl_browser.acting import ACTIONS, Refused, perform
from mmrl_browser.driver import After, Driver, driver
from mmrl_browser.experts import Expert
from mmrl_browser.page import Page, Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A page's state of its episode."""

    instruction: str = ""
    reward: float = 0.0
    raw_reward: float = 0.0
    terminated: bool = False
    success: bool = False


class Pages(Protocol):
    """Pages of one kind, and their episodes."""

    pages: Sequence[str]
    actions: frozenset[str]
    aside: str
    """CSS selector of nodes that are left out of the page's elements."""
    after: After
    """`prepare` or `keep` if a page uses no random numbers before `begin` sets the seed: then it can be loaded in advance."""

    def address(self, page: str) -> str:
        """The address of a page. Raises UserError for an unknown page."""
        ...

    def opened(self, text: str) -> str | None:
        """The address for the action `open`; None if there is none."""
        ...

    async def begin(self, page: Page, name: str, seed: int) -> State:
        """Begins an episode on the page, which was just loaded."""
        ...

    async def state(self, page: Page) -> State:
        """The episode's state after an action."""
        ...

    def expert(self, page: str) -> Expert | None:
        """A page's expert, or None."""
        ...


class Browser:
    """Implements `mmrl.api.simulators.gui.Screens`; simulators derive from it and provide their pages."""

    def __init__(
        self, make: Callable[[Driver], Pages], size: Sequence[int], step_ms: int, window: tuple[int, int] | None = None
    ) -> None:
        """size: [width, height] of the pictures in pixels. step_ms: milliseconds of the page's time per action. window: (width,
        height) of the browser's window, by default the size of the pictures."""
        if isinstance(size, str) or not isinstance(size, Sequence) or len(size) != 2:
            raise UserError(f"size = {size!r:.60} must be [width, height], such as [640, 480]")
        for value in size:
            check_integer("size", value, 32, 4096, of="pixels")
        check_integer("step_ms", step_ms, 1, 60_000)
        self.size, self.step_ms = (size[0], size[1]), step_ms
        self.shape = Shape(self.size, window or self.size)
        self._driver = driver()
        self.site = make(self._driver)

    @property
    def pages(self) -> Sequence[str]:
        return self.site.pages

    @property
    def actions(self) -> frozenset[str]:
        return self.site.actions

    def open(self, elements: bool = False) -> BrowserScreen:
        return BrowserScreen(self, self._driver, elements)


class BrowserScreen:
    """Implements `mmrl.api.simulators.gui.Screen`."""

    def __init__(self, browser: Browser, driver: Driver, elements: bool) -> None:
        self.browser, self.site, self.elements = browser, browser.site, elements
        self._driver = driver
        self._page: Page | None = None
        self._last = State()
        self._name = ""
        self._done: list[Action] = []

    def start(self, page: str, seed: int, picture: bool = True) -> ScreenObservation:
        return self._driver.run(self._start(page, self.site.address(page), seed, picture))

    def act(self, action: Action) -> ScreenObservation:
        if self._page is None or self._page.broken or self._last.terminated:
            raise EnvironmentFailed("the episode is over, or its page failed: call start()")
        return self._driver.run(self._in_turn(self._act(action)))

    def expert_action(self) -> Action | None:
        """See `mmrl.api.simulators.gui.Screen.expert_action`."""
        expert = self.site.expert(self._name)
        if expert is None or self._page is None or self._last.terminated:
            return None
        done = tuple(action for action in self._done if action.kind != "wait")
        return expert(self._last.instruction, self._driver.run(self._elements(self._page)), done)

    def close(self) -> None:
        if self._page is not None:
            page, self._page = self._page, None
            self._driver.run(self._given_back(page))

    async def _in_turn(self, work: Coroutine[Any, Any, ScreenObservation]) -> ScreenObservation:
        async with self._driver.turn:
            return await work

    async def _given_back(self, page: Page) -> None:
        self._driver.give_back(page, self.site.after)

    async def _start(self, name: str, address: str, seed: int, picture: bool) -> ScreenObservation:
        if self._page is not None and not self._page.usable:
            await self._given_back(self._page)
            self._page = None
        wanted = (address, {"nothing": seed, "prepare": 0, "keep": -1}[self.site.after])  # -1 tells kept pages from prepared ones
        if self._page is None:
            self._page = await self._driver.page(self.browser.shape, wanted)  # without a slot: what it waits for needs one
        self._name, self._done = name, []
        return await self._in_turn(self._begun(self._page, wanted, seed, picture))

    async def _begun(self, page: Page, wanted: tuple[str, int], seed: int, picture: bool) -> ScreenObservation:
        await page.show(*wanted)
        return await self._shown(await self.site.begin(page, self._name, seed), (), picture)

    async def _act(self, action: Action) -> ScreenObservation:
        assert self._page is not None
        page, refused = self._page, []
        self._done.append(action)
        try:
            if action.kind not in self.site.actions:
                raise Refused(f"{action.kind} is nothing that can be done here: {', '.join(sorted(self.site.actions))}")
            if action.kind == "open":
                await self._open(page, action.text)
            else:
                await perform(page, action)
        except Refused as why:
            refused.append(str(why))
        await page.wait(self.browser.step_ms)
        return await self._shown(await self.site.state(page), refused)

    async def _open(self, page: Page, text: str) -> None:
        address = self.site.opened(text[:2000])
        if address is None:
            raise Refused(f"{text[:60]!r} can't be opened: it is none of the pages that are here")
        await page.script("address => { location.href = address; }", address)

    async def _shown(self, state: State, refused: Sequence[str], looked_at: bool = True) -> ScreenObservation:
        assert self._page is not None
        page, self._last = self._page, state
        elements = await self._elements(page) if self.elements and not state.terminated else ()
        picture = await page.picture() if looked_at and not state.terminated else None
        return ScreenObservation(
            screenshot=picture,
            instruction=state.instruction,
            elements=elements,
            reward=state.reward,
            raw_reward=state.raw_reward,
            terminated=state.terminated,
            success=state.success,
            notes=(*refused, *page.taken_notes()),
        )

    async def _elements(self, page: Page) -> tuple[Element, ...]:
        found: list[dict[str, Any]] = await page.script(_script(), [self.site.aside, *page.size])
        try:
            elements = [
                Element(**{**each, "box": tuple(each["box"]), "click_point": tuple(each["click_point"])}) for each in found
            ]
        except (TypeError, KeyError, AttributeError) as error:  # the page has replaced functions that list them
            raise EnvironmentFailed(f"the page's elements can't be listed: {error}") from error
        return tuple(sorted(elements, key=lambda e: (round(e.box[1]), e.box[0])))


@cache
def _script() -> str:
    return files("mmrl_browser").joinpath("elements.js").read_text(encoding="utf-8")


__all__ = ["ACTIONS", "Browser", "BrowserScreen", "Pages", "State"]
