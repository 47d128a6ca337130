"""Boxes over time: parsing, comparison with the true ones, and coordinate formats.

The truth is in pixels of the clip, completions in the policy's coordinate format, or in the one that a task sets with
`meta["answer_frame"]`. The clip's size is that of the case's first picture, or `meta["size"]`; without either, numbers are not
converted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from mmrl import Case
from mmrl.api.coordinates import CoordinateFormat, convert_coordinates
from mmrl_video.reading import only_json, seconds

Box = tuple[float, float, float, float]
MOST = 256
"""Maximum of boxes in an answer."""
LONGEST = 20_000
"""Maximum of characters of a list."""

LIMIT = 1e7
KEYS, TIMES, LISTS = ("bbox_2d", "bbox", "box", "box_2d"), ("time", "t", "timestamp", "second"), ("boxes", "track", "objects")
_NUMBER = re.compile(r"-?[0-9]{1,9}(?:\.[0-9]{1,15})?")
_MARKS = str.maketrans(dict.fromkeys("[](),;`", " "))


class Placed(NamedTuple):
    """A box at a time."""

    time: float | None
    """Seconds; None if the answer has boxes without times."""
    box: Box | None
    """x1, y1, x2, y2 as written; None for one that is reversed or empty."""


def placed(text: str) -> list[Placed] | None:
    """The boxes of an answer; None if it is not a list of boxes. A JSON list of boxes, or of objects with `bbox_2d` and
    `time`; or a line for each, `12 34 56 78`, or `1.5: 12 34 56 78`."""
    if len(text) > LONGEST:
        return None
    value = only_json(text)
    if isinstance(value, Mapping):
        value = next((value[key] for key in LISTS if key in value), None)
    if isinstance(value, list) and len(value) <= MOST:
        found = [_of_json(one) for one in value]
    else:
        lines = [line for line in text.split("\n") if line.strip()] if value is None else []
        found = [_of_line(line) for line in lines[: MOST + 1]]
    listed = [one for one in found if one is not None]
    return listed if 0 < len(listed) == len(found) <= MOST else None


def agreement(found: Sequence[Placed], true: Sequence[Placed], shown: int = 0) -> float:
    """The sum of the IoUs of boxes of the same time over the larger number of boxes, found or true: 0 to 1.

    Boxes without times are compared in order, and may leave out the first `shown` true ones, which are in the prompt and earn
    nothing. Each box with a time belongs to the true one that is nearest in time, within half the smallest interval; of several
    for one the first counts.
    """
    pairs: dict[int, Box | None] = {}
    timed = all(one.time is not None for one in true)
    start = shown if len(found) == len(true) - shown and all(one.time is None for one in found) else 0
    for place, one in enumerate(found):
        at: int | None = start + place
        if one.time is not None and timed:
            at = _next(one.time, [entry.time for entry in true if entry.time is not None])
        if at is not None and at < len(true):
            pairs.setdefault(at, one.box)
    values = [iou(box, true[at].box) for at, box in pairs.items() if at >= shown]
    superfluous = len(found) - sum(at < shown for at in pairs)
    most = max(len(true) - shown, superfluous)
    return sum(values) / most if most > 0 else 0.0


def iou(a: Box | None, b: Box | None) -> float:
    """Intersection over union of two boxes, 0 to 1; 0 if one is None."""
    if a is None or b is None:
        return 0.0
    common = max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    return common / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common)


def truth(entries: Sequence[Any], case: Case) -> list[Placed]:
    """The true boxes, `[x1, y1, x2, y2]` or `{"time", "bbox_2d"}`, in the answer's coordinate format, rounded."""
    listed = []
    for entry in entries:
        one = _of_json(entry)
        if one is None or one.box is None:
            raise ValueError(f"the true box {entry!r:.80} has no area")
        listed.append(Placed(one.time, written(one.box, case)))
    return listed


def written(box: Box, case: Case) -> Box:
    """Pixels of the clip -> as written in an answer to this case, see `CoordinateFormat.rounded`; pixels of the clip are
    unchanged. A box keeps an area."""
    frame = CoordinateFormat(case.meta["answer_frame"]) if case.meta.get("answer_frame") else case.coordinate_format
    size = case.image_sizes[0] if case.image_sizes else tuple(case.meta.get("size", ()))
    if frame is CoordinateFormat.PIXELS or len(size) != 2:
        return box
    seen = case.model_sizes[0] if case.model_sizes else size
    exact = convert_coordinates(box, CoordinateFormat.PIXELS, frame, (size[0], size[1]), (seen[0], seen[1]))
    return _box(frame.rounded(exact, lambda numbers: _box(numbers) is not None)) or box


def _next(time: float, times: Sequence[float]) -> int | None:
    """Index of the nearest of the times; None if none is near."""
    near = min(range(len(times)), key=lambda i: abs(times[i] - time))
    ordered = sorted(times)
    gaps = [b - a for a, b in pairwise(ordered) if b > a]
    return near if abs(times[near] - time) <= min(gaps, default=1.0) / 2 else None


def _of_json(value: Any) -> Placed | None:
    time = None
    if isinstance(value, Mapping):
        time = next((seconds(value[key]) for key in TIMES if key in value), None)
        value = next((value[key] for key in KEYS if key in value), None)
    if not isinstance(value, list | tuple) or len(value) != 4:
        return None
    if not all(isinstance(v, int | float) and not isinstance(v, bool) for v in value):
        return None
    return Placed(time, _box(value))


def _of_line(line: str) -> Placed | None:
    head, colon, rest = line.partition(":") if line.count(":") == 1 else ("", "", line)
    time = seconds(head.strip()) if colon else None
    words = rest.translate(_MARKS).split()
    if (colon and time is None) or len(words) != 4 or not all(map(_NUMBER.fullmatch, words)):
        return None
    return Placed(time, _box([float(word) for word in words]))


def _box(values: Sequence[float]) -> Box | None:
    x1, y1, x2, y2 = values
    if not (
        -LIMIT <= x1 < x2 <= LIMIT and -LIMIT <= y1 < y2 <= LIMIT
    ):  # also refuses nan, and whole numbers that don't fit a float
        return None
    return float(x1), float(y1), float(x2), float(y2)
