"""Read boxes with labels, a point or a number from a completion. For our own verifiers.

Two forms are accepted, whichever a task requests: JSON (`{"bbox_2d": [12, 34, 56, 78], "label": "red circle"}`, lists of such,
with `bbox`, `box` or `box_2d` for `bbox_2d`, or bare lists of four numbers), and bare numbers (`12 34 56 78`, one box a line or
between semicolons, a label before the numbers; location tokens may have it behind them). Numbers are in the order of the
answer's coordinate format, and y_first says that this is y before x. Unreadable text is no answer. A box that has no area, is
reversed or has huge numbers counts as listed and overlaps nothing.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from mmrl import Case
from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.verifiers.parse import MAX_LENGTH, only_answer, only_json, parse_number, parse_numbers, without_thinking
from mmrl_grounding.coordinates import format_of
from mmrl_grounding.geometry import is_box

MOST = 500
"""Maximum of boxes in an answer; more is no answer."""
NOTHING = ("none", "nothing", "no objects")
"""Words for an answer without objects, besides an empty list."""
_BOX_KEYS = ("bbox_2d", "bbox", "box", "box_2d")
_LIST_KEYS = ("boxes", "bboxes", "objects", "detections", "items")
_LABEL_KEYS = ("label", "class", "category", "name")
_POINT_KEYS = ("point_2d", "point", "points", "click")
BRACKETS = ("[", "{", "`")
PROSE = 1_000
"""Characters of a text in which four numbers among words are taken for a box."""
_TAG = re.compile("</?(?:think|answer)>")
_ODD = re.compile(r"nan|inf|null|none|\d[eE]", re.IGNORECASE)
"""Words in the place of a number, which would be skipped otherwise; and numbers with exponents."""
_LABELLED = re.compile(r'(?<!")((?:<loc[0-9]{4}>){4})[ \t]*([^<>;\n"]*)')
"""A box of location tokens with a label behind it."""
_SEPARATORS = str.maketrans("[](){},:=", " " * 9)
_WHOLE = re.compile(r"[0-9]{1,9}")
_DIGITS = re.compile(r"[0-9]+(?:[.][0-9]*)?")
_SIGNED = re.compile(r"[-+]?(?:[0-9]{1,9}(?:\.[0-9]{0,20})?|\.[0-9]{1,20})(?:[eE][-+]?[0-9]{1,2})?")


class Listed(NamedTuple):
    """One box of an answer."""

    box: tuple[float, ...] | None
    """(x1, y1, x2, y2) as written; None for one that has no area or can't be read."""
    label: str
    """In the form in which labels are compared; empty without one."""


def said(case: Case) -> tuple[str | None, str]:
    """(the answer's text, ""), or (None, why there is none). If the task requests tags (`meta["style"]`) or the completion has
    some, it is the text of the one answer tag, else all that stands behind the thinking. Location tokens become numbers."""
    text: str | None = without_thinking(case.completion)
    why = ""
    if case.meta.get("style") == "tags" or len(case.completion) > MAX_LENGTH or _TAG.search(text or case.completion):
        text, why = only_answer(case.completion)
    written = format_of(case)
    if text is not None and written is CoordinateFormat.LOCATION_TOKENS:
        text = written.without_tokens(_LABELLED.sub(r"\2 \1", text))
    return text, why


def boxes(text: str, y_first: bool = False) -> list[Listed] | None:
    """The boxes that a text lists, in order; None if it is not such a list, or has more than `MOST`."""
    plain = text.strip()
    if plain.rstrip(".").lower() in NOTHING:
        return []
    found = None if plain[:1] in BRACKETS else _from_lines(plain)
    if found is None:
        value = only_json(plain, spare=3)
        found = None if value is None else _from_json(value, y_first)
    return found if found is not None and len(found) <= MOST else None


def box(text: str, y_first: bool = False) -> tuple[float, ...] | None:
    """The one box of a text; None when it has none, one that is reversed or empty, or several."""
    found = boxes(text, y_first)
    if found is None and len(text) < PROSE and sum(map(text.count, "[{(")) <= 2 and not _ODD.search(text):
        if len(_DIGITS.findall(text)) > 5:  # also such as no number is read from, 12px
            return None
        four = parse_numbers(text, 5)  # in words: the box is 12, 34 to 56, 78
        found = [_listed(four, "")] if len(four) == 4 else None
    return found[0].box if found is not None and len(found) == 1 else None


