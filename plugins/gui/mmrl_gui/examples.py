"""Episodes that succeeded, told as text before an instruction: in-context examples that are found by exploring.

WebWISE (Tao et al., NAACL Findings 2024) takes one trial that succeeded. Here an expert plays it where the page has one, and a
random walk tries where it has none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from mmrl import EnvironmentFailed, UserError
from mmrl.api.simulators.gui import ScreenObservation, Screens
from mmrl.api.tasks.image_sources import chance
from mmrl_gui.exploring import Step, chooser

STEPS = 10
"""Actions of an example at most."""
TRIES = 100
"""Episodes that are played for one example."""
LOST = 5
"""Of these, those that may be lost with their browser."""

Told = Callable[[ScreenObservation, Step, str], str]
"""(what was shown, what was done, the instruction) -> a turn of an example as text."""


class Examples:
    """Examples of each page, found when they are first asked for, from seeds that no split has."""

    def __init__(self, screens: Callable[[], Screens], count: int, first: int, told: Told) -> None:
        """screens: what they are played on. count: examples of a page. first: the first seed. told: writes a turn."""
        self.screens, self.count, self.first, self.told = screens, count, first, told
        self._found: dict[str, str] = {}
        self._lock = threading.Lock()

    def of(self, page: str) -> str:
        """The examples of a page; the same ones each time. Raises UserError where no episode succeeds."""
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
                    raise UserError(f"page {page!r:.60} was lost {lost} times while an example was looked for: {why}") from None
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
        """An episode as text; empty where it didn't succeed."""
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
