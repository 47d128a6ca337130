"""Boxes and points: definitions of the quantities in this plugin's rewards.

A box is (x1, y1, x2, y2): left, top, right, bottom, in continuous coordinates, so that its width is x2 - x1. All functions
work on plain numbers, and on arrays that broadcast when `low` and `high` are numpy's `minimum` and `maximum`: four arrays [M,
1] against four [1, N] give [M, N].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

Box = Any  # four numbers, or four arrays
Pick = Callable[[Any, Any], Any]


def sides(a: Box, b: Box, low: Pick = min, high: Pick = max) -> tuple[Any, Any]:
    """(width, height) of the overlap of two boxes; negative where they are apart."""
    return low(a[2], b[2]) - high(a[0], b[0]), low(a[3], b[3]) - high(a[1], b[1])


def overlap(a: Box, b: Box, low: Pick = min, high: Pick = max, extra: float = 0) -> Any:
    """The area of the overlap of two boxes. extra: added to each side, 1 if a box includes the pixels of both its edges."""
    width, height = sides(a, b, low, high)
    return high(width + extra, 0) * high(height + extra, 0)


def area(box: Box, extra: float = 0) -> Any:
    """Width times height; negative for a box that is reversed in one direction."""
    return (box[2] - box[0] + extra) * (box[3] - box[1] + extra)


def iou(a: Box, b: Box, low: Pick = min, high: Pick = max, extra: float = 0) -> Any:
    """Intersection over union, 0 to 1. Plain boxes without an area raise ZeroDivisionError."""
    common = overlap(a, b, low, high, extra)
    return common / (area(a, extra) + area(b, extra) - common)


def giou(a: Box, b: Box, low: Pick = min, high: Pick = max) -> Any:
    """Generalised IoU, -1 to 1 (Rezatofighi et al. 2019): the IoU less the share of the hull that neither box covers."""
    common = overlap(a, b, low, high)
    union = area(a) + area(b) - common
    hull = (high(a[2], b[2]) - low(a[0], b[0])) * (high(a[3], b[3]) - low(a[1], b[1]))
    return common / union - (hull - union) / hull


def inside(point: Any, box: Box) -> Any:
    """Whether a point lies in a box, its edges included."""
    return (point[0] >= box[0]) & (point[0] <= box[2]) & (point[1] >= box[1]) & (point[1] <= box[3])


def middle(x1: float, y1: float, x2: float, y2: float) -> tuple[float, float]:
    """The middle of a box in whole pixels, or with its fractions where the whole pixel is outside of the box."""
    whole = (x1 + x2) // 2, (y1 + y2) // 2
    return whole[0] if whole[0] >= x1 else (x1 + x2) / 2, whole[1] if whole[1] >= y1 else (y1 + y2) / 2


def distance_to(point: Sequence[float], box: Box) -> float:
    """How far a point is from a box, 0 inside."""
    return math.hypot(max(box[0] - point[0], point[0] - box[2], 0), max(box[1] - point[1], point[1] - box[3], 0))


def is_box(box: Box, limit: float = 1e7) -> bool:
    """Whether four numbers are a box that has an area: finite, within +-limit, left of right and above below."""
    x1, y1, x2, y2 = box
    return -limit <= x1 < x2 <= limit and -limit <= y1 < y2 <= limit
