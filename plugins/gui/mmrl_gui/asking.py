"""Prompts and gold completions in our own styles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from mmrl.api.simulators.gui import ACTION_KINDS
from mmrl_gui.coordinates import Numbers

STYLES = ("short", "json", "tags", "brief")
"""short: bare numbers; json: JSON and nothing else; tags: a thought and JSON, each in its tag; brief: `click 12 40`."""
_ENDS = (*".?!:", "\u3002", "\uff1f", "\uff01")
_WHAT = {
    ("short", "point"): "with a point on it: x y",
    ("short", "box"): "with its box: x1 y1 x2 y2",
    ("json", "point"): 'with a point on it as JSON, {"point_2d": [x, y]}',
    ("json", "box"): 'with its box as JSON, {"bbox_2d": [x1, y1, x2, y2]}',
    ("brief", "point"): "with a click on it: click x y",
}
_PLACED = ("click", "double-click", "long-press", "drag")
Elements = bool | Literal["either"]
_JSON = {
    "click": '{"action": "click", "x": x, "y": y}',
    "double-click": '{"action": "double-click", "x": x, "y": y}',
    "long-press": '{"action": "long-press", "x": x, "y": y}',
    "drag": '{"action": "drag", "x": x, "y": y, "to_x": x, "to_y": y}',
    "scroll": '{"action": "scroll", "direction": up, down, left or right}',
    "type": '{"action": "type", "text": text}',
    "key": '{"action": "key", "text": key}',
    "wait": '{"action": "wait"}',
    "back": '{"action": "back"}',
    "home": '{"action": "home"}',
    "open": '{"action": "open", "text": app}',
    "answer": '{"action": "answer", "text": text}',
}
_BRIEF = {
    "click": "click x y",
    "double-click": "double-click x y",
    "long-press": "long-press x y",
    "drag": "drag x y to_x to_y",
    "scroll": "scroll up, down, left or right",
    "type": "type TEXT",
    "key": "key KEY",
    "wait": "wait",
    "back": "back",
    "home": "home",
    "open": "open APP",
    "answer": "answer TEXT",
}


def language(style: str, kinds: Sequence[str] = ACTION_KINDS, numbers: Numbers | None = None, elements: Elements = False) -> str:
    """The available actions and their format, for a prompt. kinds: of `mmrl.api.simulators.gui.ACTION_KINDS`, in order.
    elements: True if positions are numbers of listed elements, which excludes dragging; `either` if both are allowed."""
    forms = dict(_BRIEF if style == "brief" else _JSON)
    pressed = [kind for kind in ("click", "double-click", "long-press") if kind in kinds]
    if elements is True:
        kinds = [kind for kind in kinds if kind != "drag"]
        forms |= {kind: _by_number(kind, style, "n") for kind in pressed}
    known = [forms[kind] for kind in ACTION_KINDS if kind in kinds]
    last = []
    if numbers and elements is not True and set(kinds) & {*_PLACED}:
        last.append(f"Places are in {numbers.says()}.")
    if elements and pressed:
        example = f"by its number, such as {_by_number(pressed[0], style, '3')}"
        last.append(f"An element is named {example}." if elements is True else f"An element may be named {example}, instead.")
    how = "Answer with one line" if style == "brief" else "Answer with one action as JSON"
    if style == "tags":
        how = "Think in <think> </think> tags, then give one action as JSON in <answer> </answer> tags"
    return "\n".join([f"{how}, one of:", *known, *([" ".join(last)] if last else [])])


def _by_number(kind: str, style: str, number: str) -> str:
    return f"{kind} [{number}]" if style == "brief" else f'{{"action": "{kind}", "element": {number}}}'


def ask(text: str, style: str, asks: str, numbers: Numbers) -> str:
    """A question for a position with instructions for the answer. asks: point or box."""
    text = text.strip()
    text = text if text.endswith(_ENDS) else f"{text}."
    if style == "tags":
        what = _WHAT["json", asks].removeprefix("with ")
        return f"{text} Think in <think> </think> tags, then give {what}, in {numbers.says()}, in <answer> </answer> tags."
    only = ", and nothing else" if style == "json" else ""
    return f"{text} Answer {_WHAT[style, asks]}, in {numbers.says()}{only}."


def answer(style: str, asks: str, values: Sequence[float]) -> str:
    """The text of a position in a gold completion."""
    if style in ("short", "brief"):
        return ("click " if style == "brief" else "") + " ".join(f"{v:.12g}" for v in values)
    return json.dumps({"bbox_2d" if asks == "box" else "point_2d": list(values)})


def thought(text: str, said: str) -> str:
    """A completion with a thought and an answer in their tags."""
    return f"<think>{text}</think>\n<answer>{said}</answer>"
