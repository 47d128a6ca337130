"""Actions that are written as a call: UI-TARS's `click(start_box='(12,40)')`, and the lines of pyautogui that OSWorld runs and
AGUVIS learns, `pyautogui.click(x=12, y=40)` and `mobile.swipe(from_coord=[1, 2], to_coord=[3, 4])`.

Their arguments are read, and nothing is run. UI-TARS's are those of its codes/ui_tars/action_parser.py (github.com/bytedance):
`start_box` and `end_box` of version 1 and 1.5, in box tokens or without them, and `<point>x y</point>` of version 2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.api.coordinates import CoordinateFormat
from mmrl_gui.names import KINDS, NoAction, plain

MOST = 20
"""Maximum of arguments of a call."""
_MODULE = r"(?:pyautogui|mobile|browser)\."
_LINE = re.compile(rf"^[ \t]*({_MODULE}[A-Za-z_]{{1,30}}\(.*\))[ \t]*$", re.MULTILINE)
_CALL = re.compile(rf"({_MODULE})?([A-Za-z_]{{1,30}})\((.*)\)", re.DOTALL)
_BOX_TOKEN = re.compile(r"<\|box_(?:start|end)\|>")
"""Of UI-TARS 1 and Qwen2-VL, around a place."""
_STEP = re.compile(r"^[ \t]*actions?[ \t]*:", re.MULTILINE | re.IGNORECASE)
_STRING = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\""
_ARGUMENT = re.compile(
    rf"\s*(?:([A-Za-z_]{{1,30}})\s*=\s*)?({_STRING}|\[[^\[\]]*\]|\([^()]*\)|[-+.\w]{{1,40}})\s*(?:,|$)", re.DOTALL
)
_ITEM = re.compile(rf"\s*({_STRING}|[-+.\w]{{1,40}})\s*(?:,|$)", re.DOTALL)
_ONE_TEXT = re.compile(r"\s*([A-Za-z_]{1,30})\s*=\s*(['\"])(.*)\2\s*", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:[0-9]{1,9}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})")
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", "'": "'", '"': '"'}
_ESCAPED = str.maketrans({to: f"\\{sign}" for sign, to in _ESCAPES.items()})
NAMES: Mapping[str, str] = {
    **{
        "double-click": "left_double",
        "triple-click": "left_triple",
        "right-click": "right_single",
        "middle-click": "middle_click",
    },
    **{"long-press": "long_press", "key": "hotkey", "open": "open_app", "answer": "finished", "back": "press_back"},
    **{"home": "press_home"},
}
"""Our kind -> UI-TARS's name, where it is another."""
_ORDER: Mapping[str, Sequence[str]] = {
    "click": ("x", "y", "clicks", "interval", "button"),
    "swipe": ("from_coord", "to_coord"),
    "scroll": ("amount", "x", "y"),
    "wait": ("seconds",),
    **dict.fromkeys(("type", "open", "answer", "select"), ("text",)),
}
"""Name or kind -> the names of its arguments, in pyautogui's order; all others begin with x and y."""


_RELATIVE = ("drag", "dragrel", "move", "moverel")
"""Functions of pyautogui that move by a distance."""


def last_action(text: str) -> str:
    """What stands after the one `Action:` at the beginning of a line, as UI-TARS and OS-Atlas write it after a thought; the whole
    text without one. Box tokens are left out. Raises NoAction if there are several."""
    text = _BOX_TOKEN.sub("", text)
    found = list(_STEP.finditer(text))
    if len(found) > 1:
        raise NoAction(f"there are {len(found)} actions, and one is wanted")
    return text[found[0].end() :].strip() if found else text


def call_of(text: str, names: Mapping[str, str] = KINDS) -> tuple[str, dict[str, Any]] | None:
    """(name, arguments by name) of a text that is one call, or has one line of pyautogui's; None for another text. A drag may be
    two lines, moveTo and dragTo. names: of actions, each with its kind. Raises NoAction for several calls, or for arguments that
    can't be read."""
    if "(" not in text:
        return None
    lines = [call for line in _LINE.findall(text) if (call := _read(line, names)) and plain(call[0]) != "sleep"]
    if [plain(name) for name, _ in lines] == ["moveto", "dragto"]:
        (_, start), (_, end) = lines
        return "drag", {"start_x": start.get("x"), "start_y": start.get("y"), "end_x": end.get("x"), "end_y": end.get("y")}
    if len(lines) > 1:
        raise NoAction(f"there are {len(lines)} actions, and one is wanted")
    return lines[0] if lines else _read(text, names)


