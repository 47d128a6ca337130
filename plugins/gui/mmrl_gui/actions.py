"""Parse actions from completions, and write them for gold completions.

There are three forms. `json`: `{"action": "click", "x": 12, "y": 40}`. `brief`: `click 12 40`, `type hello`, `scroll down`, `drag
1 2 3 4`, `key Enter`, `wait`. `ui-tars`: a thought, and a call, see `calls`. All are parsed whichever was requested, with the
names of other systems, see `names`: UI-R1's and GUI-R1's (`coordinate`, `point`, single quotes), tool calls of Qwen, Anthropic
and OpenAI, GUI-Odyssey's and OS-Atlas's lines (`CLICK <point>[[12, 40]]</point>`, `TYPE [hello]`). Nothing is evaluated as code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.api.simulators.gui import DIRECTIONS, Action, Box, Element, Point
from mmrl_gui.calls import call_of, last_action, written_call
from mmrl_gui.coordinates import Numbers
from mmrl_gui.geometry import is_number, middle
from mmrl_gui.names import IMPOSSIBLE, KINDS, WITH_SELECT, NoAction, is_held, key_of, kind_of
from mmrl_gui.names import plain as _name
from mmrl_gui.reading import BOX_KEYS, POINT_KEYS, json_said, point_in, quoted, said

STYLES = ("json", "brief", "tags", "ui-tars")
"""Requested forms of an action; `tags` is a thought and then JSON, each in its tag, `ui-tars` a thought and then a call."""
_KIND_KEYS = ("kind", "action_type", "action", "name", "type")
_TO_KEYS = ("to", "end", "coordinate2", "end_point", "end_coordinate", "end_box", "to_coord")
_TO_AXES = (("to_x", "to_y"), ("x2", "y2"), ("end_x", "end_y"))
_TEXT_KEYS = (
    *("text", "input_text", "content", "value", "key", "keys", "app_name", "app", "answer", "button", "url", "page"),
    *("status", "goal_status", "message", "typed_text"),
)
NO_TEXT = "no input text"
"""What GUI-R1 writes where an action has no text."""
_AMOUNTS = ("pixels", "amount", "clicks", "page")
"""How far is scrolled, upwards or to the right: Qwen's, pyautogui's and AGUVIS's."""
_BUTTONS = {"right": "right-click", "middle": "middle-click", "wheel": "middle-click"}
_ELEMENT_KEYS = ("element", "element_id", "index", "id", "ref")
OPPOSITE = {"up": "down", "down": "up", "left": "right", "right": "left"}
_SPOKEN = ("type", "key", "open", "answer", "select")
"""Verbs of the brief style whose argument is all the text after them."""
_VERB = re.compile(r"[A-Za-z][A-Za-z_-]{0,30}")
_IN_BRACKETS = re.compile(r"\[(.*)\]", re.DOTALL)
POINTED = ("click", "double-click", "triple-click", "right-click", "middle-click", "long-press", "hover")
"""Kinds that need a place, on which they act."""
FILLS = ("type", "select")
"""Kinds that fill a field, which they may place: a text is typed into it, or one of its options chosen."""
_MAYBE_PLACED = ("scroll", *FILLS)
"""Kinds that may have a place: the middle of what is scrolled, the field that is filled."""
_FROM_POINTER = ("drag", "drag_to", "dragto", "left_click_drag")
"""Drags that may say only where they end (OSWorld's DRAG_TO, computer_use), and `start_coordinate` beside it (Anthropic's)."""
_START_KEYS = ("start_coordinate", "start_point", "start", "start_box", "from", "from_coord")
_START_AXES = (("x1", "y1"), ("start_x", "start_y"), ("from_x", "from_y"))
_ENDS = (*_TO_KEYS, *(axis for axes in _TO_AXES for axis in axes))
_STARTS = (*_START_KEYS, *(axis for axes in _START_AXES for axis in axes))
PLACED = ("x", "y", "to_x", "to_y")
AS_IT_STANDS = Numbers()


