"""The rewards of Visual-RFT's detection, as published, faults included (github.com/Liuziyu77/Visual-RFT, commit 9486633,
`src/virft/src/open_r1/grpo.py`).

Liu et al., "Visual-RFT: Visual Reinforcement Fine-Tuning", arXiv 2503.01785. `answer` is the list of true `{"bbox_2d", "label"}`,
all of the one kind that is asked for. A completion lists `{"Position": [x1, y1, x2, y2], "Confidence": c}` in its answer tag.
Left out: there, math-verify is asked first, which gives 1 by accident if one number of the completion is one of the truth.
"""

from __future__ import annotations

import json
import math
from typing import Any

from mmrl import Case
from mmrl.api.verifiers.parse import MAX_LENGTH
from mmrl_grounding.coordinates import in_pixels

MATCHED = 0.5
"""IoU above which a box is that of an object."""
MOST = 500
"""Boxes of an answer; a longer one counts nothing. Published completions end long before."""
_OPENED, _CLOSED = "<answer>", "</answer>"


def iou(case: Case) -> float:
    """The sum of the IoUs of the boxes that are objects, divided by the number of boxes or of objects, whichever is larger.

    From the most confident on, each box takes the object with the largest IoU that is left, if that is above 0.5.

    Known exploits, as published: labels aren't read; a box that is just above 0.5 counts, one just below lets others have its
    object. A blank answer, or one over several lines, counts nothing, and so does "No Objects" where there are none.
    """
    found = _matched(case)
    if found is None:
        return 0.0
    return _bounded(sum(overlap for overlap, _ in found) / max(len(found), len(case.answer)))


def confidence(case: Case) -> float:
    """The mean over the boxes listed: the confidence of those that are objects, and 1 less it for others.

    Known exploits, as published: a box anywhere with a confidence of 0 earns 1, one of -1 makes up for another box, and objects
    that aren't listed cost nothing.
    """
    found = _matched(case)
    if found is None:
        return 0.0
    return _bounded(sum(sure if overlap else 1 - sure for overlap, sure in found) / len(found))


def _bounded(value: float) -> float:
    return 0.0 if math.isnan(value) else min(max(value, 0.0), 1.0)


def _matched(case: Case) -> list[tuple[float, float]] | None:
    """(IoU with its object or 0, confidence) of each box, the most confident first; None where the published code gives 0."""
    listed, truth = _listed(case.completion[:MAX_LENGTH]), case.answer
    if not listed or truth is None:
        return None
    try:
        unlike = {tuple(one["Position"]): one for one in reversed(listed)}  # of equal positions the first
        boxes = [one for one in listed if unlike[tuple(one["Position"])] is one]
        sure = [(one["Confidence"] + 0.0, one["Position"]) for one in boxes]
        left = [item["bbox_2d"] for item in truth]
        found = []
        for certainty, position in sorted(sure, key=lambda one: one[0], reverse=True):
            box = in_pixels([v + 0 for v in position], case) if left else ()  # where no object is left, nothing is read
            overlaps = [_iou(wanted, box) for wanted in left]
            best = max(overlaps, default=0.0)
            found.append((best if best > MATCHED else 0.0, certainty))
            if best > MATCHED:
                left.pop(overlaps.index(best))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return found


def _listed(completion: str) -> list[Any]:
    """What is listed, as it is read there: from the first answer tag to its end, or of a text without one line between its tags,
    all of it. A list that is cut off ends with its last whole box."""
    lines = (line.partition(_OPENED)[2].partition(_CLOSED) for line in completion.split("\n"))
    answer = next((inside for inside, closed, _ in lines if closed), completion)
    said = answer.strip().replace("[[", "[").replace("]]", "]").replace("\n", "")
    text = f"{_OPENED}{said}{_CLOSED}"
    inside = text[len(_OPENED) : text.index(_CLOSED)]
    if not inside.endswith("]"):
        inside = inside.rsplit("},", 1)[0] + "}]"
    try:
        found = json.loads(inside.replace("'", '"'))
    except (ValueError, RecursionError):
        return []
    usable = isinstance(found, list) and 0 < len(found) <= MOST and all(isinstance(one, dict) for one in found)
    return found if usable else []


def _iou(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """Of boxes of two corners; 0 where they don't overlap. Raises ValueError for another number of numbers."""
    (x1, y1, x2, y2), (a1, b1, a2, b2) = one, other
    width, height = min(x2, a2) - max(x1, a1), min(y2, b2) - max(y1, b1)
    if not (width > 0 and height > 0):
        return 0.0
    return width * height / ((x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - width * height)
