"""Published files of episodes in forms of their own, as rows of the common form, see `trajectories`.

GUI-Odyssey (Lu et al. 2024, arXiv 2406.08451; introduction.md and data/format_converter.py of OpenGVLab/GUI-Odyssey): a JSON file
for each episode, places in thousandths. Multimodal-Mind2Web (Deng et al. 2023, Zheng et al. 2024; the data set of that name): a
row for each step, the element as `pos_candidates`, with SeeClick's reading of its operations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmrl_gui.names import SELECT
from mmrl_gui.tables import parsed

PIXELS, THOUSANDTHS = "pixels", "thousandths"
"""What a row's places are in, its `places`."""
_KEYS = {"KEY_HOME": {"action": "home"}, "KEY_BACK": {"action": "back"}, "KEY_APPSELECT": {"action": "press_recent"}}
_KEYS["KEY_RECENT"] = _KEYS["KEY_APPSELECT"]
_CLICKS = ("CLICK", "HOVER", "ENTER")
"""Mind2Web's operations that count as clicks."""


def common(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row of one of these files in the common form; any other row as it is. Raises ValueError for a broken one."""
    if isinstance(row.get("task_info"), dict) and isinstance(row.get("steps"), list):
        return _odyssey(row)
    if "pos_candidates" in row and "confirmed_task" in row:
        return _mind2web(row)
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
        (x1, y1), (x2, y2) = pair
        across = abs(x2 - x1) > abs(y2 - y1)
        finger = ("left" if x2 < x1 else "right") if across else ("up" if y2 < y1 else "down")
        action = {"action": "swipe", "direction": finger}
    elif kind in ("TEXT", "TYPE"):
        action = {"action": "type", "text": info}
    return {
        "screenshot": step.get("screenshot"),
        "action": action,
        "box": step.get("sam2_bbox") or None,
        "step_instruction": step.get("low_level_instruction"),
    }


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
