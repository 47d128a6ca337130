"""Grounding on recorded screens: ScreenSpot, its version 2 and its Pro, OSWorld-G, UI-Vision, MMBench-GUI L2, GUI-G1's data, your
own tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl import Prompt, user_message
from mmrl.api.simulators.gui import Box
from mmrl.api.tasks.option_checks import check_choice, check_type
from mmrl.api.tasks.tables import DataTable
from mmrl_gui import asking, published, sources
from mmrl_gui.geometry import inner_point, is_number, middle, sound
from mmrl_gui.layouts import POLYGON, REFUSAL
from mmrl_gui.reading import LIMIT
from mmrl_gui.splits import Data, size_of
from mmrl_gui.tables import Table

THOUGHT = "I look for what is named."
NOWHERE = " If it isn't on the screen, both numbers are -1."
"""Said of every element of OSWorld-G, since some aren't there."""


@dataclass(kw_only=True, eq=False)
class GroundingData(Data):
    """Where to click for an instruction: a point, or the element's box."""

    form: str = "point"
    """Answer in our own styles: point or box."""
    boxes: str | None = None
    """Format of boxes: xyxy, two corners, xywh, a corner and the size, or unit, two corners as shares of the picture. By default
    the convention of ScreenSpot (xywh), its Pro and GUI-G1 (xyxy)."""
    whole: bool | None = None
    """Round boxes to whole pixels, because answers are whole numbers; by default except those of the benchmarks, whose metrics
    take them as they are."""

    styles = (*asking.STYLES, "gui-g1", "ui-r1", "infigui-g1")

    def __post_init__(self) -> None:
        check_choice("form", self.form, ("point", "box"))
        if self.whole is not None:
            check_type("whole", self.whole, bool)
        if self.boxes is not None:
            check_choice("boxes", self.boxes, sources.FORMS)
        if self.style in ("brief", "ui-tars"):
            check_choice("form", self.form, ("point",))
        super().__post_init__()

    def rows(self, found: list[Table]) -> tuple[DataTable, Sequence[str]]:
        rows = sources.elements(found, self.boxes)
        return rows, rows.keys

    def pose(self, row: dict[str, Any], number: int, rows: Any) -> Prompt:
        size = size_of(row["image"])
        more = {key: row[key] for key in ("platform", "type", "group", "level") if row[key]}
        more |= {"labels": list(row["labels"])} if row["labels"] else {}
        if row["form"] in (POLYGON, REFUSAL):
            return self._other(row, size, more)
        box = self._box(row, size)
        whole = self.whole if self.whole is not None else not row["exact"]
        if whole or self.style == "ui-r1":
            box = _rounded(box)
        if row["rate"] is not None:
            if not is_number(row["rate"]):
                raise ValueError(f"its rate is {row['rate']!r:.40} and not a number")
            more["rate"] = more["weight"] = float(row["rate"])  # the algorithm gui-g1 weights prompts by `weight`
        asks = {"gui-g1": "box", "ui-r1": "point", "infigui-g1": "point"}.get(self.style, self.form)
        meta = self.meta(asks, size, boxes=[box], instruction=row["instruction"], **more)
        answer: Any = {"action": "click", "bbox": list(box)} if self.style == "ui-r1" else list(box)
        messages = [user_message(self._text(row["instruction"], size, row["may_be_gone"]), row["image"])]
        if self.style == "infigui-g1":
            messages.insert(0, {"role": "system", "content": published.INFIGUI_G1_SYSTEM})
        return Prompt(id=row["id"], messages=messages, answer=answer, meta=meta)

    def _other(self, row: dict[str, Any], size: tuple[int, int], more: dict[str, Any]) -> Prompt:
        """A prompt of OSWorld-G about an element that is no box: a polygon, or nothing, since it isn't there."""
        if self.style not in asking.STYLES or self.form != "point":
            raise ValueError(f"a {row['form']} needs a style of {', '.join(asking.STYLES)} and form = 'point'")
        if row["form"] == POLYGON:
            corners = row["box"] if isinstance(row["box"], list) else []
            if len(corners) < 6 or len(corners) % 2 or not all(map(is_number, corners)):
                raise ValueError(f"its polygon is {row['box']!r:.60} and not x, y of at least three corners")
            xs, ys = corners[::2], corners[1::2]
            box = sound([min(xs), min(ys), max(xs), max(ys)], size, "the polygon")
            answer, boxes = {"box": list(box), "polygon": [list(corner) for corner in zip(xs, ys, strict=True)]}, [box]
        elif self.numbers(size).is_coarse:
            raise ValueError("a place off the screen, for what isn't there, is none of a grid and has no location token")
        else:
            answer, boxes = {"box": [-LIMIT, -LIMIT, -1e-9, -1e-9]}, []  # both coordinates negative, as in its evaluation
        meta = self.meta("point", size, boxes=boxes, instruction=row["instruction"], **more)
        messages = [user_message(self._text(row["instruction"], size, True), row["image"])]
        return Prompt(id=row["id"], messages=messages, answer=answer, meta=meta)

    def _box(self, row: dict[str, Any], size: tuple[int, int]) -> Box:
        try:
            return sound(sources.corners(row["box"], row["form"], size), size)
        except ValueError as error:
            known = f"; it was read as {row['form']}, boxes = {', '.join(sources.FORMS)} says otherwise" if not self.boxes else ""
            raise ValueError(f"{error}{known}") from None

    def gold(self, prompt: Prompt) -> str:
        numbers, boxes = self.numbers(prompt.meta["size"]), prompt.meta["boxes"]
        if self.style not in asking.STYLES:
            return published.gold_place(self.style, boxes[0], numbers, THOUGHT)
        polygon = prompt.answer.get("polygon") if isinstance(prompt.answer, dict) else None
        if not boxes:
            values: Sequence[float] = (-1, -1)
        elif polygon:
            values = numbers.written(inner_point(polygon))
        else:
            values = numbers.written_box(boxes[0]) if self.form == "box" else numbers.written(middle(boxes[0]), boxes[0])
        return asking.answer(self.style, self.form, values, numbers, THOUGHT)

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """Means for each platform, or each group of ScreenSpot-Pro and UI-Vision, for text and icons, for each level, for each
        category of OSWorld-G, and for each combination. `macro` is the mean over the combinations of platform and type, the
        average in SeeClick's tables; where there are levels, over these, as in MMBench-GUI's and UI-Vision's. The evaluation's
        own mean is over all elements, as in OS-Atlas, ScreenSpot-Pro and OSWorld-G."""
        levels = means(results, lambda meta: meta.get("level", ""))
        cells = means(results, lambda meta: _cell(meta, "type"))
        figures = means(results, _place) | means(results, lambda meta: meta.get("type", "")) | levels | cells
        for label in sorted({label for prompt, _ in results for label in prompt.meta.get("labels", ())}):
            values = [value for prompt, value in results if label in prompt.meta.get("labels", ())]
            figures[label] = sum(values) / len(values)
        figures |= means(results, lambda meta: _cell(meta, "level"))
        over = levels or cells
        return figures | ({"macro": sum(over.values()) / len(over)} if len(over) > 1 else {})

    def _text(self, instruction: str, size: tuple[int, int], nowhere: bool = False) -> str:
        numbers = self.numbers(size)
        if self.style == "gui-g1":
            return published.GUI_G1.format(instruction)
        if self.style == "ui-r1":
            return published.UI_R1.format(instruction)
        if self.style == "infigui-g1":
            return published.INFIGUI_G1.format(instruction, *self.image_processing.model_size(size))
        question = f"Where on this screen do you click to do this: {instruction}"
        return asking.ask(question, self.style, self.form, numbers) + (NOWHERE if nowhere else "")


def means(results: Sequence[tuple[Prompt, float]], name: Callable[[Any], str]) -> dict[str, float]:
    """The mean value of each kind of prompt, by what `name` calls it; prompts without a name are left out."""
    found: dict[str, list[float]] = {}
    for prompt, value in results:
        if called := name(prompt.meta):
            found.setdefault(called, []).append(value)
    return {called: sum(values) / len(values) for called, values in sorted(found.items())}


def _place(meta: Any) -> str:
    return str(meta.get("group") or meta.get("platform", ""))


def _cell(meta: Any, by: str) -> str:
    return f"{_place(meta)}/{meta[by]}" if _place(meta) and meta.get(by) else ""


def _rounded(box: Box) -> Box:
    """Whole pixels, except for a box that would lose its area."""
    x1, y1, x2, y2 = (round(v) for v in box)
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else box
