"""In-context examples found by exploring: successful episodes as text before an instruction.

WebWISE (Tao et al., NAACL Findings 2024) uses one successful trial. Here an expert plays it if the page has one, else a random
walk.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from mmrl import EnvironmentFailed, UserError
from mmrl.api.simulators.gui import ScreenObservation, Screens
from mmrl.api.tasks.image_sources import chance
from mmrl_gui.exploring import Step, chooser

STEPS = 10
"""Maximum of actions in an example."""
TRIES = 100
"""Maximum of episodes played for one example."""
LOST = 5
"""Maximum of these that may fail with their browser."""

Told = Callable[[ScreenObservation, Step, str], str]
"""(observation, action, instruction) -> a turn of an example as text."""


class Examples:
    """Examples of each page, found on first use, from seeds outside all splits."""

    def __init__(self, screens: Callable[[], Screens], count: int, first: int, told: Told) -> None:
        """screens: makes the screens. count: examples of a page. first: the first seed. told: writes a turn."""
        self.screens, self.count, self.first, self.told = screens, count, first, told
        self._found: dict[str, str] = {}
        self._lock = threading.Lock()

    def of(self, page: str) -> str:
        """The examples of a page; the same ones each time. Raises UserError if no episode succeeds."""
        with self._lock:
            if page not in self._found:
                self._found[page] = self._explored(page)
            return self._found[page]

    def _explored(self, page: str) -> str:
        found: list[str] = []
        lost = 0
        for seed in range(self.first, self.first + TRIES * self.count):
            try:
                example = self._played(page, seed)
            except EnvironmentFailed as why:
                lost += 1
                if lost == LOST:
                    raise UserError(f"page {page!r:.60} failed {lost} times during the search for an example: {why}") from None
                continue
            found += [example] if example else []
            if len(found) == self.count:
                return "\n\n".join(found)
        tried = TRIES * self.count
        raise UserError(
            f"page {page!r:.60}: {len(found)} of {tried} episodes succeeded, and examples = {self.count}: take fewer, "
            "or a page that has an expert"
        )

    def _played(self, page: str, seed: int) -> str:
        """An episode as text; empty if it didn't succeed."""
        screens = self.screens()
        screen = screens.open(elements=True)
        try:
            shown = screen.start(page, seed)
            instruction = shown.instruction
            policy = "random" if screen.expert_action() is None else "expert"
            chooses = chooser(policy, chance(0, "example", page, str(seed)), screens.actions)
            turns: Sequence[str] = ()
            while not shown.terminated and len(turns) < STEPS and (step := chooses(screen, shown)) is not None:
                turns = [*turns, self.told(shown, step, instruction)]
                shown = screen.act(step.action)
        finally:
            screen.close()
        return "\n".join(["An example:", instruction, *turns]) if shown.success else ""
