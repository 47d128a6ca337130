"""The rewards of GUI-R1, as published, faults included (github.com/ritzz-ai/GUI-R1, commit d43eea2).

Luo et al. 2025, "GUI-R1: A Generalist R1-Style Vision-Language Action Model For GUI Agents". `answer` is `{"action", "gt_bbox",
"input_text"}`; the box is two corners, or the two numbers of a point.
"""

from __future__ import annotations

import re
from typing import Any

from mmrl import Case, Score
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag, has_think_answer_format, literal
from mmrl_gui.coordinates import Numbers, numbers_of

REACH = 140
"""A click must be closer than this to a true point, in pixels."""
_ACTION = re.compile(r"'action':\s*'(\w+)'")
_TEXT = re.compile(r"'input_text':\s*'(.*?)'")
_POINT = re.compile(r"\[(\d+),\s*(\d+)]")
_BLANKS = re.compile(r"\s*")


def action(case: Case) -> float:
    """1 when the action of the first answer tag is the true one.

    Types are compared without regard to case. A click must be less than 140 pixels from the true point, or strictly inside the
    true box; what is typed, selected, and the direction of a scroll must have an F1 of at least 0.5 with the truth, single
    words need only be part of each other. Of every other action, also open_app, only the type counts.

    As published: only single quotes are read; without a point, 0, 0 counts.
    """
    text = _bounded(case)
    answer = (first_tag(text) or "").strip()
    try:
        return float(_right(answer, case.answer, numbers_of(case)))
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):
        return 0.0


def form(case: Case) -> float:
    """1 when there are a thought and an answer in their tags and nothing around them, and the answer is a list of Python objects,
    each with an `action`, a `point` that begins with two whole numbers, and an `input_text`: a nonempty one for typing, selecting
    and opening an app, one of four directions for scrolling.

    Known exploits, as published: an empty list passes. Unlike the published code, this evaluates only literals.
    """
    text = _bounded(case)
    if not text or not has_think_answer_format(text):
        return 0.0
    try:
        listed: Any = literal((first_tag(text) or "").strip())
        return float(isinstance(listed, list) and all(map(_is_formed, listed)))
    except (ValueError, TypeError, KeyError, IndexError):
        return 0.0


def overall(case: Case) -> Score:
    """0.8 times `action` and 0.2 times `form`."""
    right, formed = action(case), form(case)
    return Score(0.8 * right + 0.2 * formed, parts={"accuracy": right, "format": formed})


def _right(answer: str, true: dict[str, Any], numbers: Numbers) -> bool:
    found = _ACTION.search(answer)
    kind, box, text = true["action"].lower(), true["gt_bbox"], true["input_text"]
    if (found[1] if found else "no action").lower() != kind:
        return False
    if kind == "click":
        x, y = numbers.pixels(_point(answer))
        if len(box) == 2:
            return bool((x - box[0]) ** 2 + (y - box[1]) ** 2 < REACH**2)
        return bool(len(box) == 4 and box[0] < x < box[2] and box[1] < y < box[3])
    if kind in ("type", "select", "scroll"):
        said = _TEXT.search(answer)
        return _f1(said[1] if said else "no input text", text) >= 0.5
    return True


def _point(answer: str) -> tuple[int, int]:
    """The match of `\\{.*\\[(\\d+),\\s*(\\d+)]\\s*.*\\}`, in linear time: of the first line that has any, the last pair of whole
    numbers in brackets with a brace before it on that line and a brace behind it on the line where the following text begins;
    else 0, 0."""
    found: tuple[int, int] | None = None
    line = (-1, -1)
    for match in _POINT.finditer(answer):
        start = match.start()
        if not line[0] <= start <= line[1]:
            if found:
                break
            end = answer.find("\n", start)
            line = (answer.rfind("\n", 0, start) + 1, end if end >= 0 else len(answer))
        if answer.find("{", line[0], start) >= 0 and _closes(answer, match.end()):
            found = int(match[1]), int(match[2])
    return found or (0, 0)


def _closes(text: str, at: int) -> bool:
    """Whether a brace follows on the line of the first character that is not a blank."""
    blanks = _BLANKS.match(text, at)
    start = blanks.end() if blanks else at
    end = text.find("\n", start)
    return text.find("}", start, end if end >= 0 else len(text)) >= 0


def _f1(found: str, true: str) -> float:
    a, b = (set(text.replace("[", "").replace("]", "").lower().split()) for text in (found, true))
    if len(a) == len(b) == 1:
        one, other = next(iter(a)), next(iter(b))
        if one in other or other in one:
            return 1.0
    precision, recall = len(a & b) / max(len(a), 1), len(a & b) / max(len(b), 1)
    return 2 * (precision * recall) / (precision + recall) if precision + recall else 0.0


def _is_formed(one: Any) -> bool:
    """Whether one action of a list is well-formed; it may raise errors that the published code catches."""
    if not isinstance(one, dict) or not {"action", "point", "input_text"} <= one.keys():
        return False
    kind, point, text = one["action"], one["point"], one["input_text"]
    if not isinstance(kind, str) or not (isinstance(point[0], int) and isinstance(point[1], int)) or not isinstance(text, str):
        return False
    if kind in ("type", "select", "open_app") and text == "no input text":
        return False
    return kind != "scroll" or text in ("left", "right", "up", "down")


def _bounded(case: Case) -> str:
    """The completion; one of more than `MAX_LENGTH` characters is read as if it were empty."""
    return case.completion if len(case.completion) <= MAX_LENGTH else ""
