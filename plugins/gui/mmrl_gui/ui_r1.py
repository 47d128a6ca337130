"""The rewards of UI-R1, as published, faults included (github.com/lll6gg/UI-R1, commit 2fe9bf0).

Lu et al. 2025, "UI-R1: Enhancing Efficient Action Prediction of GUI Agents by Reinforcement Learning". Their sum is the reward.
`answer` is `{"action", "bbox"}`, the box as two corners in whole pixels; `meta["scale"]`, or the policy's coordinate format,
converts the numbers of a completion to pixels.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mmrl import Case
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag, has_think_answer_format
from mmrl_gui.coordinates import numbers_of

_QUOTED = re.compile(r"'action':\s*'(\w+)'")
_BARE = re.compile(r"'action':\s*(\w+)")
_POINT = re.compile(r"\[(\d+),\s*(\d+)]")
_WORD = re.compile(r"\w+")


def action_type(case: Case) -> float:
    """1 when the type is the true one: the first `'action': 'TYPE'` of the first answer tag, or else the first without quotes
    around it. Double quotes are not read, as published.

    Known exploits, as published: the rest of the tag is not read.
    """
    found = _type_in(_answer(case))
    return float(found is not None and found == _true_type(case))


def coordinate(case: Case) -> float:
    """1 when the type is the true one and, where it is a click, the first `[x, y]` of whole numbers in the first answer tag
    lies in the true box, edges included, after it was scaled and cut to whole pixels.

    Known exploits, as published: the direction of a scroll and a text are not read. Without a point, 0, 0 counts.
    """
    text = _answer(case)
    kind = _type_in(text)
    if kind is None or kind != _true_type(case):
        return 0.0
    if kind != "click":
        return 1.0
    found = _POINT.search(text)
    try:
        x, y = _scaled(case, (int(found[1]), int(found[2])) if found else (0, 0))
    except (ValueError, OverflowError):  # too many digits
        return 0.0
    x1, y1, x2, y2 = _true_box(case.answer["bbox"])
    return float(x1 <= x <= x2 and y1 <= y <= y2)


def form(case: Case) -> float:
    """1 when there are a thought and an answer in their tags and nothing around them; their content is not read."""
    return float(len(case.completion) <= MAX_LENGTH and has_think_answer_format(case.completion))


def _answer(case: Case) -> str:
    return (first_tag(case.completion) or "").strip() if len(case.completion) <= MAX_LENGTH else ""


def _type_in(text: str) -> str | None:
    found = _QUOTED.search(text) or _BARE.search(text)
    return found[1] if found else None


def _true_type(case: Case) -> str | None:
    kind = case.answer["action"]
    return kind if _WORD.fullmatch(kind) else None


def _scaled(case: Case, point: tuple[int, int]) -> tuple[int, int]:
    if "scale" in case.meta:
        x, y = (v * float(scale) for v, scale in zip(point, case.meta["scale"], strict=True))
    else:
        x, y = numbers_of(case).pixels(point)
    return int(x), int(y)


def _true_box(box: Sequence[float]) -> Sequence[float]:
    """The box as the published code parses it from its text: whole numbers that are not negative, else empty."""
    sound = len(box) == 4 and all(isinstance(v, int) and v >= 0 for v in box)
    return box if sound else (0, 0, 0, 0)