def point(text: str, y_first: bool = False) -> tuple[float, float] | None:
    """The one point of a text: two numbers, `[x, y]`, `{"point_2d": [x, y]}` or `{"x": x, "y": y}`."""
    value: Any = None
    if text.strip()[:1] in BRACKETS:
        value = only_json(text, spare=1)
    elif len(text) < PROSE:
        words = [word for word in text.translate(_SEPARATORS).split() if word.lower() not in ("x", "y")]
        value = [float(word) for word in words] if all(map(_SIGNED.fullmatch, words)) else None
    if isinstance(value, list) and len(value) == 1 and isinstance(value[0], list | dict):
        value = value[0]
    if isinstance(value, dict):
        keyed = next((value[k] for k in _POINT_KEYS if k in value), None)
        value = [value[axis] for axis in ("yx" if y_first else "xy")] if "x" in value and "y" in value else keyed
    if not isinstance(value, list) or len(value) != 2 or not all(map(_plain, value)) or max(map(abs, value)) > 1e7:
        return None
    return float(value[0]), float(value[1])


def count(text: str) -> float | None:
    """The number that a text is, or that stands under `count` in its JSON."""
    if text.strip()[:1] in BRACKETS:
        value = only_json(text, spare=0)
        found = value.get("count") if isinstance(value, dict) else None
        return float(found) if isinstance(found, int | float) and _plain(found) else None
    return parse_number(text)


def fold(label: Any) -> str:
    """The form in which labels are compared: without regard to case, outer blanks, `_` and hyphens."""
    return " ".join(str(label).casefold().replace("_", " ").replace("-", " ").split()) if isinstance(label, str) else ""


def _from_lines(text: str) -> list[Listed] | None:
    """One box a line, or between semicolons: perhaps a label, then four numbers and nothing else."""
    found: list[Listed] = []
    for line in text.replace(";", "\n").splitlines():
        words = line.translate(_SEPARATORS).split()
        if not words:
            continue
        *label, a, b, c, d = words if len(words) >= 4 else ["", "", "", ""]
        if not all(map(_SIGNED.fullmatch, (a, b, c, d))) or not _is_label(label) or len(found) > MOST:
            return None
        found.append(_listed([float(a), float(b), float(c), float(d)], " ".join(label)))
    return found or None


def _is_label(words: list[str]) -> bool:
    """Whether words before four numbers can be a label: at most one has digits, and none is a number, as in another box, but for
    a single whole one in a name, as in `iphone 7` and `channel 5 plus`."""
    odd = [word for word in words if any(map(str.isdigit, word))]
    if len(words) > 1 and len(odd) == 1 and _WHOLE.fullmatch(odd[0]):
        return True
    return len(odd) < 2 and all(any(map(str.isalpha, word)) and not _SIGNED.fullmatch(word) for word in odd)


def _from_json(value: Any, y_first: bool) -> list[Listed] | None:
    if isinstance(value, dict):
        inner = next((value[k] for k in _LIST_KEYS if isinstance(value.get(k), list)), None)
        if inner is None:
            return [_item(value, y_first)] if any(k in value for k in (*_BOX_KEYS, "x1")) else None
        value = inner
    if len(value) == 4 and all(map(_plain, value)):
        return [_listed(value, "")]
    if len(value) > MOST or not all(isinstance(item, list | dict) for item in value):
        return None
    return [_item(item, y_first) for item in value]


def _item(item: Any, y_first: bool) -> Listed:
    if isinstance(item, list):
        return _listed(item, "")
    corners = next((item[k] for k in _BOX_KEYS if k in item), None)
    if corners is None and "x1" in item:
        corners = [item.get(k) for k in (("y1", "x1", "y2", "x2") if y_first else ("x1", "y1", "x2", "y2"))]
    return _listed(corners, next((item[k] for k in _LABEL_KEYS if k in item), ""))


def _listed(corners: Any, label: Any) -> Listed:
    if isinstance(corners, list) and len(corners) == 2 and all(isinstance(c, list) for c in corners):
        corners = [v for corner in corners for v in corner]  # [[x1, y1], [x2, y2]]
    sound = isinstance(corners, list) and len(corners) == 4 and all(map(_plain, corners)) and is_box(corners)
    return Listed(tuple(map(float, corners)) if sound else None, fold(label))


def _plain(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
