"""Published files of episodes in forms of their own, as rows of the common form, see `trajectories`.

GUI-Odyssey (Lu et al. 2024, arXiv 2406.08451; introduction.md and data/format_converter.py of OpenGVLab/GUI-Odyssey): a JSON file
for each episode, places in thousandths. Multimodal-Mind2Web (Deng et al. 2023, Zheng et al. 2024; the data set of that name): a
row for each step, the element as `pos_candidates`, with SeeClick's reading of its operations. Android in the Wild (Rawles et al.
2023, arXiv 2307.10088) in SeeClick's files, aitw_data_*.json: a row for each step, places in parts of the screen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mmrl_gui.geometry import apart, inside, is_number
from mmrl_gui.names import SELECT
from mmrl_gui.tables import parsed

PIXELS, THOUSANDTHS, UNIT = "pixels", "thousandths", "unit"
"""What a row's places are in, its `places`."""
_KEYS = {"KEY_HOME": {"action": "home"}, "KEY_BACK": {"action": "back"}, "KEY_APPSELECT": {"action": "press_recent"}}
_KEYS["KEY_RECENT"] = _KEYS["KEY_APPSELECT"]
_CLICKS = ("CLICK", "HOVER", "ENTER")
"""Mind2Web's operations that count as clicks."""
TAP = 0.04
"""The longest way of a finger that taps, in parts of the screen: _SWIPE_DISTANCE_THRESHOLD of AITW's action_matching.py."""
_WIDER = 1.4
"""By what share of its size an annotated element of AITW is widened, ANNOTATION_WIDTH_AUGMENT_FRACTION there."""
_GESTURE = 4
"""AITW's DUAL_POINT: any tap or swipe."""
_OTHERS: Mapping[int, Mapping[str, str]] = {
    5: {"action": "back"},
    6: {"action": "home"},
    7: {"action": "key", "text": "Enter"},
    10: {"action": "answer", "text": "done"},
    11: {"action": "answer", "text": "infeasible"},
}
"""AITW's numbers of actions that have no arguments."""


