"""Prompts and gold completions in our own styles."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal

from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.simulators.gui import ACTION_KINDS, Action, Box
from mmrl_gui.actions import FILLS, POINTED, write
from mmrl_gui.calls import NAMES, written_call
from mmrl_gui.coordinates import Numbers
from mmrl_gui.names import SELECT

STYLES = ("short", "json", "tags", "brief", "ui-tars")
"""short: bare numbers; json: JSON and nothing else; tags: a thought and JSON, each in its tag; brief: `click 12 40`; ui-tars:
a thought after `Thought:` and a call after `Action:`, as UI-TARS answers."""
_ENDS = (*".?!:", "\u3002", "\uff1f", "\uff01")
_WHAT = {
    ("short", "point"): "with a point on it: {names}",
    ("short", "box"): "with its box: {names}",
    ("json", "point"): 'with a point on it as JSON, {{"{key}": {names}}}',
    ("json", "box"): 'with its box as JSON, {{"{key}": {names}}}',
    ("brief", "point"): "with a click on it: click {names}",
    ("ui-tars", "point"): "with a thought after Thought: and, on a line of its own, Action: click(start_box='({names})')",
}
Elements = bool | Literal["either"]
_JSON = {
    "click": '{"action": "click", "x": x, "y": y}',
    "double-click": '{"action": "double-click", "x": x, "y": y}',
    "triple-click": '{"action": "triple-click", "x": x, "y": y}',
    "right-click": '{"action": "right-click", "x": x, "y": y}',
    "middle-click": '{"action": "middle-click", "x": x, "y": y}',
    "long-press": '{"action": "long-press", "x": x, "y": y}',
    "hover": '{"action": "hover", "x": x, "y": y}',
    "drag": '{"action": "drag", "x": x, "y": y, "to_x": x, "to_y": y}',
    "scroll": '{"action": "scroll", "direction": up, down, left or right}',
    "type": '{"action": "type", "text": text}',
    "key": '{"action": "key", "text": key}',
    "wait": '{"action": "wait"}',
    "back": '{"action": "back"}',
    "home": '{"action": "home"}',
    "open": '{"action": "open", "text": app}',
    "answer": '{"action": "answer", "text": text}',
    SELECT: '{"action": "select", "text": option}',
}
_BRIEF = {
    "click": "click {at}",
    "double-click": "double-click {at}",
    "triple-click": "triple-click {at}",
    "right-click": "right-click {at}",
    "middle-click": "middle-click {at}",
    "long-press": "long-press {at}",
    "hover": "hover {at}",
    "drag": "drag {at} {to}",
    "scroll": "scroll up, down, left or right",
    "type": "type TEXT",
    "key": "key KEY",
    "wait": "wait",
    "back": "back",
    "home": "home",
    "open": "open APP",
    "answer": "answer TEXT",
    SELECT: "select OPTION",
}


def language(
    style: str,
    kinds: Sequence[str] = ACTION_KINDS,
    numbers: Numbers | None = None,
    elements: Elements = False,
    types_at: bool = False,
) -> str:
    """The available actions and their format, for a prompt. kinds: of `mmrl.api.simulators.gui.ACTION_KINDS`, and
    `select`. elements: True if positions are numbers of listed elements, which excludes dragging; `either` if both are allowed.
    types_at: what is typed or selected has a place, as in Mind2Web."""
    order = (numbers or Numbers()).order
    at = order.names("point")
    to = at.replace("x", "to_x").replace("y", "to_y")
    forms = {kind: form.format(at=at, to=to) for kind, form in _BRIEF.items()} if style == "brief" else dict(_JSON)
    if style == "ui-tars":
        forms = {kind: _as_call(kind, at, to) for kind in forms}
    for kind in FILLS if types_at else ():
        place = f"(start_box='({at.replace(' ', ',')})', " if style == "ui-tars" else f'"{kind}", "x": x, "y": y, '
        forms[kind] = forms[kind].replace("(" if style == "ui-tars" else f'"{kind}", ', place)
    pressed = [kind for kind in POINTED if kind in kinds]
    if elements is True:
        kinds = [kind for kind in kinds if kind != "drag"]
        forms |= {kind: _by_number(kind, style, "n") for kind in pressed}
    known = [form for kind, form in forms.items() if kind in kinds]
    last = []
    if numbers and elements is not True and set(kinds) & {*POINTED, "drag"}:
        last.append(f"Places are in {numbers.says()}.")
    if elements and pressed:
        example = f"by its number, such as {_by_number(pressed[0], style, '3')}"
        last.append(f"An element is named {example}." if elements is True else f"An element may be named {example}, instead.")
    how = "Answer with one line" if style == "brief" else "Answer with one action as JSON"
    if style == "tags":
        how = "Think in <think> </think> tags, then give one action as JSON in <answer> </answer> tags"
    if style == "ui-tars":
        how = "Answer with a thought after Thought: and, on a line of its own, one action after Action:"
    return "\n".join([f"{how}, one of:", *known, *([" ".join(last)] if last else [])])


def _as_call(kind: str, at: str, to: str) -> str:
    start, end = (place.replace(" ", ",") for place in (at, to))
    inside = {
        "drag": f"start_box='({start})', end_box='({end})'",
        "scroll": "direction='up, down, left or right'",
        "key": "key='key'",
        "open": "app_name='app'",
        **dict.fromkeys(("type", "answer"), "content='text'"),
        SELECT: "content='option'",
        **dict.fromkeys(POINTED, f"start_box='({start})'"),
    }
    return f"{NAMES.get(kind, kind)}({inside.get(kind, '')})"


def _by_number(kind: str, style: str, number: str) -> str:
    if style == "ui-tars":
        return f"{NAMES.get(kind, kind)}(element={number})"
    return f"{kind} [{number}]" if style == "brief" else f'{{"action": "{kind}", "element": {number}}}'


def ask(text: str, style: str, asks: str, numbers: Numbers) -> str:
    """A question for a position with instructions for the answer. asks: point or box."""
    text = text.strip()
    text = text if text.endswith(_ENDS) else f"{text}."
    form = _WHAT["json" if style == "tags" else style, asks]
    names = numbers.order.names(asks, json=style in ("json", "tags"))
    what = form.format(key=_key(asks, numbers.order), names=names.replace(" ", ",") if style == "ui-tars" else names)
    if style == "tags":
        what = what.removeprefix("with ")
        return f"{text} Think in <think> </think> tags, then give {what}, in {numbers.says()}, in <answer> </answer> tags."
    only = ", and nothing else" if style == "json" else ""
    return f"{text} Answer {what}, in {numbers.says()}{only}."


def answer(style: str, asks: str, values: Sequence[float], numbers: Numbers, thinks: str = "") -> str:
    """The gold completion of a position. values: as written in the format of `numbers`. thinks: the thought, where the style has
    one."""
    if style == "ui-tars":
        x, y = numbers.order.swapped(values)
        return thought(style, thinks, written_call({"action": "click", "x": x, "y": y}, numbers.order))
    if style in ("short", "brief"):
        return ("click " if style == "brief" else "") + numbers.order.text(values, "{:.12g}".format)
    return thought(style, thinks, json.dumps({_key(asks, numbers.order): numbers.order.json_value(values)}))


def act(style: str, thinks: str, action: Action, numbers: Numbers, within: Box | None = None, element: int | None = None) -> str:
    """The gold completion of an action, see `actions.write`. thinks: the thought, where the style has one."""
    return thought(style, thinks, write(action, "json" if style == "tags" else style, numbers, within, element))


def _key(asks: str, order: CoordinateFormat) -> str:
    return order.box_key if asks == "box" else order.point_key


def thought(style: str, text: str, said: str) -> str:
    """A completion with a thought before its answer, in the styles tags and ui-tars; in the others the answer alone."""
    forms = {"tags": "<think>{}</think>\n<answer>{}</answer>", "ui-tars": "Thought: {}\nAction: {}"}
    return forms[style].format(text, said) if style in forms else said
