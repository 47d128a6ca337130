"""Times of rows: spans in seconds, checked against the clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl_video import reading
from mmrl_video.data.tables import first, parsed
from mmrl_video.spans import Span

SLACK_S = 2.0
"""Maximal seconds by which a span may end after its clip, as in Charades-STA, where 9 of the 138 rows of TVGBench end 1 to 1.5 s
after it: it is clipped."""
EARLY_S = 0.5
"""Maximal seconds by which a span may start before its clip, as 36 of 5,553 rows of NExT-GQA's test do by 0.1 or 0.2."""
START_KEYS, END_KEYS = ("start", "start_time"), ("end", "end_time")
PARTS = (("video_start", "video_end"), ("start", "end"))
"""Keys of the part of a file that a row of Time-R1's training data, or of its TVGBench, is about."""


def spans_in(row: Mapping[str, Any], keys: tuple[str, ...]) -> list[Any]:
    """The spans of a row, unchecked: `[1, 2.5]`, several of them, `1-2.5`, or under `start` and `end`."""
    value = parsed(first(row, keys))
    if value is None:
        start, end = first(row, START_KEYS), first(row, END_KEYS)
        if start is None or end is None:
            raise ValueError(f"it has no times under any of {', '.join(keys)}, nor `start` and `end`")
        return [[start, end]]
    if isinstance(value, str):
        found = reading.spans(value)
        if found is None:
            raise ValueError(f"its times are {value!r:.60} and not such as '1-2.5'")
        return list(found)
    if isinstance(value, list | tuple) and value and isinstance(value[0], list | tuple):
        return list(value)
    return [value]


def part_of(row: Mapping[str, Any], keys: tuple[str, ...], file_s: float) -> tuple[float, float] | None:
    """The part of its file that a row is about, in seconds: its times count from the start of that. None for the whole file.

    keys: those of the row's times. A part is as long as the row's `duration`, and only a file that reaches to its end holds it: a
    shorter one was cut already.
    """
    duration = reading.seconds(row.get("duration"))
    if duration is None or first(row, keys) is None:
        return None
    for first_key, last_key in PARTS:
        start, end = reading.seconds(row.get(first_key)), reading.seconds(row.get(last_key))
        if start is None or end is None or start < 0 or abs(end - start - duration) > 0.1:  # the times of an event, or no part
            continue
        if file_s >= end - min(0.5, start / 2):
            return start, min(end, file_s)
    return None


def checked(spans: Sequence[Any], duration_s: float, scale: float = 1.0) -> list[Span]:
    """Spans of a clip in seconds, to a thousandth; a span that starts slightly before it, or ends slightly after it, is clipped.
    scale: seconds per unit of the row.

    Raises ValueError for a span that is invalid, reversed, empty, negative, or outside the clip.
    """
    found = []
    for span in spans:
        values = [reading.seconds(v) for v in span] if isinstance(span, list | tuple) and len(span) == 2 else []
        if len(values) != 2 or values[0] is None or values[1] is None:
            raise ValueError(f"its span {span!r:.60} is not two times in seconds")
        start, end = (v * scale for v in values if v is not None)
        told = f"its span from {start:g} to {end:g} s"
        if start < -EARLY_S or end < 0:
            raise ValueError(f"{told} is negative")
        if start >= end:
            raise ValueError(f"{told} is {'empty' if start == end else 'reversed'}")
        if start >= duration_s or end > duration_s + SLACK_S:
            raise ValueError(f"{told} is beyond the clip, which has {duration_s:.2f} s")
        cut = round(max(start, 0.0), 3), round(min(end, duration_s), 3)
        if cut[0] >= cut[1]:
            raise ValueError(f"{told} is shorter than a thousandth of a second")
        found.append(cut)
    return found


def written(spans: Sequence[Span]) -> str:
    """`1 to 2.5`, several separated by commas."""
    return ", ".join(f"{start:.12g} to {end:.12g}" for start, end in spans)
