"""`gui/transitions`: the action that led from one screen to another, on generated working pages.

The browser shows a page, executes an action, and shows the result: inverse dynamics without recordings (UIShift, Gao et al. 2025,
learns from such pairs). Each action leaves a visible trace, so that exactly one answer is right.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrl import Prompt, UserError, user_message
from mmrl.api.simulators.gui import Action, Screen, ScreenObservation
from mmrl.api.tasks.image_sources import chance
from mmrl.api.tasks.option_checks import LazyPrompts, check_choice, check_split
from mmrl_gui import asking, pages
from mmrl_gui.action_task import STYLES, target
from mmrl_gui.actions import as_data, of_data
from mmrl_gui.data_task import means
from mmrl_gui.exploring import WORDS, Step
from mmrl_gui.geometry import middle
from mmrl_gui.phrases import fold
from mmrl_gui.rendered import Rendered, boxes_of, png
from mmrl_gui.screens_task import ATTEMPTS, DrawnPages

KINDS = ("click", "type", "scroll")
_FIELDS = ("textbox",)
_SECRET = "password"
"""Text typed into this field is not visible."""


@dataclass(kw_only=True, eq=False)
class Transitions(DrawnPages):
    """Two screens, and the action between them."""

    style: str = "json"
    kinds_of_action: Sequence[str] = KINDS
    """Kinds of action: click, type, scroll."""

    styles = STYLES

    def __post_init__(self) -> None:
        super().__post_init__()
        if not isinstance(self.kinds_of_action, list | tuple) or not self.kinds_of_action:
            raise UserError(f"kinds_of_action = {self.kinds_of_action!r:.60} must be a list of some of {', '.join(KINDS)}")
        for kind in self.kinds_of_action:
            check_choice("kinds_of_action", kind, KINDS)

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.splits)
        return LazyPrompts(range(getattr(self, split)), lambda number: self._pose(split, number))

    def gold(self, prompt: Prompt) -> str:
        action, box = target(of_data(prompt.meta["true"]["action"]), prompt.meta["true"]["box"])
        return asking.act(self.style, "I compare the two screens.", action, self.numbers(self.screen), box)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """The mean for each kind of action, if there are several."""
        figures = means(results, lambda meta: f"kind/{meta['kind']}")
        return figures if len(figures) > 1 else {}

    def _pose(self, split: str, number: int) -> Prompt:
        level = self.level_of(number)
        for attempt in range(ATTEMPTS):
            page = self.page(split, number, attempt, level)
            draw = chance(self.seed, "gui", "act", split, str(number), str(attempt))
            kind = draw.choice(tuple(self.kinds_of_action))
            does = {"click": _clicks, "type": _types, "scroll": _scrolls}[kind](page, draw)
            if rendered := self._renderer.show(page, does, f"{kind} {split}-{number}"):
                return self._prompt(f"{split}-{number}", page, rendered, level)
        raise UserError(
            f"found no possible action on {ATTEMPTS} pages of {self.screen} pixels: use a larger screen, or more kinds"
        )

    def _prompt(self, id: str, page: pages.Page, rendered: Rendered, level: str) -> Prompt:
        assert rendered.step is not None
        action, box = rendered.step.action, list(rendered.step.box) if rendered.step.box else None
        true = {"action": as_data(action), "box": box}
        meta = self.meta(
            "action",
            self.screen,
            boxes=[tuple(box)] if box else [],
            true=true,
            kind=action.kind,
            picture=0,
            page=page.kind,
            platform=pages.platform(page),
            theme=page.look.theme,
            language=page.language,
            level=level,
            difficulty=pages.LEVELS.index(level) + len(page.things) / 100,
        )
        how = asking.language(self.style, self.kinds_of_action, self.numbers(self.screen))
        text = f"Which action led from the first screen to the second? {how}"
        return Prompt(id=id, messages=[user_message(text, *rendered.pictures)], answer=true, meta=meta)


def _clicks(page: pages.Page, draw: random.Random) -> Any:
    """A click on an element: on switches as often as on all others."""

    def does(screen: Screen, shown: ScreenObservation) -> Rendered | None:
        boxes = boxes_of(page, shown.elements, page.look.size)
        alike = Counter((thing.role, fold(thing.name), thing.inside) for thing in page.things)
        there = [t for t in page.things if t.number in boxes and alike[t.role, fold(t.name), t.inside] == 1]
        if not there:
            return None
        switched = draw.random() < 0.5
        thing = draw.choice([t for t in there if (t.on is not None) == switched] or there)
        box = boxes[thing.number]
        return _done(screen, shown, Step(action=Action(kind="click", at=middle(box)), box=box))

    return does


def _types(page: pages.Page, draw: random.Random) -> Any:
    """Typing a text into an empty field that was clicked before."""

    def does(screen: Screen, shown: ScreenObservation) -> Rendered | None:
        boxes = boxes_of(page, shown.elements, page.look.size)
        full = {element.box for element in shown.elements if element.value}
        fields = [
            t for t in page.things if t.role in _FIELDS and t.concept != _SECRET and boxes.get(t.number, ()) not in (*full, ())
        ]
        if not fields:
            return None
        clicked = screen.act(Action(kind="click", at=middle(boxes[draw.choice(fields).number])))
        return _done(screen, clicked, Step(action=Action(kind="type", text=draw.choice(WORDS))))

    return does


def _scrolls(page: pages.Page, draw: random.Random) -> Any:
    """A scroll down, or up again after one."""

    def does(screen: Screen, shown: ScreenObservation) -> Rendered | None:
        direction: Any = draw.choice(("down", "up"))
        if direction == "up":
            shown = screen.act(Action(kind="scroll", direction="down"))
        return _done(screen, shown, Step(action=Action(kind="scroll", direction=direction)))

    return does


def _done(screen: Screen, shown: ScreenObservation, step: Step) -> Rendered | None:
    """Two screens with a step between them; None if it changed nothing visible."""
    before, after = png(shown), png(screen.act(step.action))
    return Rendered(pngs=(before, after), boxes={}, step=step) if before != after else None
