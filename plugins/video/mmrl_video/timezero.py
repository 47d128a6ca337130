"""The rewards of TimeZero, as published, faults included (github.com/www-Ye/Time-R1, commit d1a0d54).

Wang et al. 2025, "TimeZero: Temporal Video Grounding with Reasoning-Guided LVLM". Time-R1 and VideoChat-R1 read answers in the
same way.
"""

from __future__ import annotations

import re

from mmrl import Case
from mmrl.api.verifiers.parse import has_think_answer_format, last_tag
from mmrl_video.spans import Span, hull_iou

_SECOND = re.compile(r" (?:to|and) (\d+\.?\d*)", re.IGNORECASE)


def tiou(case: Case) -> float:
    """The intersection of two spans of time over their hull: the last `12.5 to 17`, or `and`, of the last `<answer>`.

    `case.answer`: `[start, end]` in seconds.
    Known exploits, as published: of several spans the last counts; signs are dropped, so that "-10 to 20" is 10 to 20; the whole
    clip earns the event's share of it. "10-20", "10s to 20s" and two blanks hide the answer. For an empty hull (two equal points
    of time) the published code fails; this is 0.
    """
    span = times(case.completion)
    return 0.0 if span is None else hull_iou(span, case.answer)


def form(case: Case) -> float:
    """`<think>.*?</think>\\s*<answer>.*?</answer>` matches the completion without the blanks around it.

    Known exploits, as published: empty blocks and any number of further tags inside pass.
    """
    return float(has_think_answer_format(case.completion.strip()))


def times(completion: str) -> Span | None:
    r"""The last of the matches of `(\d+\.?\d*) (to|and) (\d+\.?\d*)` in the last `<answer>`, without regard to case; None
    without one. Takes linear time: from each match after the first number it searches backwards."""
    text, found, free = last_tag(completion) or "", None, 0
    for match in _SECOND.finditer(text):
        start = _number_before(text, free, match.start())
        if start < match.start():
            found, free = (float(text[start : match.start()]), float(match[1])), match.end()
    return found


def _number_before(text: str, free: int, end: int) -> int:
    """The start of the number that ends at `end`, not before `free`; `end` without one."""
    start = end
    while start > free and text[start - 1].isdecimal():
        start -= 1
    if start > free and text[start - 1] == ".":
        whole = start - 1
        while whole > free and text[whole - 1].isdecimal():
            whole -= 1
        if whole < start - 1:
            return whole
    return start