def common(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of one of these files in the common form; any other row as it is. Raises ValueError for a broken one."""
    if isinstance(row.get("task_info"), dict) and isinstance(row.get("steps"), list):
        return _odyssey(row)
    if "pos_candidates" in row and "confirmed_task" in row:
        return _mind2web(row)
    if "action_type_id" in row and "action_type_text" in row:
        return _aitw(row)
    return row


def _odyssey(row: Mapping[str, Any]) -> Mapping[str, Any]:
    info = row["task_info"]
    steps = [_odyssey_step(step) if isinstance(step, dict) else step for step in row["steps"]]
    return {
        "episode_id": row.get("episode_id"),
        "instruction": info.get("instruction") or info.get("task"),
        "category": info.get("category"),
        "places": THOUSANDTHS,
        "steps": steps,
    }


def _odyssey_step(step: Mapping[str, Any]) -> Mapping[str, Any]:
    """A step; its action stays as it is where it can't be read, and raises when it is used."""
    kind, info = step.get("action"), step.get("info")
    pair = (
        info[:2] if isinstance(info, list) and info and all(isinstance(p, list | tuple) and len(p) == 2 for p in info[:2]) else []
    )
    action: Any = {"action": str(kind)}
    if isinstance(info, str) and info in _KEYS:
        action = _KEYS[info]
    elif kind in ("CLICK", "LONG_PRESS") and pair:
        action = {"action": kind, "at": list(pair[0])}
    elif kind == "SCROLL" and len(pair) == 2:  # the way of the finger
        action = {"action": "swipe", "direction": _finger(*pair)}
    elif kind in ("TEXT", "TYPE"):
        action = {"action": "type", "text": info}
    return {
        "screenshot": step.get("screenshot"),
        "action": action,
        "box": step.get("sam2_bbox") or None,
        "step_instruction": step.get("low_level_instruction"),
    }


def _finger(start: Sequence[float], end: Sequence[float]) -> str:
    """The way of a finger, by the longer of its two sides; by the vertical one where they are equal."""
    (x1, y1), (x2, y2) = start, end
    across = abs(x2 - x1) > abs(y2 - y1)
    return ("left" if x2 < x1 else "right") if across else ("up" if y2 < y1 else "down")


def _mind2web(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found: dict[str, Any] = {
        "episode_id": row.get("annotation_id"),
        "index": row.get("target_action_index"),
        "goal": row.get("confirmed_task"),
        "category": row.get("domain"),
        "types_at": True,
        "screenshot": row.get("screenshot"),
    }
    candidates = parsed(row["pos_candidates"]) or []
    operation = parsed(row.get("operation"))
    if not isinstance(operation, dict) or not candidates:
        return found  # without an element no step can be right: no action, which raises when it is used
    box = _rectangle(candidates[0])
    place = [(box[0] + box[2]) / 2, (box[1] + box[3]) / 2]
    kind = operation.get("original_op") or operation.get("op")
    if kind in _CLICKS:
        return found | {"action": {"action": "click", "at": place}, "bbox": box}
    name = SELECT if kind == "SELECT" else "type"
    return found | {"action": {"action": name, "at": place, "text": operation.get("value")}, "bbox": box}


def _rectangle(candidate: Any) -> list[float]:
    """Two corners of an element: x, y, width and height in its attributes, JSON in JSON."""
    candidate = parsed(candidate)
    attributes = parsed(candidate.get("attributes")) if isinstance(candidate, dict) else None
    said = str(attributes.get("bounding_box_rect", "") if isinstance(attributes, dict) else "")
    try:
        x, y, width, height = map(float, said.split(","))
    except ValueError:
        raise ValueError(f"its element has the bounding_box_rect {said!r:.40} and not x,y,width,height") from None
    return [x, y, x + width, y + height]


def _aitw(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A step; `regions` are the elements of a tap, see `_regions`."""
    if not isinstance(name := row.get("img_filename"), str) or not name:
        raise ValueError("it has no picture under img_filename")
    found = {key: row.get(key) for key in ("episode_id", "index", "goal", "category")}
    found |= {"places": UNIT, "screenshot": f"{name}.png"}
    kind, said = row["action_type_id"], str(row["action_type_text"])
    if kind == 3:
        return found | {"action": {"action": "type", "text": row.get("type_text")}}
    if kind != _GESTURE:
        return found | {"action": _OTHERS.get(kind, {"action": said}) if isinstance(kind, int) else {"action": said}}
    if said != "click":
        return found | {"action": {"action": "scroll", "direction": said.removeprefix("scroll ")}}
    touch, lift = (_point(row, key) for key in ("touch", "lift"))
    if apart(touch, lift, (1, 1)) > TAP:  # a swipe for the published matching, which compares the axis alone
        return found | {"action": {"action": "swipe", "direction": _finger(touch, lift)}}
    return found | {"action": {"action": "click", "at": touch}, "regions": _regions(row.get("annot_position"), touch)}


def _point(row: Mapping[str, Any], key: str) -> list[float]:
    point = row.get(key)
    if not isinstance(point, list) or len(point) != 2 or not all(map(is_number, point)):
        raise ValueError(f"its {key} is {point!r:.60} and not x, y")
    return point


def _regions(listed: Any, tap: list[float]) -> list[list[float]]:
    """The annotated elements around a tap, widened as AITW's action matching widens them, in which any tap is the same: two
    corners each, in parts of the screen. listed: y, x, height and width of all of them, in one list."""
    if not isinstance(listed, list) or len(listed) % 4 or not all(map(is_number, listed)):
        raise ValueError(f"its annot_position is {listed!r:.60} and not y, x, height, width of each element")
    found = []
    for n in range(0, len(listed), 4):
        y, x, height, width = listed[n : n + 4]
        top, left = max(0, y - _WIDER * height / 2), max(0, x - _WIDER * width / 2)
        found.append([left, top, left + min(1, width + _WIDER * width), top + min(1, height + _WIDER * height)])
    return [box for box in found if inside(tap, box)]
