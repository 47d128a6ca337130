"""The rewards of Temporal-R1, as published, faults included (github.com/appletea233/Temporal-R1, commit f364f6c).

Li et al. 2025, "Reinforcement Learning Tuning for VideoLLMs: Reward Design and Data Efficiency".
"""

from __future__ import annotations

import json
import re

from mmrl import Case
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag
from mmrl_video.spans import hull_iou

_TIMES = re.compile(r'</think>\s*<answer>\s*\{\s*"start_time"\s*:\s*"[\d.]+"\s*,\s*"end_time"\s*:\s*"[\d.]+"\s*\}\s*</answer>')


def tiou(case: Case) -> float:
    """The intersection of two spans of time over their hull. The first `<answer>` is JSON and nothing else, an object with
    `start_time` and `end_time`, numbers or texts of numbers, in seconds.

    `case.answer`: `[start, end]` in parts of `meta["video_length"]`; if meta has `duration` instead, in seconds. Known exploits,
    as published: the whole clip earns the event's share of it; other keys are allowed, and of a repeated key the last counts.
    Unlike the published code, an answer of more than `MAX_LENGTH` characters is 0.
    """
    text, (start, end) = first_tag(case.completion), case.answer
    length = case.meta["video_length"] if "video_length" in case.meta else case.meta["duration"]
    share = 1.0 if "video_length" in case.meta else float(length)
    if text is None or len(text) > MAX_LENGTH:
        return 0.0
    try:
        said = json.loads(text.strip())
        found = float(said["start_time"]) / length, float(said["end_time"]) / length
    except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
        return 0.0
    return hull_iou(found, (start / share, end / share))


def form(case: Case) -> float:
    """1 when the whole completion is a thought and an answer in their tags, the answer JSON with `start_time` and `end_time` in
    this order, and their numbers in quotes, of digits and points.

    Known exploits, as published: reversed times pass, as does "1.2.3"; numbers without quotes, which `tiou` reads, don't.
    """
    text = case.completion
    thought = text.rfind("</think>")
    return float(text.startswith("<think>") and thought >= len("<think>") and _TIMES.fullmatch(text, thought) is not None)
