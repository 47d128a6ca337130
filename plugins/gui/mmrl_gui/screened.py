"""Common parts of the tasks on single screens: style and coordinate format of answers, and overlays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrl import CoordinateFormat, Overlay, Prompt, Task, UserError
from mmrl.api.coordinates import convert_coordinates
from mmrl.api.simulators.gui import Action
from mmrl.api.tasks import overlays
from mmrl.api.tasks.option_checks import check_choice
from mmrl.api.verifiers.parse import without_thinking
from mmrl_gui import asking, reading
from mmrl_gui.actions import of_data, read
from mmrl_gui.coordinates import Numbers, Size, numbers_for
from mmrl_gui.drawing import ARROWS, words
from mmrl_gui.geometry import inside, iou, middle
from mmrl_gui.names import NoAction, offered


@dataclass(kw_only=True, eq=False)
class Screened(Task):
    """A task on screens."""

    style: str = "json"
    """The requested form of the answer, see `mmrl_gui.asking`."""
    frame: str | None = None
    """Coordinate format of the answer, one of `mmrl.CoordinateFormat`; by default the policy's."""
    grid: Sequence[int] | None = None
    """[columns, rows]: positions are cells of a grid, counted from 0, and mean their middle. For small models."""

    styles: ClassVar[tuple[str, ...]] = asking.STYLES

    def __post_init__(self) -> None:
        check_choice("style", self.style, self.styles)
        if self.frame is not None:
            check_choice("frame", self.frame, [f.value for f in CoordinateFormat])
        if self.grid is not None:
            check_grid(self.grid)

    def numbers(self, size: Size) -> Numbers:
        """The format of positions on a screen of a size."""
        return numbers_for(self.image_processing, size, self.frame, self.grid)

    def meta(self, asks: str, size: Size, **more: Any) -> dict[str, Any]:
        """The meta data of a prompt, for verifiers and display. asks: point, box or action."""
        meta = {"style": self.style, "asks": asks, "size": tuple(size), **more}
        meta |= {"answer_frame": self.frame} if self.frame else {}
        return meta | ({"grid": [int(v) for v in self.grid]} if self.grid else {})

    def overlays(self, prompt: Prompt, completion: str) -> list[Overlay]:
        """The true box or point, and the completion's, on their screen."""
        size, on = prompt.meta["size"], prompt.meta.get("picture", 0)
        true, boxes = prompt.meta.get("true"), prompt.meta.get("boxes") or []
        found = [overlays.box_overlay(corners, size, "true", image=on) for corners in boxes]
        if true and ((done := of_data(true["action"])).to or done.kind == "scroll" or not boxes):
            found += _done(done, size, "true", on)
        action, point, box = _said(completion, self.numbers(size), prompt.meta, "<answer>" in without_thinking(completion))
        if action:
            found += _done(action, size, "said", on)
        if point:
            found.append(overlays.point_overlay(point, size, "said", image=on))
        if box:
            fits = max((iou(box, corners) for corners in boxes), default=0.0)
            found.append(overlays.box_overlay(box, size, "said", f"IoU {fits:.2f}", on))
        return found


def _done(action: Action, size: Size, of: overlays.OverlaySource, image: int) -> list[Overlay]:
    """An action as an arrow or a point; empty if it has no position."""
    if action.kind == "scroll" and action.direction:
        screen = (0, 0, *size)
        x, y = action.at if action.at and inside(action.at, screen) else middle(screen)  # GUI-R1 writes -100, -100 for none
        dx, dy = (side * min(size) / 5 for side in ARROWS[action.direction])
        way = (x - dx, y - dy, x + dx, y + dy)
    elif action.at and action.to:
        way = (*action.at, *action.to)
    else:
        spot = action.at or action.to
        return [overlays.point_overlay(spot, size, of, words(action), image)] if spot else []
    at = convert_coordinates(way, CoordinateFormat.PIXELS, CoordinateFormat.UNIT, size)
    return [Overlay(kind="path", coordinates=at, source=of, label=words(action), image=image)]


def check_grid(grid: Any) -> None:
    """Raise UserError for an invalid grid of cells."""
    whole = isinstance(grid, list | tuple) and len(grid) == 2 and all(type(v) is int and 1 <= v <= 10_000 for v in grid)
    if not whole:
        raise UserError(f"grid = {grid!r:.60} must be [columns, rows], whole numbers from 1 to 10,000")


def _said(completion: str, numbers: Numbers, meta: Mapping[str, Any], tags: bool) -> tuple[Action | None, Any, Any]:
    """(action, None, None), or (None, a point, a box) in pixels, one of which is not None."""
    if meta["asks"] == "action":
        try:
            return read(completion, numbers, tags=tags, names=offered(meta)), None, None
        except NoAction:
            return None, None, None
    text, _ = reading.said(numbers.order.without_tokens(completion), tags)
    y_first = numbers.order.y_first
    point, box = reading.place(text, y_first) if text is not None else (None, None)
    if point is None and box is None and text is not None:
        point = _first_point(text, y_first)
    return None, numbers.pixels(point) if point else None, numbers.pixels_of_box(box) if box else None


def _first_point(text: str, y_first: bool) -> Any:
    """The first of several points, or of a list in a published form after its thought."""
    found = reading.json_said(text.partition("</think>")[2] or text)
    return reading.point_in(found[0], y_first) if isinstance(found, list) and found else None
