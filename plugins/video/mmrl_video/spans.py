"""Spans of time, (start, end) in seconds, and their overlap."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

Span = tuple[float, float]


def iou(a: Sequence[Sequence[float]], b: Sequence[Sequence[float]]) -> float:
    """Intersection over union of two sets of spans, 0 to 1: the temporal IoU of single spans.

    Spans of one set that overlap or touch count once. 0 if neither covers anything.
    """
    first, second = merged(a), merged(b)
    shared = overlap(first, second)
    whole = total(first) + total(second) - shared
    return min(1.0, shared / whole) if whole > 0 else 0.0


def merged(spans: Iterable[Sequence[float]]) -> list[Span]:
    """The same time in spans that don't touch, in order."""
    found: list[Span] = []
    for start, end in sorted((float(s), float(e)) for s, e in spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], end)
        else:
            found.append((start, end))
    return found


def overlap(a: Sequence[Span], b: Sequence[Span]) -> float:
    """Seconds that two lists of `merged` spans share."""
    shared, i, j = 0.0, 0, 0
    while i < len(a) and j < len(b):
        shared += max(0.0, min(a[i][1], b[j][1]) - max(a[i][0], b[j][0]))
        if a[i][1] < b[j][1]:
            i += 1
        else:
            j += 1
    return shared


def total(spans: Iterable[Span]) -> float:
    return sum(end - start for start, end in spans)


def hull_iou(found: Sequence[float], true: Sequence[float]) -> float:
    """The intersection of two spans over the time from the earlier start to the later end, as in much published code; it differs
    from `iou` only for a reversed span, and is 0 there. 0 for an empty hull, and for non-finite numbers.
    """
    shared = min(found[1], true[1]) - max(found[0], true[0])
    hull = max(found[1], true[1]) - min(found[0], true[0])
    return shared / hull if shared > 0 and 0 < hull < math.inf else 0.0
