"""Boxes and points on a screen, in plain numbers. A box is x1, y1, x2, y2 in continuous coordinates."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mmrl.api.simulators.gui import Box, Point


def inside(point: Sequence[float], box: Sequence[float]) -> bool:
    """Whether a point lies in a box, its edges included."""
    return box[0] <= point[0] <= box[2] and box[1] <= point[1] <= box[3]


def middle(box: Sequence[float]) -> Point:
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def is_box(box: Sequence[float], limit: float = 1e7) -> bool:
    """Whether four numbers have an area: finite, within +-limit, left of right and above below."""
    x1, y1, x2, y2 = box
    return -limit <= x1 < x2 <= limit and -limit <= y1 < y2 <= limit


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Intersection over union of two boxes with areas, 0 to 1."""
    width = min(a[2], b[2]) - max(a[0], b[0])
    height = min(a[3], b[3]) - max(a[1], b[1])
    common = max(width, 0.0) * max(height, 0.0)
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


def likeness(a: Sequence[float], b: Sequence[float]) -> float:
    """Similarity of the sizes of two boxes, 0 to 1: the harmonic mean of the ratios of their widths and of their heights, each
    the smaller over the larger."""
    width, height = ratio(a[2] - a[0], b[2] - b[0]), ratio(a[3] - a[1], b[3] - b[1])
    return 2 * width * height / (width + height)


def in_polygon(point: Sequence[float], polygon: Sequence[Sequence[float]]) -> bool:
    """Whether a point lies in a polygon, by the number of its edges to the right of the point."""
    x, y = point
    crossed = False
    for (x1, y1), (x2, y2) in zip(polygon, [*polygon[1:], polygon[0]], strict=True):
        if (y1 > y) != (y2 > y) and x < (x2 - x1) * (y - y1) / (y2 - y1) + x1:
            crossed = not crossed
    return crossed


def inner_point(polygon: Sequence[Sequence[float]]) -> Point:
    """A point in a polygon with an area: in the middle of the longest piece of a horizontal line through half its height."""
    top, bottom = min(y for _, y in polygon), max(y for _, y in polygon)
    y = (top + bottom) / 2
    y += 1e-6 * (bottom - top) if any(corner[1] == y for corner in polygon) else 0.0  # a corner would count twice
    edges = zip(polygon, [*polygon[1:], polygon[0]], strict=True)
    xs = sorted((x2 - x1) * (y - y1) / (y2 - y1) + x1 for (x1, y1), (x2, y2) in edges if (y1 > y) != (y2 > y))
    left, right = max(zip(xs[::2], xs[1::2], strict=True), key=lambda piece: piece[1] - piece[0])
    return (left + right) / 2, y


def ratio(a: float, b: float) -> float:
    return min(a, b) / max(a, b)


def apart(a: Sequence[float], b: Sequence[float], size: Sequence[float]) -> float:
    """The distance of two points as a share of a screen's width and height."""
    return math.hypot((a[0] - b[0]) / size[0], (a[1] - b[1]) / size[1])


def sound(box: Any, size: Sequence[int], name: str = "the box") -> Box:
    """A box that has an area on a picture of `size`, clipped to its edges if it exceeds them by a pixel at most.

    Raises ValueError for any other.
    """
    if not isinstance(box, Sequence) or isinstance(box, str) or len(box) != 4:
        raise ValueError(f"{name} is {box!r:.60} and not four numbers")
    if not all(map(is_number, box)):
        raise ValueError(f"{name} is {list(box)!r:.80}, which are not four finite numbers")
    x1, y1, x2, y2 = box
    width, height = size
    if x1 >= x2 or y1 >= y2:
        raise ValueError(f"{name}, {[x1, y1, x2, y2]}, is {'empty' if x1 == x2 or y1 == y2 else 'reversed'}")
    cut = (max(x1, 0), max(y1, 0), min(x2, width), min(y2, height))
    if x1 < -1 or y1 < -1 or x2 > width + 1 or y2 > height + 1 or cut[0] >= cut[2] or cut[1] >= cut[3]:
        raise ValueError(f"{name}, {[x1, y1, x2, y2]}, is outside its picture of {width} x {height}")
    return cut


def is_number(value: Any) -> bool:
    """Whether it is a number that fits a float; an integer may have hundreds of digits."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False
