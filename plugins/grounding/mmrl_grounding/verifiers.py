"""Our verifiers. The truth is in pixels of the original picture, the answer in the coordinate format of the policy or of the
task.

`case.answer` is a box, `[x1, y1, x2, y2]`, for `iou`, `giou` and `point`; a list of `{"bbox_2d", "label"}` for `ap` and
`hungarian`, and for a `point` on any of them; a whole number for `count`. The truth is compared as rounded in the answer's
format, so that rounding costs nothing.
"""

from __future__ import annotations

import math
from typing import Any, Literal

from mmrl import Case, Score
from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.verifiers.parse import fenced_blocks, thinks_and_answers_once
from mmrl_grounding import geometry, reading
from mmrl_grounding.coco import THRESHOLDS, average_precision
from mmrl_grounding.coordinates import format_of, in_pixels, truth_as_written
from mmrl_grounding.reading import Listed

# -- one box ----------------------------------------------------------------------------------------------------------------


def iou(case: Case, threshold: float = 0.0, graded: bool = True) -> Score:
    """The IoU of the one box that is answered and the true one, 0 to 1.

    threshold: an IoU below it counts 0. graded: if false, every IoU from the threshold on counts 1.

    Known exploits: a box over the whole picture earns the object's share of it, unless `threshold` is above that.
    Several boxes, reversed ones, and ones without an area give 0.
    """
    box, why = one_box(case)
    if box is None:
        return Score(0.0, detail=why)
    value = geometry.iou(box, truth_as_written(_true_box(case), case))
    kept = value >= threshold and value > 0
    return Score(float(kept) * (value if graded else 1.0), detail=f"IoU {value:.3f}")


def giou(case: Case) -> Score:
    """The generalised IoU of the one box that is answered and the true one, -1 to 1: it also grades misses by distance.

    An unreadable answer is -1, and so is a box that exceeds the picture by more than a pixel: a larger box would tell less about
    the object's place, and its value would be nearer to 0.

    Known exploits: a box over the whole picture earns the object's share of it, 0.04 for one of a fifth of its sides, where an
    honest near miss is below 0; and any guess is better than none.
    """
    box, why = one_box(case)
    if box is None or _leaves(box, case):
        return Score(-1.0, detail=why or "beyond the picture")
    value = geometry.giou(box, truth_as_written(_true_box(case), case))
    return Score(max(-1.0, min(1.0, value)), detail=f"GIoU {value:.3f}")


def point(case: Case, graded: bool = False) -> Score:
    """1 when the one point that is answered lies in the true box, its edges included, or in any of several.

    graded: outside it the value falls with the distance, to 0 at one diagonal of the box from it.

    Known exploits: none of the point alone; graded, the middle of the picture earns something wherever objects are large.
    """
    text, why = reading.said(case)
    at = None if text is None else reading.point(text, format_of(case).y_first)
    if at is None:
        return Score(0.0, detail=why or "no point, or more than one")
    boxes = _true_boxes(case)
    if any(geometry.inside(at, truth_as_written(box, case)) for box in boxes):
        return Score(1.0, detail="inside")
    here = in_pixels(at, case)
    apart = min(geometry.distance_to(here, box) / math.hypot(box[2] - box[0], box[3] - box[1]) for box in boxes)
    return Score(max(0.0, 1.0 - apart) if graded else 0.0, detail=f"{apart:.2f} diagonals off")


# -- several boxes ----------------------------------------------------------------------------------------------------------


def ap(case: Case, only_50: bool = False, length: bool = False) -> Score:
    """COCO's average precision of the boxes, in listed order of confidence: over IoU 0.5 to 0.95, and over the labels of the
    truth.

    only_50: at IoU 0.5 alone. length: times the number of true boxes over that of listed ones, 1 at most, so that all superfluous
    boxes lower the value; without it only duplicates do, by their share of the list. If there are no true boxes, an empty list or
    "none" is 1, and anything else 0.

    Known exploits: without `length`, as in every AP, other boxes that are listed after the right ones cost nothing.
    """
    found, why = listed(case)
    if found is None:
        return Score(0.0, detail=why)
    truth = truth_of(case)
    if not truth or not found:
        return Score(float(not truth and not found), detail=f"{len(found)} boxes, {len(truth)} true ones")
    given = [(one.box, one.label) for one in found if one.box is not None]
    value = max(0.0, average_precision(truth, given, THRESHOLDS[:1] if only_50 else THRESHOLDS))
    share = min(1.0, len(truth) / len(found)) if length else len(set(found)) / len(found)
    return Score(_full(value) * share, detail=f"AP {value:.3f}, {len(found)} boxes, {len(truth)} true ones")


def hungarian(case: Case, threshold: float = 0.0) -> Score:
    """The sum of the IoUs of matched boxes of equal label, over the larger number of boxes, listed or true: 0 to 1.

    The matching is the one with the largest sum. threshold: an IoU below it counts 0.

    Known exploits: for a single object, a box over the whole picture earns the object's share of it. Every superfluous box, a
    second one of the same thing and one that can't be read lower the value.
    """
    found, why = listed(case)
    if found is None:
        return Score(0.0, detail=why)
    truth = truth_of(case)
    if not truth or not found:
        return Score(float(not truth and not found), detail=f"{len(found)} boxes, {len(truth)} true ones")
    values = [[_agreement(one, box, label, threshold) for box, label in truth] for one in found]
    total = _best_sum(values)
    return Score(total / max(len(found), len(truth)), detail=f"IoUs {total:.3f}, {len(found)} boxes, {len(truth)} true ones")


