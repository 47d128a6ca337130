"""Parse completions: the answer, its one JSON value, a point or a box. For our own verifiers and environments.

Completions may be hostile: everything here takes time linear in their length and raises nothing.
"""

from __future__ import annotations

import json
import re
from typing import Any

from mmrl.api.simulators.gui import Box, Point
from mmrl.api.verifiers.parse import MAX_LENGTH, literal, only_answer, only_json, without_thinking
from mmrl_gui.calls import call_of, last_action
from mmrl_gui.geometry import is_box, is_number, middle
from mmrl_gui.names import NoAction

PROSE = 2_000
"""Maximum of characters around an answer's JSON."""
MOST_QUOTED = 20_000
"""Maximum of characters of an answer in Python's form, with single quotes."""
LIMIT = 1e7
"""The largest number of a position."""
BOX_KEYS = ("bbox_2d", "bbox", "box", "box_2d")
POINT_KEYS = (
    "point_2d",
    "point",
    "coordinate",
    "coordinates",
    "position",
    "at",
    "start_point",
    "start_box",
    "start_coordinate",
    "start",
    "click",
)
SPARE = 1
"""Maximum of numbers in the prose around an answer's JSON; more count as another answer."""
_TAG = re.compile("</?(?:think|answer|tool_call)>")
_SEPARATORS = str.maketrans("[](){},:=;<>/", " " * 13)
_SIGNED = re.compile(r"[-+]?(?:[0-9]{1,9}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,2})?")


def said(text: str, tags: bool = False) -> tuple[str | None, str]:
    """(the answer's text, ""), or (None, why there is none): the text of the one answer tag, or of the one tool call, if the
    completion has such or `tags` requires them, else all that stands behind the thinking."""
    if len(text) > MAX_LENGTH:
        return None, f"longer than {MAX_LENGTH:,} characters"
    answer = without_thinking(text)
    if "<tool_call>" in answer and "<answer>" not in answer:
        return only_answer(text, "tool_call")
    if tags or _TAG.search(answer or text):
        return only_answer(text)
    return answer, ""


def json_said(text: str) -> Any:
    """The one JSON list or object of an answer, in a fence or in some prose; None if there is none, or another answer too."""
    return only_json(text, spare=SPARE, prose=PROSE, fence=True)


def quoted(text: str) -> Any:
    """A list or an object in Python's form, `[{'action': 'click'}]`: literals only, and tuples as lists."""
    if len(text) > MOST_QUOTED:
        return None
    try:
        found = json.loads(json.dumps(literal(text)))  # bytes and sets are refused
    except (ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, list | dict) else None


def place(text: str, y_first: bool = False) -> tuple[Point | None, Box | None]:
    """(the one point that a text gives, None) or (None, its one box), as written; (None, None) without one, or with several.
    y_first: numbers are written y before x, and so are those that a text gives as `x` and `y`.

    Bare numbers, `12 34` or `12 34 56 78`; lists of them; JSON objects with a key of `POINT_KEYS` or `BOX_KEYS`, or with `x` and
    `y`; each alone or in a list of one; and a click, `click 12 34` or `Action: click(start_box='(12,34)')`, see `calls`.
    """
    plain = text.strip()
    try:
        plain = last_action(plain)
        if call := call_of(plain):
            return place_in(call[1], y_first)
    except NoAction:
        return None, None
    if any(sign in plain for sign in "[{`"):
        return place_in(json_said(plain) or quoted(plain), y_first)
    if len(plain) > 200:
        return None, None
    words = [
        word
        for word in plain.translate(_SEPARATORS).split()
        if word.lower().rstrip(".") not in ("x", "y", "click", "point", "box")
    ]
    if not all(map(_SIGNED.fullmatch, words)):
        return None, None
    return place_in([float(word) for word in words])


def place_in(value: Any, y_first: bool = False) -> tuple[Point | None, Box | None]:
    """The same of a JSON value."""
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list | dict):
        value = value[0]
    if isinstance(value, dict):
        if isinstance(inner := value.get("arguments"), dict):
            value = inner
        value = _keyed(value, y_first)
    if isinstance(value, str) and len(value) < 100:
        words = value.replace("point", " ").replace("box", " ").translate(_SEPARATORS).split()
        value = [float(word) for word in words] if all(map(_SIGNED.fullmatch, words)) else None
    if isinstance(value, list) and len(value) == 2 and all(isinstance(v, list) and len(v) == 2 for v in value):
        value = [*value[0], *value[1]]  # [[x1, y1], [x2, y2]]
    if not isinstance(value, list) or len(value) not in (2, 4) or not all(map(is_number, value)):
        return None, None
    if max(map(abs, value)) > LIMIT:
        return None, None
    if len(value) == 2:
        return (float(value[0]), float(value[1])), None
    x1, y1, x2, y2 = map(float, value)
    return (None, (x1, y1, x2, y2)) if is_box(value) else (None, None)


def point_in(value: Any, y_first: bool = False) -> Point | None:
    """The point of a JSON value; the middle of a box."""
    point, box = place_in(value, y_first)
    return middle(box) if box else point


def _keyed(value: dict[str, Any], y_first: bool) -> Any:
    if is_number(value.get("x")) and is_number(value.get("y")):
        return [value[axis] for axis in ("yx" if y_first else "xy")]
    return next((value[key] for key in (*POINT_KEYS, *BOX_KEYS) if key in value), None)
