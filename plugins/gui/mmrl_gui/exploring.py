"""What to do on a screen when nobody says: a walk over what can be clicked and typed into, or what an expert advises."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mmrl import UserError
from mmrl.api.simulators.gui import Action, Box, Element, Point, Screen, ScreenObservation
from mmrl_gui.listing import meant, spot_of

Chooses = Callable[[Screen, ScreenObservation], "Step | None"]
"""What to do next on a screen that shows this; None where nothing is left to do."""
FIELDS = ("textbox", "searchbox", "spinbutton")
WORDS = ("tea", "north", "42", "blue", "hello", "maps", "2031", "river")
"""What is typed where the instruction quotes nothing."""
WALKS = ("click", "type", "key", "scroll")
"""What a walk does."""
_QUOTED = re.compile(r'"([^"]{1,40})"')
_SCROLLS, _ENTERS = 0.1, 0.3
"""How often a walk scrolls, and how often it presses Enter after typing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What is done to a screen."""

    action: Action
    box: Box | None = None
    """Of the element that the action hits, in pixels; None where it hits none."""


class Walk:
    """A random walk: clicks on what can be clicked and on nothing else, texts into fields that were clicked, Enter after some of
    them, now and then a scroll."""

    def __init__(self, draw: random.Random, actions: frozenset[str]) -> None:
        """actions: what it may do and the screens can, of `WALKS`."""
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
    """What the screen's expert advises; None where it has none, or it has no more to say."""
    advice = getattr(screen, "expert_action", None)
    action = advice() if advice else None
    return None if action is None else Step(action=action, box=hit(shown.elements, action.at))


def hit(elements: Sequence[Element], at: Point | None) -> Box | None:
    """The box of the element that a click at a place is meant for, see `listing.meant`; None without one."""
    found = None if at is None else meant(elements, at)
    return None if found is None else elements[found].box


def chooser(policy: str, draw: random.Random, actions: frozenset[str]) -> Chooses:
    """A fresh chooser for one episode. policy: random or expert."""
    if policy == "expert":
        return expert
    if policy == "random":
        return Walk(draw, actions)
    raise UserError(f"policy {policy!r:.40} is unknown: choose random or expert")
