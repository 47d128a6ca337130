"""The rewards of UIShift, as published, faults included (github.com/UbiquitousLearning/UIShift, commit d1dc722).

Gao et al. 2025, "UIShift: Enhancing VLM-based GUI Agents through Self-supervised Reinforcement Learning". Their sum is the
reward. `answer` is the true action in AndroidControl's form, `{"action_type": "click", "x", "y"}`, a click with the smallest
box around it as `bbox`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mmrl import Case
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag
from mmrl_gui.coordinates import Numbers, numbers_of

_ARGUMENT = {"scroll": "direction", "open_app": "app_name", "input_text": "text"}


def form(case: Case) -> float:
    """1 when there is a closed answer tag anywhere; its content isn't read."""
    return float(_bounded(case) != "" and first_tag(case.completion) is not None)


def action(case: Case) -> float:
    """1 when the action is the true one.

    It is the JSON of the first answer tag, or of the whole completion, in a fence or not; `\\n` as two characters is left out. A
    click must lie in the box, edges included, or without one be exactly at the point; the direction of a scroll, the name of an
    app and a text must be equal, except for case and outer blanks. Of going back only the type counts.

    As published: types are compared without regard to case, but only those in small letters are supported, so that "CLICK" is 0;
    so are wait, long_press and navigate_home. Numbers may be texts.
    """
    text = _bounded(case)
    answer = first_tag(text)
    try:
        said = json.loads(_unfenced((text if answer is None else answer).strip()).replace("\\n", "").strip())
    except (ValueError, RecursionError):
        return 0.0
    try:
        return float(_right(said, case.answer, numbers_of(case)))
    except (TypeError, ValueError, KeyError, AttributeError, OverflowError):  # not a text, not a number
        return 0.0


def _right(said: Any, true: Mapping[str, Any], numbers: Numbers) -> bool:
    if not isinstance(said, dict) or said["action_type"].lower() != true["action_type"].lower():
        return False
    kind = said["action_type"]
    if kind == "click":
        x, y = numbers.pixels(numbers.order.swapped((float(said["x"]), float(said["y"]))))
        if "bbox" not in true:
            return x == float(true["x"]) and y == float(true["y"])
        x1, y1, x2, y2 = map(float, true["bbox"])
        return x1 <= x <= x2 and y1 <= y <= y2
    if kind in _ARGUMENT:
        key = _ARGUMENT[kind]
        return bool(said[key].strip().lower() == true[key].strip().lower())
    return bool(kind == "navigate_back")


def _unfenced(text: str) -> str:
    """The content of the first ``` fence, which may begin with the name json; the whole text without one."""
    start = text.find("```")
    end = text.find("```", start + 3) if start >= 0 else -1
    if end < 0:
        return text
    inside = text[start + 3 : end]
    return inside.removeprefix("json").strip()


def _bounded(case: Case) -> str:
    """The completion; one of more than `MAX_LENGTH` characters is read as if it were empty."""
    return case.completion if len(case.completion) <= MAX_LENGTH else ""
