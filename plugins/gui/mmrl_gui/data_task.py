"""Grounding on recorded screens: ScreenSpot, its version 2 and its Pro, GUI-G1's data, your own tables."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from mmrl import Prompt, user_message
from mmrl.api.simulators.gui import Box
from mmrl.api.tasks.option_checks import check_choice, check_type
from mmrl.api.tasks.tables import DataTable
from mmrl_gui import asking, published, sources
from mmrl_gui.geometry import is_number, middle, sound
from mmrl_gui.splits import Data, size_of
from mmrl_gui.tables import Table

THOUGHT = "I look for what is named."


@dataclass(kw_only=True, eq=False)
class GroundingData(Data):
    """Where to click for an instruction: a point, or the element's box."""

    form: str = "point"
    """Answer in our own styles: point or box."""
    boxes: str | None = None
    """Format of boxes: xyxy, two corners, xywh, a corner and the size, or unit, two corners as shares of the picture. By default
    the convention of ScreenSpot (xywh), its Pro and GUI-G1 (xyxy)."""
    whole: bool = True
    """Round boxes to whole pixels, because answers are whole numbers."""

    styles = (*asking.STYLES, "gui-g1", "ui-r1", "infigui-g1")

    def __post_init__(self) -> None:
        check_choice("form", self.form, ("point", "box"))
        check_type("whole", self.whole, bool)
        if self.boxes is not None:
            check_choice("boxes", self.boxes, sources.FORMS)
        if self.style == "brief":
            check_choice("form", self.form, ("point",))
        super().__post_init__()

    def rows(self, found: list[Table]) -> tuple[DataTable, Sequence[str]]:
        rows = sources.elements(found, self.boxes)
        return rows, rows.keys

    def pose(self, row: dict[str, Any], number: int, rows: Any) -> Prompt:
        size = size_of(row["image"])
        box = self._box(row, size)
        if self.whole or self.style == "ui-r1":
            box = _rounded(box)
        more = {key: row[key] for key in ("platform", "type", "group") if row[key]}
        if row["rate"] is not None:
            if not is_number(row["rate"]):
                raise ValueError(f"its rate is {row['rate']!r:.40} and not a number")
            more["rate"] = more["weight"] = float(row["rate"])  # the algorithm gui-g1 weights prompts by `weight`
        asks = {"gui-g1": "box", "ui-r1": "point", "infigui-g1": "point"}.get(self.style, self.form)
        meta = self.meta(asks, size, boxes=[box], instruction=row["instruction"], **more)
        answer: Any = {"action": "click", "bbox": list(box)} if self.style == "ui-r1" else list(box)
        messages = [user_message(self._text(row["instruction"], size), row["image"])]
        if self.style == "infigui-g1":
            messages.insert(0, {"role": "system", "content": published.INFIGUI_G1_SYSTEM})
        return Prompt(id=row["id"], messages=messages, answer=answer, meta=meta)

    def _box(self, row: dict[str, Any], size: tuple[int, int]) -> Box:
        try:
            return sound(sources.corners(row["box"], row["form"], size), size)
        except ValueError as error:
            known = f"; it was read as {row['form']}, boxes = {', '.join(sources.FORMS)} says otherwise" if not self.boxes else ""
            raise ValueError(f"{error}{known}") from None

    def gold(self, prompt: Prompt) -> str:
        numbers, box = self.numbers(prompt.meta["size"]), prompt.meta["boxes"][0]
        if self.style not in asking.STYLES:
            return published.gold_place(self.style, box, numbers, THOUGHT)
        values = numbers.written_box(box) if self.form == "box" else numbers.written(middle(box), box)
        said = asking.answer(self.style, self.form, values, numbers)
        return asking.thought(THOUGHT, said) if self.style == "tags" else said

    def summarise(self, results: list[tuple[Prompt, float]]) -> dict[str, float]:
        """Means for each platform, or each group of ScreenSpot-Pro, for text and icons, and for each combination; `macro` is the
        mean over the combinations of platform and type, the average in SeeClick's tables. The evaluation's own mean is over all
        elements, as in OS-Atlas and ScreenSpot-Pro."""
        figures = means(results, lambda meta: meta.get("group") or meta.get("platform", ""))
        figures |= means(results, lambda meta: meta.get("type", ""))
        cells = means(results, _cell)
        return figures | cells | ({"macro": sum(cells.values()) / len(cells)} if len(cells) > 1 else {})

    def _text(self, instruction: str, size: tuple[int, int]) -> str:
        numbers = self.numbers(size)
        if self.style == "gui-g1":
            return published.GUI_G1.format(instruction)
        if self.style == "ui-r1":
            return published.UI_R1.format(instruction)
        if self.style == "infigui-g1":
            return published.INFIGUI_G1.format(instruction, *self.image_processing.model_size(size))
        return asking.ask(f"Where on this screen do you click to do this: {instruction}", self.style, self.form, numbers)


def means(results: Sequence[tuple[Prompt, float]], name: Callable[[Any], str]) -> dict[str, float]:
    """The mean value of each kind of prompt, by what `name` calls it; prompts without a name are left out."""
    found: dict[str, list[float]] = {}
    for prompt, value in results:
        if called := name(prompt.meta):
            found.setdefault(called, []).append(value)
    return {called: sum(values) / len(values) for called, values in sorted(found.items())}


def _cell(meta: Any) -> str:
    place = meta.get("group") or meta.get("platform", "")
    return f"{place}/{meta['type']}" if place and meta.get("type") else ""


def _rounded(box: Box) -> Box:
    """Whole pixels, except for a box that would lose its area."""
    x1, y1, x2, y2 = (round(v) for v in box)
    return (x1, y1, x2, y2) if x1 < x2 and y1 < y2 else box
