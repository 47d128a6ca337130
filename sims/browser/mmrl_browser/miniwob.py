"""MiniWoB++'s pages (Liu et al., Reinforcement Learning on Web Interfaces using Workflow-Guided Exploration; the package
`miniwob`), with its seeds, instructions and rewards.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmrl import EnvironmentFailed, UserError
from mmrl.api.tasks.option_checks import did_you_mean
from mmrl_browser.acting import ACTIONS
from mmrl_browser.driver import After, Driver
from mmrl_browser.experts import EXPERTS, Expert
from mmrl_browser.page import LOADING_MS, Page
from mmrl_browser.screens import Browser, State
from mmrl_browser.site import folder

SIZE = (160, 210)
"""Size of the screens in pixels."""
WINDOW = (500, 320)
"""Size of the browser's window, as in the package's environment: the rewards are shown beside the screen."""
HOST = "miniwob"
READY_TRIES = 100
BEGIN = """([seed, mode]) => {
  core.endEpisode(0); // of an episode that was left before its end
  if (document.activeElement) document.activeElement.blur();
  Math.seedrandom(seed);
  core.setDataMode(mode);
  core.startEpisodeReal();
}"""
SAYS = """() => {
  if (!WOB_TASK_READY) return null;
  const said = core.getUtterance();
  return typeof said === 'string' ? said : said.utterance;
}"""
STATE = "() => [WOB_DONE_GLOBAL, WOB_REWARD_GLOBAL, WOB_RAW_REWARD_GLOBAL]"


class MiniWoB(Browser):
    """Screens of 160 x 210 pixels. A page's seed is MiniWoB++'s. A page's time advances by `step_ms` per action, so its reward,
    which falls with time, falls with the number of actions; the 10 seconds of most pages are 20 actions."""

    def __init__(self, *, step_ms: int = 500, mode: str = "train", fresh: bool = True) -> None:
        """step_ms: milliseconds of the page's time per action. mode: MiniWoB++'s data mode, train or test, for pages that have
        both. fresh: load the page anew for each episode, so that the episode depends on its seed alone; false starts the next
        episode in the same page, like the package's environment: faster, but some pages keep state."""
        if mode not in ("train", "test"):
            raise UserError(f"mode = {mode!r:.40} is unknown: choose train or test")
        super().__init__(lambda driver: Tasks(driver, mode, "prepare" if fresh else "keep"), SIZE, step_ms, WINDOW)


class Tasks:
    """Implements `mmrl_browser.screens.Pages`."""

    actions = ACTIONS - {"open", "back", "triple-click", "right-click", "middle-click"}  # as in the package's own environment
    aside = "#reward-display, #sync-task-cover, #click-canvas, #query"

    def __init__(self, driver: Driver, mode: str, after: After) -> None:
        self.mode, self.after, self.pages = mode, after, pages()
        self._url = driver.site.host(HOST, _files())

    def address(self, page: str) -> str:
        if page not in self.pages:
            raise UserError(f"MiniWoB++ has no page {page!r:.60}.{did_you_mean(page, self.pages)}")
        return f"{self._url}miniwob/{page}.html"

    def expert(self, page: str) -> Expert | None:
        return EXPERTS.get(page)

    def opened(self, text: str) -> str | None:
        return None

    async def begin(self, page: Page, name: str, seed: int) -> State:
        await page.script(BEGIN, [seed, self.mode])
        for _ in range(READY_TRIES):
            if (said := await page.script(SAYS)) is not None:
                await page.wait(0)  # loads the episode's pictures
                page.episode = str(said)
                return State(instruction=page.episode)
            await page.wait(LOADING_MS)
        raise EnvironmentFailed(f"MiniWoB++'s page {name!r} doesn't become ready")

    async def state(self, page: Page) -> State:
        try:
            done, reward, raw = await page.script(STATE)
            reward, raw = float(reward), float(raw)
        except (TypeError, ValueError) as error:  # the page has replaced MiniWoB++'s variables
            raise EnvironmentFailed(f"the page doesn't report the state of its episode: {error}") from error
        if not done:
            return State(instruction=page.episode)
        return State(instruction=page.episode, reward=reward, raw_reward=raw, terminated=True, success=raw == 1.0)


def home() -> Path:
    """The package's folder of pages. Raises UserError if the package isn't installed."""
    spec = importlib.util.find_spec("miniwob")  # its __init__ imports selenium, which isn't needed here
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            'MiniWoB++\'s pages are in the package miniwob, which is not installed: pip install "multimodal-rl[browser]"'
        )
    return Path(spec.submodule_search_locations[0]) / "html"


@functools.cache
def pages() -> Sequence[str]:
    """The names of MiniWoB++'s pages, sorted."""
    return tuple(sorted(file.stem for file in (home() / "miniwob").glob("*.html")))


@functools.cache
def _files() -> Any:
    return folder(home())