def read(
    text: str,
    numbers: Numbers = AS_IT_STANDS,
    elements: Sequence[Element] = (),
    tags: bool = False,
    names: Mapping[str, str] = KINDS,
) -> Action:
    """The one action of a completion, with positions in pixels.

    numbers: format of its positions. elements: those that `click [3]` and `"element": 3` refer to, from 1. tags: require an
    answer tag. names: of the actions that may be done, each with its kind, see `names.offered`. Raises NoAction.
    """
    answer, why = said(numbers.order.without_tokens(text), tags)
    if answer is None:
        raise NoAction(why)
    plain = answer.strip()
    if not plain:
        raise NoAction("there is no action: nothing was said")
    line = last_action(plain)
    if call := call_of(line, names):
        return made(*call, numbers, elements, names)
    verb = _VERB.match(line)
    if "\n" not in line and verb and ("{" not in line or _is_spoken(_name(verb[0]), names)):
        return _brief(line, verb[0], numbers, elements, names)
    found = json_said(plain) or quoted(plain)
    if found is None:
        raise NoAction(f"there is no one action in {plain[:60]!r}")
    return of_json(found, numbers, elements, names)


# -- JSON -------------------------------------------------------------------------------------------------------------------


def of_json(
    value: Any, numbers: Numbers = AS_IT_STANDS, elements: Sequence[Element] = (), names: Mapping[str, str] = KINDS
) -> Action:
    """The action of a JSON value: an object, or a list of one. Raises NoAction."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, list):
        raise NoAction(f"there are {len(value)} actions in a list, and one is wanted")
    if not isinstance(value, dict):
        raise NoAction(f"{value!r:.60} is no action")
    for key in ("arguments", "action", "parameters"):
        inner = value.get(key)
        inner = json_said(inner) if key == "arguments" and isinstance(inner, str) else inner
        if isinstance(inner, dict):
            value = {k: v for k, v in value.items() if k != key and not (key == "arguments" and k == "name")} | inner
    known = [(key, _name(value[key])) for key in _KIND_KEYS if isinstance(value.get(key), str)]
    if not known:
        raise NoAction(f"there is no action in {value!r:.60}")
    key, name = next(((k, n) for k, n in known if n in names), known[0])
    if name not in names:
        raise NoAction(f"there is no action called {value[key]!r:.40}")
    fields = {k: v for k, v in value.items() if k != key}
    return made(name, fields, numbers, elements, names)


def made(
    name: str, fields: Mapping[str, Any], numbers: Numbers, elements: Sequence[Element], names: Mapping[str, str] = KINDS
) -> Action:
    """An action from its name and arguments. Raises NoAction if one is missing."""
    kind, name = kind_of(name, names), _name(name)
    if isinstance(path := fields.get("path"), list) and len(path) > 1:  # OpenAI's drag
        fields = {**fields, "start": path[0], "end": path[-1]}
    text, direction = _text(fields), _direction(fields, name)
    at, to = _place(fields, numbers, elements), _named(fields, _TO_AXES, _TO_KEYS, numbers)
    starts = (*_STARTS, "x", "y", *POINT_KEYS, *BOX_KEYS, "element", "element_id")
    if name in _FROM_POINTER and to is None and not _says(fields, _ENDS):
        starts = _STARTS
        at, to = None, _place({key: value for key, value in fields.items() if key not in _STARTS}, numbers, elements)
    if kind == "drag":
        at = _named(fields, _START_AXES, _START_KEYS, numbers) or at
    kind = _click(fields) if kind == "click" else kind
    if kind in POINTED and is_held(key_of(text)):
        raise NoAction(f"{name} with {text!r:.30} held down can't be done")
    if name == "swipe" and to is None and direction:  # the finger goes up to scroll down
        kind, direction = "scroll", OPPOSITE[direction]
    if name == "system_button" and _name(text) in ("back", "home"):
        kind, text = _name(text), ""
    text = {"enter": "Enter", "keyboard_enter": "Enter", "press_recent": "Recent"}.get(name, text)
    if kind == "answer" and name != "answer":
        text = text or ("infeasible" if name in IMPOSSIBLE else "done")
    if at is None and (kind in POINTED or (name == "swipe" and kind == "drag")):
        raise NoAction(f"{name} says no place")
    if kind == "drag" and to is None:
        raise NoAction(f"{name} says no place where it ends")
    if kind == "drag" and at is None and _says(fields, starts):  # it doesn't begin at the pointer
        raise NoAction(f"where {name} starts is no place")
    if kind == "scroll" and direction is None:
        raise NoAction(f"{name} says no direction: {', '.join(DIRECTIONS)}")
    if kind in (*FILLS, "open") and not text:
        raise NoAction(f"{name} says no text")
    if kind == "key":
        text = key_of(text)
        if not text:
            raise NoAction(f"{name} says no key")
    if kind not in _SPOKEN:
        text = ""
    if kind not in (*POINTED, "drag", *_MAYBE_PLACED) or (kind in _MAYBE_PLACED and at is not None and max(at) < 0):
        at = None  # GUI-R1 writes -100, -100 for none
    return Action(
        kind=kind,  # type: ignore[arg-type]  # one of names'
        at=at,
        to=to if kind == "drag" else None,
        text=text,
        direction=direction if kind == "scroll" else None,  # type: ignore[arg-type]  # one of DIRECTIONS
    )


def _text(fields: Mapping[str, Any]) -> str:
    for key in _TEXT_KEYS:
        value = fields.get(key)
        if isinstance(value, str) and value != NO_TEXT:
            return value
        if key == "keys" and isinstance(value, list) and value and all(isinstance(v, str) for v in value):
            return "+".join(value)
        if key in ("text", "value", "answer", "content") and is_number(value):
            return str(value)
    return ""


def _click(fields: Mapping[str, Any]) -> str:
    """The kind of a click by its button and how often it is pressed, as OSWorld's CLICK, pyautogui and OpenAI's tool say them."""
    button = str(fields.get("button") or "left").lower()
    if button in ("back", "forward"):
        raise NoAction(f"the button {button} is none that can be pressed here")
    times = next((fields[key] for key in ("num_clicks", "clicks") if is_number(fields.get(key))), 1)
    if times not in (1, 2, 3) or (times > 1 and button in _BUTTONS):
        raise NoAction(f"{times:g} clicks of the {button if button in _BUTTONS else 'left'} button can't be done")
    return _BUTTONS.get(button) or ("click", "double-click", "triple-click")[int(times) - 1]


def _direction(fields: Mapping[str, Any], name: str) -> str | None:
    for key in ("direction", "scroll_direction", "input_text", "text", "value"):
        value = fields.get(key)
        if isinstance(value, str) and value.strip().lower() in DIRECTIONS:
            return value.strip().lower()
    amount = next((fields[key] for key in _AMOUNTS if is_number(fields.get(key))), 0)
    across, up = (amount, 0) if name == "hscroll" else (0, amount)
    for key, sign in (("dy", 1), ("scroll_y", -1)):  # OSWorld's is upwards, OpenAI's downwards
        up += sign * fields[key] if is_number(fields.get(key)) else 0
    across += sum(fields[key] for key in ("dx", "scroll_x") if is_number(fields.get(key)))
    if abs(across) > abs(up):
        return "right" if across > 0 else "left"
    return ("up" if up > 0 else "down") if up else None


def _place(fields: Mapping[str, Any], numbers: Numbers, elements: Sequence[Element]) -> Point | None:
    for key in _ELEMENT_KEYS if elements else ():
        if isinstance(number := fields.get(key), int) and not isinstance(number, bool):
            return _middle(number, elements)
    if is_number(fields.get("x1")) and is_number(fields.get("y1")) and "x" not in fields:
        return _pixels(numbers.order.swapped([fields["x1"], fields["y1"]]), numbers)
    own = {key: fields[key] for key in ("x", "y", *POINT_KEYS, *BOX_KEYS) if key in fields}
    point = point_in(own, numbers.order.y_first) if own else None
    return None if point is None else _pixels(point, numbers)


def _named(fields: Mapping[str, Any], axes: Sequence[tuple[str, str]], keys: Sequence[str], numbers: Numbers) -> Point | None:
    """The start or the end of a drag, by its own names."""
    for x, y in axes:
        if is_number(fields.get(x)) and is_number(fields.get(y)):
            return _pixels(numbers.order.swapped([fields[x], fields[y]]), numbers)
    point = next((point_in(fields[key], numbers.order.y_first) for key in keys if key in fields), None)
    return None if point is None else _pixels(point, numbers)


def _says(fields: Mapping[str, Any], keys: Sequence[str]) -> bool:
    return any(fields.get(key) is not None for key in keys)


def _pixels(point: Sequence[float], numbers: Numbers) -> Point:
    if max(map(abs, point)) > 1e7:
        raise NoAction(f"{list(point)!r:.60} is no place")
    return numbers.pixels(point)


def _middle(number: int, elements: Sequence[Element]) -> Point:
    if not 1 <= number <= len(elements):
        raise NoAction(f"there is no element {number if abs(number) < 10**9 else 'of that number'}: there are {len(elements)}")
    found = elements[number - 1]
    return found.click_point or middle(found.box)


# -- brief ------------------------------------------------------------------------------------------------------------------


def _brief(line: str, verb: str, numbers: Numbers, elements: Sequence[Element], names: Mapping[str, str]) -> Action:
    """An action such as `click 12 40`: a verb and its arguments."""
    name, rest = _name(verb), line[len(verb) :].removeprefix(":").strip()
    kind, spoken = names.get(name), _is_spoken(name, names)
    if verb == "SCROLL" and line[len(verb) :].lstrip()[:1] == ":":  # GUI-Odyssey's, which says where the finger goes
        name = "swipe"
    if verb.isupper() and kind and (not rest or _IN_BRACKETS.fullmatch(rest)):  # OS-Atlas's TYPE [text], OSWorld's DONE
        name, rest = (kind if rest else name), rest[1:-1]
        if kind in _SPOKEN:
            return made(name, {"text": rest} if rest else {}, numbers, elements, names)
    if spoken and line[len(verb) :][:1] == "(":
        raise NoAction(f"this call can't be read: {line[:60]!r}")
    if spoken:
        return made(name, {"text": _unquoted(rest)}, numbers, elements, names)
    if kind is None or kind in _SPOKEN:  # such as "Write a letter", which is prose
        raise NoAction(f"there is no action in {line[:60]!r}")
    for mark in (",", "(", ")", "<point>", "</point>"):
        rest = rest.replace(mark, " ")
    words = rest.rstrip(".").split()
    fields: dict[str, Any] = {}
    if kind == "scroll" or name == "swipe":
        ways = [word for word in words if word.lower() in DIRECTIONS]
        words = [word for word in words if word.lower() not in DIRECTIONS]
        if len(ways) > 1:
            raise NoAction(f"there is more than one direction in {line[:60]!r}")
        fields["direction"] = ways[0] if ways else None
    values = " ".join(words).replace("[", " ").replace("]", " ").replace("#", " ").split()
    if not all(map(_is_plain, values)):
        raise NoAction(f"there is more than an action in {line[:60]!r}")
    places = [float(v) for v in values]
    if len(places) == 1 and elements and places[0] == int(places[0]) and kind in (*POINTED, "drag"):
        fields["element"] = int(places[0])
    elif len(places) == 4 and kind == "drag":
        fields |= {"at": places[:2], "to": places[2:]}
    elif len(places) == 2 and kind in (*POINTED, "drag", "scroll"):
        fields["at"] = places
    elif places:
        raise NoAction(f"there are {len(places)} numbers in {line[:60]!r}")
    return made(name, fields, numbers, elements)


def _is_spoken(name: str, names: Mapping[str, str]) -> bool:
    return name in _SPOKEN and name in names


def _is_plain(word: str) -> bool:
    digits = word.removeprefix("-")
    return len(word) < 20 and digits.isascii() and digits.replace(".", "", 1).isdigit()


def _unquoted(text: str) -> str:
    """What is between double quotes, as JSON writes it, or the text itself."""
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            return str(json.loads(text))
        except ValueError:
            return text
    return text


# -- writing ----------------------------------------------------------------------------------------------------------------


def write(
    action: Action, style: str = "json", numbers: Numbers = AS_IT_STANDS, within: Box | None = None, element: int | None = None
) -> str:
    """An action as a completion; the inverse of `read`.

    numbers: format of its positions. within: the box that must still contain `at` after rounding. element: the number of the
    element, from 1, that is written instead of a point.
    """
    said: dict[str, Any] = {"action": action.kind}
    if action.at is not None:
        at = numbers.written(action.at, within)
        said |= {"element": element} if element else _axes(("x", "y"), at, numbers)
    if action.to is not None:
        said |= _axes(("to_x", "to_y"), numbers.written(action.to), numbers)
    if action.direction:
        said["direction"] = action.direction
    if action.text or action.kind == "type":
        said["text"] = action.text
    if style == "ui-tars":
        return written_call(said, numbers.order)
    if style != "brief":
        single = {key: numbers.order.json_value([said[key]]) for key in PLACED if key in said}
        tokens = {key: value for key, value in single.items() if isinstance(value, str)}
        return json.dumps(said | tokens, ensure_ascii=False)
    parts: list[str] = [action.kind, action.direction or ""]
    parts += [f"[{element}]"] if element and action.at is not None else []
    places = [said[key] for key in numbers.order.swapped(PLACED) if key in said and action.kind not in FILLS]
    parts.append(numbers.order.text(places, "{:.12g}".format))
    if "text" in said:
        odd = action.text != action.text.strip() or action.text[:1] == '"' or not action.text.isprintable()
        parts.append(json.dumps(action.text, ensure_ascii=False) if odd else action.text)
    return " ".join(part for part in parts if part)


def _axes(names: Sequence[str], written: Sequence[float], numbers: Numbers) -> dict[str, float]:
    """Written numbers by the names of their axes, x and y."""
    return dict(zip(names, numbers.order.swapped(written), strict=True))


def listed(elements: Sequence[Element]) -> str:
    """Elements as a list for a prompt, one per line, numbered from 1 as in `read`."""
    lines = []
    for number, one in enumerate(elements, 1):
        named = f" {json.dumps(one.text[:200], ensure_ascii=False)}" if one.text else ""
        held = f" ({one.value[:200]})" if one.value else ""
        lines.append(f"[{number}] {one.role}{named}{held}")
    return "\n".join(lines)


# -- plain data -------------------------------------------------------------------------------------------------------------


def as_data(action: Action) -> dict[str, Any]:
    """An action as JSON data: its nonempty fields. Positions are in pixels."""
    found: dict[str, Any] = {"kind": action.kind}
    if action.at is not None:
        found["at"] = list(action.at)
    if action.to is not None:
        found["to"] = list(action.to)
    if action.text:
        found["text"] = action.text
    if action.direction:
        found["direction"] = action.direction
    return found


def of_data(value: Any) -> Action:
    """The action from `as_data`, or from another data set's form, also one that is written as a completion. Raises ValueError."""
    if isinstance(value, str):
        return read(value, names=WITH_SELECT)
    if not isinstance(value, dict):
        raise NoAction(f"its action is {value!r:.60} and not an object")
    return of_json(value, names=WITH_SELECT)