def _agreement(one: Listed, box: tuple[float, ...], label: str, threshold: float) -> float:
    if one.box is None or one.label != label:
        return 0.0
    value = geometry.iou(one.box, box)
    return value if value >= threshold else 0.0


def _best_sum(values: list[list[float]]) -> float:
    """The largest sum of values of which no two share a row or a column."""
    if len(values) == 1 or len(values[0]) == 1:
        return max(max(row) for row in values)
    from scipy.optimize import linear_sum_assignment

    return sum(values[i][j] for i, j in zip(*linear_sum_assignment(values, maximize=True), strict=True))


def _full(value: float) -> float:
    """pycocotools returns 0.9999999999999998 for a perfect answer."""
    return 1.0 if value > 1 - 1e-9 else value


# -- a number, and the form -------------------------------------------------------------------------------------------------


def count(case: Case) -> Score:
    """1 when the answer is the number of objects, as digits.

    Known exploits: none; where few numbers are likely, a guess is often right.
    """
    text, why = reading.said(case)
    value = None if text is None else reading.count(text)
    if value is None:
        return Score(0.0, detail=why or "no number, or more than a number")
    return Score(float(value == case.answer), detail=f"answered {value:g}")


def form(case: Case) -> Score:
    """1 when the completion has the form that the task requests: `meta["style"]` is tags, json or short, `meta["asks"]` is box,
    boxes, point or count.

    tags: one thought and one answer, neither empty, each in its tag, nothing else; the answer is JSON. json: JSON and nothing
    else. short: numbers and nothing else, for boxes a label before them. No box may be reversed or listed twice, each
    of several needs a label, and at most two more than there are.

    Known exploits: positions are not checked; combine it with a reward that does.
    """
    text, why = reading.said(case)
    style, asks = case.meta.get("style", "tags"), case.meta.get("asks", "box")
    if text is None:
        return Score(0.0, detail=why)
    if style == "tags" and not thinks_and_answers_once(case.completion):
        return Score(0.0, detail="not one thought, one answer and nothing else")
    bare = _whole_json(text) if style != "short" else text if text.strip()[:1] not in ("[", "{", "`") else None
    if bare is None:
        return Score(0.0, detail="more than JSON" if style != "short" else "more than numbers")
    if asks != "count" and case.answer and format_of(case) is CoordinateFormat.LOCATION_TOKENS and "<loc" not in case.completion:
        return Score(0.0, detail="no location tokens")
    return Score(float(_holds(bare, asks, case.answer)), detail=f"asked for: {asks}")


def _holds(text: str, asks: Literal["box", "boxes", "point", "count"], truth: Any) -> bool:
    if asks == "point":
        return reading.point(text) is not None and len(text) < 200
    if asks == "count":
        return reading.count(text) is not None
    found = reading.boxes(text)
    if found is None or any(one.box is None for one in found):
        return False
    if asks == "box":
        return len(found) == 1
    few = len(found) <= len(truth or ()) + 2
    return few and all(one.label for one in found) and len(set(found)) == len(found)


def _whole_json(text: str) -> str | None:
    """The text, without its ``` fence, when it begins and ends as JSON does, or is a number."""
    plain = text.strip()
    if plain.startswith("```") and plain.endswith("```") and plain.count("```") == 2:
        plain = next(fenced_blocks(plain), "").strip()
    return plain if plain.isdecimal() or (plain[:1], plain[-1:]) in (("[", "]"), ("{", "}")) else None


# -- the case ---------------------------------------------------------------------------------------------------------------


def one_box(case: Case) -> tuple[tuple[float, ...] | None, str]:
    text, why = reading.said(case)
    box = None if text is None else reading.box(text, format_of(case).y_first)
    return box, why or ("" if box else "not one box with an area")


def listed(case: Case) -> tuple[list[Listed] | None, str]:
    """The boxes of the answer; if the truth has only one label, boxes without a label get it."""
    text, why = reading.said(case)
    found = None if text is None else reading.boxes(text, format_of(case).y_first)
    if found is None:
        return None, why or f"no list of at most {reading.MOST} boxes"
    labels = {label for _, label in truth_of(case)}
    if len(labels) == 1:
        only = next(iter(labels))
        found = [one if one.label else one._replace(label=only) for one in found]
    return found, ""


def truth_of(case: Case) -> list[tuple[tuple[float, ...], str]]:
    """(box in the answer's coordinate format, label) of each true box."""
    return [(truth_as_written(item["bbox_2d"], case), reading.fold(item.get("label", ""))) for item in case.answer or ()]


def _leaves(box: tuple[float, ...], case: Case) -> bool:
    """Whether a box exceeds its picture by more than a pixel, or by more than the resolution of the answer's numbers. False
    without the picture's size."""
    if not case.image_sizes:
        return False
    written = format_of(case)
    sides, ends = written.swapped(case.image_sizes[0]), truth_as_written((0, 0, *case.image_sizes[0]), case)[2:]
    step = 0.001 if written is CoordinateFormat.UNIT else 1
    over = [max(step, end / side) for end, side in zip(ends, sides, strict=True)]
    return box[0] < -over[0] or box[1] < -over[1] or box[2] > ends[0] + over[0] or box[3] > ends[1] + over[1]


def _true_boxes(case: Case) -> list[Any]:
    """The boxes in any of which a point may lie."""
    if isinstance(case.answer, list) and case.answer and isinstance(case.answer[0], dict):
        return [one["bbox_2d"] for one in case.answer]
    return [_true_box(case)]


def _true_box(case: Case) -> Any:
    return case.answer["bbox_2d"] if isinstance(case.answer, dict) else case.answer
