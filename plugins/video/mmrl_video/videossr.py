"""The rewards of VideoSSR, as published, faults included (github.com/lcqysl/VideoSSR, commit b0d2acb).

He et al. 2025, "VideoSSR: Video Self-Supervised Reinforcement Learning". The completion is the answer, without tags; there is no
format reward.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping

from mmrl import Case
from mmrl_video import spans

TINY = 1e-9
_SPAN = re.compile(r"\s*([\d.]+)\s*-\s*([\d.]+)\s*")
_WHOLE = re.compile(r"\d+")


def anomaly(case: Case) -> float:
    """Anomaly grounding: the temporal IoU of `14.5-26.2`, which must be the whole completion, except for blanks.

    `case.answer`: the same in seconds, as text or as `[start, end]`; the end is exclusive.
    Known exploits, as published: the whole clip earns the anomaly's share of it. Reversed and empty spans are 0.
    """
    found, true = _span(case.completion), _span(case.answer)
    return 0.0 if found is None or true is None else spans.iou([found], [true])


def counting(case: Case) -> float:
    """Object counting, smooth: the mean over the counts of 1 minus the relative error, at least 0. All whole numbers of the
    completion are read, and there must be as many as in the truth.

    `case.answer`: `3,1,4` as text, as a list, or as the values of a dict of counts by name. Nothing is right for a text that
    isn't numbers with commas between them.
    Known exploits, as published: signs and words are not read, so that "-3,-1,-4" is right; a small number for each count
    earns a part.
    """
    given = case.answer.values() if isinstance(case.answer, Mapping) else case.answer
    try:
        true = [float(n) for n in (given.split(",") if isinstance(given, str) else given)]
    except (ValueError, TypeError):
        return 0.0
    found = [m[0] for m in itertools.islice(_WHOLE.finditer(case.completion), len(true) + 1)]
    if len(found) != len(true) or not true:
        return 0.0
    return sum(max(0.0, 1 - abs(float(p) - g) / (abs(g) + TINY)) for p, g in zip(found, true, strict=True)) / len(true)


def jigsaw(case: Case) -> float:
    """Temporal jigsaw: 1 minus the sum of the parts' distances over its maximum, n * n // 2. The completion is `341562`, a
    permutation of the truth's characters, with blanks around it or not; all else is 0.

    Known exploits, as published: any permutation earns a third on average, of six parts.
    """
    true, found = str(case.answer).strip(), case.completion.strip()
    if not case.completion or len(found) != len(true) or sorted(found) != sorted(true):
        return 0.0
    off = sum(abs(found.index(sign) - true.index(sign)) for sign in true)
    return 1 - off / (len(true) ** 2 // 2) if len(true) > 1 else 1.0


def _span(value: object) -> spans.Span | None:
    """The span of a text; None for one that is empty, reversed or not a number."""
    if isinstance(value, list | tuple):
        start, end = map(float, value)
        return start, end
    match = _SPAN.fullmatch(str(value))
    try:
        start, end = (float(match[1]), float(match[2])) if match else (0.0, 0.0)
    except ValueError:  # such as 1.4.5
        return None
    return (start, end) if start < end < math.inf else None
