"""What all tasks of this plugin share: how an answer is asked for, in which numbers, and how it is shown to people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl import Frame, Prompt, Task, UserError
from mmrl.screens import Action
from mmrl.tasks import one_of
from mmrl_gui import asking, reading
from mmrl_gui.actions import NoAction, of_data, read
from mmrl_gui.frames import Numbers, Size, numbers_for
from mmrl_gui.marks import marked


@dataclass(kw_only=True, eq=False)
class Screened(Task):
    """A task on screens."""

    style: str = "json"
    """How the answer is asked for, see `mmrl_gui.asking`."""
    frame: str | None = None
    """The numbers of the answer: pixels, model-pixels, thousandths or unit; by default those that the policy writes."""
    grid: Sequence[int] | None = None
    """[columns, rows]: places are the cells of a grid, counted from 0, and their middle is meant. For small models."""

    styles: ClassVar[tuple[str, ...]] = asking.STYLES

    def __post_init__(self) -> None:
        one_of("style", self.style, self.styles)
        if self.frame is not None:
            one_of("frame", self.frame, [f.value for f in Frame])
        if self.grid is not None:
            check_grid(self.grid)

    def numbers(self, size: Size) -> Numbers:
        """How places are written on a screen of a size."""
        return numbers_for(self.eyes, size, self.frame, self.grid)

    def meta(self, asks: str, size: Size, **more: Any) -> dict[str, Any]:
        """What verifiers and people need of a prompt. asks: point, box or action."""
        meta = {"style": self.style, "asks": asks, "size": tuple(size), **more}
        meta |= {"answer_frame": self.frame} if self.frame else {}
        return meta | ({"grid": [int(v) for v in self.grid]} if self.grid else {})

    def shows(self, prompt: Prompt, completion: str) -> Any:
        """The screen with the true box in green and with what the completion says in orange; None where it says nothing."""
        from mmrl.media import load_image

        size = prompt.meta["size"]
        numbers, tags = self.numbers(size), "<answer>" in completion
        boxes = prompt.meta.get("boxes") or []
        picture = load_image(prompt.images[prompt.meta.get("picture", 0)])
        action, point, box = _said(completion, numbers, prompt.meta["asks"], tags)
        if action is None and point is None and box is None:
            return None
        true = prompt.meta.get("true")
        return marked(picture, boxes, action, point, box, true=of_data(true["action"]) if true else None)


def check_grid(grid: Any) -> None:
    """Refuse what is no grid of cells."""
    whole = isinstance(grid, list | tuple) and len(grid) == 2 and all(type(v) is int and 1 <= v <= 10_000 for v in grid)
    if not whole:
        raise UserError(f"grid = {grid!r:.60} must be [columns, rows], whole numbers from 1 to 10,000")


def _said(completion: str, numbers: Numbers, asks: str, tags: bool) -> tuple[Action | None, Any, Any]:
    """(action, None, None), or (None, a point, a box) in pixels, of which one is there."""
    if asks == "action":
        try:
            return read(completion, numbers, tags=tags), None, None
        except NoAction:
            return None, None, None
    text, _ = reading.said(completion, tags)
    point, box = reading.place(text) if text is not None else (None, None)
    if point is None and box is None and text is not None:
        point = _first_point(text)
    return None, numbers.pixels(point) if point else None, numbers.pixels_of_box(box) if box else None


def _first_point(text: str) -> Any:
    """The first of several points, or of a list in a published form behind its thought."""
    found = reading.only_json(text.partition("</think>")[2] or text)
    return reading.point_in(found[0]) if isinstance(found, list) and found else None
