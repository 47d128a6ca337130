"""The rewards of Time-R1, as published, faults included (github.com/xiaomi-research/time-r1, commit 7f2b594).

Wang et al. 2025, "Time-R1: Post-Training Large Vision Language Model for Temporal Video Grounding". Its format reward is
TimeZero's.
"""

from __future__ import annotations

import math

from mmrl import Case
from mmrl_video.spans import hull_iou
from mmrl_video.timezero import times


def tiou(case: Case) -> float:
    """Time-R1's `iou_v2`: the intersection over the hull, times 1 minus the distance of the starts as a share of the clip, times
    the same for the ends. It is below 0 if one of them is off by more than a clip's length.

    `case.answer`: `[start, end]` in seconds; `meta["duration"]`: the clip's length.
    Known exploits, as published: those of TimeZero's.
    """
    span, (start, end), length = times(case.completion), case.answer, case.meta["duration"]
    if span is None or not all(map(math.isfinite, span)):
        return 0.0
    value = hull_iou(span, (start, end))
    value *= (1 - abs(start / length - span[0] / length)) * (1 - abs(end / length - span[1] / length))
    return max(-1.0, value)  # it is lower only if the truth is longer than its clip
