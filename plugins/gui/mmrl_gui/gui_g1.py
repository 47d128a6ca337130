"""The rewards of GUI-G1, as published, faults included (github.com/Yuqi-Zhou/GUI-G1, commit e581fe9).

Zhou et al. 2025, "GUI-G1: Understanding R1-Zero-Like Training for Visual Grounding in GUI Agents", section 4. Their sum is the
reward. `answer` is the true box in pixels.
"""

from __future__ import annotations

import math
from typing import Any

from mmrl import Case
from mmrl.api.simulators.gui import Box
from mmrl.api.verifiers.parse import MAX_LENGTH, literal
from mmrl_gui.coordinates import numbers_of
from mmrl_gui.geometry import inside, middle

GUARD = 1000.0
"""Largest size reward, and minus the lowest: its harmonic mean has poles outside the picture, where it can be any number."""


def hit(case: Case) -> float:
    """1 when the middle of the box lies in the true box, edges included.

    Read is a Python literal, all of the completion or what follows the first line that is exactly "```json", up to the next
    "```"; its first item's `bbox_2d` counts. Reversed boxes and decimals pass; JSON's `true` does not.

    Known exploits, as published: alone it rewards a box of any size around the middle.
    """
    box = _box(case)
    return float(box is not None and inside(middle(box), case.answer))


def iou(case: Case) -> float:
    """A quarter of the IoU, in which an overlap of one pixel or less, in width or in height, counts as none."""
    box = _box(case)
    if box is None:
        return 0.0
    width = min(box[2], case.answer[2]) - max(box[0], case.answer[0])
    height = min(box[3], case.answer[3]) - max(box[1], case.answer[1])
    common = width * height if width > 1 and height > 1 else 0.0
    union = _area(box) + _area(case.answer) - common
    return 0.25 * common / union if union and math.isfinite(union) else 0.0


class Size:
    """An eighth of the harmonic mean of four numbers, each 1 minus the error of an edge as a share of the picture.

    Known exploits, as published: boxes of a similar size that are far away earn 0.09 and more. Where an error is larger than the
    picture, one of the four is negative and the mean can be any number, also more than that of the right box: it is cut only at
    minus and plus `GUARD`.
    """

    def __call__(self, case: Case) -> float:
        box = _box(case)
        if box is None:
            return 0.0
        sides = numbers_of(case).image or case.meta["image_wh"]
        x1, y1, x2, y2 = (1 - abs(t - f) / sides[i % 2] for i, (t, f) in enumerate(zip(case.answer, box, strict=True)))
        try:
            value = 0.125 * 4 / (1 / x1 + 1 / x2 + 1 / y1 + 1 / y2)
        except ZeroDivisionError:
            return 0.0
        return max(-GUARD, min(GUARD, value)) if math.isfinite(value) else 0.0

    def bounds(self) -> tuple[float, float]:
        """Those of answers in the picture."""
        return -1.0, 0.125


size = Size()


def _box(case: Case) -> Box | None:
    """The first item's box, in pixels of the picture; None if the published code would raise."""
    text = _json_block(case.completion) if len(case.completion) <= MAX_LENGTH else ""
    try:
        listed: Any = literal(text)
        box = listed[0]["bbox_2d"]
        four = [box[i] for i in range(4)]
    except (ValueError, TypeError, KeyError, IndexError):
        return None
    if not all(isinstance(v, int | float) for v in four):
        return None
    try:
        return numbers_of(case).pixels_of_box(four)
    except (ValueError, OverflowError):
        return None


def _json_block(text: str) -> str:
    """What follows the first line that is exactly "```json", up to the next "```"; without such a line all of the text."""
    lines = text.splitlines()
    if "```json" not in lines:
        return text
    return "\n".join(lines[lines.index("```json") + 1 :]).split("```", 1)[0]


def _area(box: Box) -> float:
    return (box[2] - box[0]) * (box[3] - box[1])