def written_call(said: Mapping[str, Any], order: CoordinateFormat) -> str:
    """An action as UI-TARS's call. said: it as JSON data, with its places under their axes, or the number of an element."""
    given: list[str] = []
    if "element" in said:
        given.append(f"element={said['element']}")
    for key, x, y in (("start_box", "x", "y"), ("end_box", "to_x", "to_y")):
        if x in said:
            place = order.text(order.swapped((said[x], said[y])), "{:.12g}".format)
            given.append(f"{key}='({place.replace(' ', ',')})'")
    given += [f"direction='{said['direction']}'"] if "direction" in said else []
    if "text" in said:
        key = {"key": "key", "open": "app_name"}.get(said["action"], "content")
        text = said["text"].replace("+", " ").strip() or said["text"] if key == "key" else said["text"]
        given.append(f"{key}='{text.translate(_ESCAPED)}'")
    return f"{NAMES.get(said['action'], said['action'])}({', '.join(given)})"


def _read(text: str, names: Mapping[str, str]) -> tuple[str, dict[str, Any]] | None:
    """A text that is one call and nothing else. `click(12, 40)` and the like are left to the brief style."""
    found = _CALL.fullmatch(text.strip())
    if found is None or not (found[1] or plain(found[2]) in names):
        return None
    if not found[1] and found[3].strip() and not set(found[3]) & set("='\""):
        return None
    if found[1] == "pyautogui." and plain(found[2]) in _RELATIVE:
        raise NoAction(f"{found[1]}{found[2]} says how far, and a place is wanted")
    arguments = _arguments(found[2], names.get(plain(found[2]), ""), found[3])
    keys, presses = arguments.get("keys"), arguments.get("presses", 1)
    if plain(found[2]) == "press" and (presses != 1 or (isinstance(keys, list) and len(keys) > 1)):
        raise NoAction("press presses several times, and one action is wanted")
    return found[2], arguments


def _arguments(name: str, kind: str, inside: str) -> dict[str, Any]:
    order = _ORDER.get(plain(name)) or _ORDER.get(kind) or ("x", "y")
    named: dict[str, Any] = {}
    places: list[Any] = []
    at = 0
    inside = inside.strip()
    while at < len(inside):
        found = _ARGUMENT.match(inside, at) if len(places) + len(named) < MOST else None
        if found is None or (named and not found[1]):
            # a text may have quotes in it that aren't escaped, as UI-TARS's parser allows
            whole = _ONE_TEXT.fullmatch(inside)
            if whole is None:
                raise NoAction(f"the arguments of {name} can't be read: {inside[:40]!r}")
            return {whole[1]: _unescaped(whole[3])}
        if found[1]:
            named[found[1]] = _value(found[2])
        else:
            places.append(_value(found[2]))
        at = found.end()
    if kind == "key" and places:
        return named | {"keys": [key for one in places for key in (one if isinstance(one, list) else [one])]}
    if len(places) > len(order):
        raise NoAction(f"{name} has {len(places)} arguments without a name")
    return dict(zip(order, places, strict=False)) | named


def _value(text: str) -> Any:
    """A text, a number, True, False or None, or a list of such. Another word stays as it is."""
    if text[0] in "'\"":
        return _unescaped(text[1:-1])
    if text[0] in "[(":
        items, at, inside = [], 0, text[1:-1]
        while found := _ITEM.match(inside, at):
            items.append(_value(found[1]))
            at = found.end()
        if inside[at:].strip():
            raise NoAction(f"{text[:40]!r} can't be read")
        return items
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return {"True": True, "False": False, "None": None}.get(text, text)


def _unescaped(text: str) -> str:
    """A text as Python reads it between quotes; a backslash before any other sign stays."""
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[0]), text)
