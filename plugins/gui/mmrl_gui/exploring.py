"""Policies for recording: a random walk over elements that can be clicked and typed into, or an expert."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mmrl import UserError
from mmrl.api.simulators.gui import Action, Box, Element, Point, Screen, ScreenObservation
from mmrl_gui.listing import meant, spot_of

Chooses = Callable[[Screen, ScreenObservation], "Step | None"]
"""The next step for an observation of a screen; None if nothing is left to do."""
FIELDS = ("textbox", "searchbox", "spinbutton")
WORDS = ("tea", "north", "42", "blue", "hello", "maps", "2031", "river")
"""Texts to type if the instruction quotes none."""
WALKS = ("click", "type", "key", "scroll")
"""Actions of a walk."""
_QUOTED = re.compile(r'"([^"]{1,40})"')
_SCROLLS, _ENTERS = 0.1, 0.3
"""Probabilities that a walk scrolls, and that it presses Enter after typing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """An action on a screen."""

    action: Action
    box: Box | None = None
    """Box of the element that the action hits, in pixels; None if it hits none."""


class Walk:
    """A random walk: clicks on clickable elements only, texts into clicked fields, Enter after some of them, sometimes a
    scroll."""

    def __init__(self, draw: random.Random, actions: frozenset[str]) -> None:
        """actions: those that are allowed and that the screens support, of `WALKS`."""
        self.draw, self.actions = draw, actions
        self._typing: Box | None = None
        self._typed = False

    def __call__(self, screen: Screen, shown: ScreenObservation) -> Step | None:
        if self._typing is not None:
            box, self._typing, self._typed = self._typing, None, True
            return Step(action=Action(kind="type", text=self._text(shown.instruction)), box=box)
        if self._typed:
            self._typed = False
            if "key" in self.actions and self.draw.random() < _ENTERS:
                return Step(action=Action(kind="key", text="Enter"))
        there = [element for element in shown.elements if element.interactive]
        scrolls = "scroll" in self.actions and (not there or self.draw.random() < _SCROLLS)
        if scrolls:
            return Step(action=Action(kind="scroll", direction=self.draw.choice(("down", "down", "down", "up"))))
        if not there:
            return None
        element = self.draw.choice(there)
        if element.role in FIELDS and "type" in self.actions:
            self._typing = element.box
        return Step(action=Action(kind="click", at=spot_of(element)), box=element.box)

    def _text(self, instruction: str) -> str:
        return self.draw.choice(_QUOTED.findall(instruction) or WORDS)


def expert(screen: Screen, shown: ScreenObservation) -> Step | None:
    """The step of the screen's expert; None if there is none, or it has finished."""
    expert_action = getattr(screen, "expert_action", None)
    action = expert_action() if expert_action else None
    return None if action is None else Step(action=action, box=hit(shown.elements, action.at))


def hit(elements: Sequence[Element], at: Point | None) -> Box | None:
    """The box of the element that a click at a point is meant for, see `listing.meant`; None without one."""
    found = None if at is None else meant(elements, at)
    return None if found is None else elements[found].box


def chooser(policy: str, draw: random.Random, actions: frozenset[str]) -> Chooses:
    """A new chooser for one episode. policy: random or expert."""
    if policy == "expert":
        return expert
    if policy == "random":
        return Walk(draw, actions)
    raise UserError(f"policy {policy!r:.40} is unknown: choose random or expert")
