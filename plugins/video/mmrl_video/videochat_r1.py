"""The rewards of VideoChat-R1, as published, faults included (github.com/OpenGVLab/VideoChat-R1, commit 73b2ea9).

Li et al. 2025, "VideoChat-R1: Enhancing Spatio-Temporal Perception via Reinforcement Fine-Tuning". Temporal grounding, grounded
questions (gqa) and tracking; each task's rewards are added with weight 1.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl import Case
from mmrl.api.verifiers.parse import first_tag, has_think_answer_format, literal
from mmrl_video import spans
from mmrl_video.timezero import times

BOXES = 8
"""Number of boxes in an answer to a tracking question."""
LONGEST = 50_000
"""Maximum of characters of a list; eight boxes take 300."""
_PREFIXES = (
    *("The best answer is", "The correct answer is", "The answer is", "The answer", "The best option is"),
    *("The correct option is", "Best answer:Best option:"),
)
_PAIR = r"\(\d+(?:\.\d+)?,\s*\d+(?:\.\d+)?\)"
_GLUE = re.compile(rf"\[(?:{_PAIR}(?:,\s*{_PAIR})*,?)?\]\n?")
_THOUGHT = re.compile(r"</think>\s*<answer>")
_ANSWER = re.compile(r"</answer>\s*<glue>")


# -- temporal grounding -----------------------------------------------------------------------------------------------------


def tiou(case: Case) -> float:
    """The intersection of two spans of time over their hull, parsed as in TimeZero; 0 for a reversed span, and 1 for an empty
    hull (two equal points of time).

    `case.answer`: `[start, end]` in seconds.
    Known exploits, as published: those of TimeZero's.
    """
    span = times(case.completion)
    if span is None or span[0] > span[1]:
        return 0.0
    start, end = case.answer
    return spans.hull_iou(span, case.answer) if max(span[1], end) > min(span[0], start) else 1.0


def form(case: Case) -> float:
    """`<think>.*?</think>\\s*<answer>.*?</answer>` matches the completion without the blanks around it.

    Known exploits, as published: empty blocks and any number of further tags inside pass.
    """
    return float(has_think_answer_format(case.completion.strip()))


# -- grounded questions -----------------------------------------------------------------------------------------------------


def gqa_answer(case: Case) -> float:
    """1 when the first of the capitals A to G in the first `<answer>` is that of the truth, `case.answer["answer"]`.

    Known exploits, as published: "Not B, so C" is right for B; if neither has such a letter, everything in a tag is right.
    """
    given = first_tag(case.completion)
    return float(given is not None and _capital(given) == _capital(str(case.answer["answer"])))


def gqa_iou(case: Case) -> float:
    """The IoU of the times that two sets of spans cover: those of the first `<glue>`, `[(1, 2.5), (4, 6)]` and nothing else, and
    `case.answer["glue"]`.

    Known exploits, as published: if neither covers anything it is 1. A reversed span makes it 0.
    """
    found = _glued(first_tag(case.completion, "glue"))
    if found is None:
        return 0.0
    true = spans.merged(case.answer["glue"])
    whole = spans.total(spans.merged(found)) + spans.total(true)
    return spans.iou(found, true) if whole > 0 else 1.0


def gqa_form(case: Case) -> float:
    """1 when there are only a thought, an answer and the spans in their tags, and the first `<glue>` is a list of spans.

    Known exploits, as published: an empty list passes, as do empty blocks and further tags inside.
    """
    text = case.completion.strip()
    if not (text.startswith("<think>") and text.endswith("</glue>")):
        return 0.0
    thought = _THOUGHT.search(text, len("<think>"))
    answer = _ANSWER.search(text, thought.end()) if thought else None
    if answer is None or answer.end() > len(text) - len("</glue>"):
        return 0.0
    return float(_glued(first_tag(text, "glue")) is not None)


# -- tracking ---------------------------------------------------------------------------------------------------------------


def tracking_iou(case: Case) -> float:
    """The mean IoU of eight boxes with the true ones, in order: the first `<answer>`, a list of eight lists of four numbers.

    `case.answer`: the true boxes, or an object with them as `answer`.
    Known exploits, as published: eight times the first box, which is in the prompt, earns much if little moves. A reversed box is
    0, as is everything if either side doesn't have eight.
    """
    found = _boxes(first_tag(case.completion.replace("\n", "")) or "")
    true = case.answer["answer"] if isinstance(case.answer, Mapping) else case.answer
    if found is None or len(found) != len(true):
        return 0.0
    try:
        values = [_box_iou(a, b) for a, b in zip(found, true, strict=True)]
    except (TypeError, OverflowError):
        return 0.0
    mean = sum(values) / len(values)
    return min(1.0, max(0.0, mean)) if math.isfinite(mean) else 0.0


def tracking_form(case: Case) -> float:
    """1 when there are only a thought and an answer in their tags, and the first answer is a list of eight lists of four items.

    Known exploits, as published: the four need not be numbers; a list in an answer tag inside the thought passes.
    """
    if not has_think_answer_format(case.completion.strip()):
        return 0.0
    return float(_boxes(first_tag(case.completion) or "") is not None)


def _capital(text: str) -> str:
    for prefix in _PREFIXES:
        text = text.replace(prefix, "")
    found = re.search("[A-G]", text)
    return found[0] if found else ""


def _glued(text: str | None) -> list[spans.Span] | None:
    """The spans of a Python list of ordered pairs; None for all else."""
    if text is None or len(text) > LONGEST or not _GLUE.fullmatch(text):
        return None
    try:
        listed = [(float(start), float(end)) for start, end in literal(text, LONGEST)]
    except (ValueError, OverflowError):
        return None
    return listed if all(start <= end < math.inf for start, end in listed) else None


def _boxes(text: str) -> list[Any] | None:
    """The eight lists of four in a Python list; None for all else."""
    try:
        found = literal(text.replace("\n", ""), LONGEST)
    except ValueError:
        return None
    if not isinstance(found, list) or len(found) != BOXES:
        return None
    return found if all(isinstance(box, list) and len(box) == 4 for box in found) else None


def _box_iou(a: Sequence[Any], b: Sequence[Any]) -> float:
    width, height = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    common = max(0, width) * max(0, height)
    union = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - common
    return float(common / union) if union else 0.0
