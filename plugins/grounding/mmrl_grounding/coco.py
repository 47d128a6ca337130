"""COCO's average precision on one picture, as pycocotools 2.0 computes it, for boxes that are listed by confidence.

pycocotools builds a data set, an index and an evaluation over four ranges of area to answer this; here it takes microseconds.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable, Sequence

from mmrl_grounding.geometry import Box, sides

THRESHOLDS = (*(0.5 + (0.95 - 0.5) / 9 * i for i in range(9)), 0.95)
"""AP's IoU thresholds, from which a box counts as found: numpy's linspace(0.5, 0.95, 10), bit for bit."""
RECALLS = (*(i * 0.01 for i in range(100)), 1.0)
"""The recalls at which precision is read: numpy's linspace(0, 1, 101)."""
MOST = 100
"""Maximum of boxes of a label; further ones are ignored."""
LARGEST = 1e10
"""Square pixels; a larger true box is not counted, nor is one of negative area (reversed in one direction)."""
EPSILON = 2.220446049250313e-16

Labelled = tuple[Box, Hashable]


def average_precision(truth: Sequence[Labelled], found: Sequence[Labelled], thresholds: Sequence[float] = THRESHOLDS) -> float:
    """The mean over the labels of `truth` and over the thresholds of the interpolated precision, 0 to 1.

    truth, found: (box, label); the first found is the most confident. Labels that `truth` doesn't have are left out, as in COCO,
    where each label is a category of its own. -1 when no true box counts, as in pycocotools.
    """
    wanted: dict[Hashable, list[Box]] = {}
    given: dict[Hashable, list[Box]] = {}
    for box, label in truth:
        wanted.setdefault(label, []).append(box)
    for box, label in found:
        if label in wanted and len(boxes := given.setdefault(label, [])) < MOST:
            boxes.append(box)
    values = [v for label, boxes in wanted.items() if (v := _of_label(boxes, given.get(label, []), thresholds)) is not None]
    return sum(values) / len(values) if values else -1.0


def _of_label(truth: list[Box], found: list[Box], thresholds: Sequence[float]) -> float | None:
    """AP of one label; None when none of its boxes counts."""
    true = sorted((_measured(box) for box in truth), key=lambda m: not _counts(m[1]))  # those that count come first
    counts = [_counts(area) for _, area in true]
    if not any(counts):
        return None
    seen = [_measured(box) for box in found]
    near = [_near(box, true, thresholds[0]) for box in seen]
    fair = [_counts(area) for _, area in seen]
    known: dict[tuple[bool, ...], float] = {}
    total = 0.0
    for threshold in thresholds:
        hits = _hits(near, fair, counts, threshold)
        if hits not in known:
            known[hits] = _interpolated(hits, sum(counts))
        total += known[hits]
    return total / len(thresholds)


def _near(box: tuple[Box, float], true: list[tuple[Box, float]], least: float) -> list[tuple[int, float]]:
    """(number, IoU) of the true boxes that a box can take: those from `least` on, or all of them where one IoU is NaN."""
    values = [_iou(box, other) for other in true]
    odd = any(math.isnan(v) for v in values)
    return [(g, v) for g, v in enumerate(values) if odd or v >= least]


def _measured(box: Box) -> tuple[Box, float]:
    """(corners, area) as they come back from COCO's x, y, width, height."""
    x, y, width, height = box[0], box[1], box[2] - box[0], box[3] - box[1]
    return (x, y, x + width, y + height), width * height


def _counts(area: float) -> bool:
    return not (area < 0 or area > LARGEST)


def _iou(a: tuple[Box, float], b: tuple[Box, float]) -> float:
    """NaN where a box with a NaN reaches the other: COCO's C code leaves it out of the overlap and not out of the area."""
    picks = (min, max) if math.isfinite(a[1]) and math.isfinite(b[1]) else (_lower, _higher)
    width, height = sides(a[0], b[0], *picks)
    if width <= 0 or height <= 0:
        return 0.0
    common = width * height
    union = a[1] + b[1] - common
    return common / union if union else math.inf


def _lower(a: float, b: float) -> float:
    """C's fmin: a NaN is left out."""
    return b if math.isnan(a) else a if math.isnan(b) else min(a, b)


def _higher(a: float, b: float) -> float:
    return b if math.isnan(a) else a if math.isnan(b) else max(a, b)


def _hits(near: list[list[tuple[int, float]]], fair: list[bool], counts: list[bool], threshold: float) -> tuple[bool, ...]:
    """For each box that was found, in order: whether it took a true one. A box that took one that doesn't count, or that took
    none and doesn't count itself, is left out."""
    taken: set[int] = set()
    hits = []
    for candidates, counted in zip(near, fair, strict=True):
        best, match = min(threshold, 1 - 1e-10), -1
        for g, value in candidates:
            if g in taken:
                continue
            if match >= 0 and counts[match] and not counts[g]:
                break
            if not value < best:  # of equal ones the last, and a NaN takes every place
                best, match = value, g
        if match >= 0:
            taken.add(match)
        if counts[match] if match >= 0 else counted:
            hits.append(match >= 0)
    return tuple(hits)


def _interpolated(hits: tuple[bool, ...], total: int) -> float:
    """The mean over `RECALLS` of the best precision at that recall or beyond."""
    precision, right = [], 0
    for i, hit in enumerate(hits, 1):
        right += hit
        precision.append(right / (i + EPSILON))
    for i in range(len(precision) - 2, -1, -1):
        precision[i] = max(precision[i], precision[i + 1])
    reached = [0, *(i for i, hit in enumerate(hits) if hit)] if hits else []
    return sum(n * precision[i] for n, i in zip(_recalls(total), reached, strict=False)) / len(RECALLS)


@functools.lru_cache(maxsize=1024)
def _recalls(total: int) -> tuple[int, ...]:
    """How many of `RECALLS` are first reached by the 0th, 1st, 2nd ... of `total` boxes."""
    numbers, found = [0] * (total + 1), 0
    for recall in RECALLS:
        while found < total and found / total < recall:
            found += 1
        numbers[found] += 1
    return tuple(numbers)
