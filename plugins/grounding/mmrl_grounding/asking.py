"""Prompts and gold completions in the styles that tasks share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.api.coordinates import CoordinateFormat

STYLES = ("short", "json", "tags")
_SHORT = {
    "box": "Answer with its box: x1 y1 x2 y2, {where}.",
    "boxes": "Answer with a line for each: its name and its box, x1 y1 x2 y2, {where}. If there is nothing, answer none.",
    "point": "Answer with a point on it: x y, {where}.",
    "count": "Answer with the number.",
}
_WHAT = {
    "box": 'its box as JSON, {{"bbox_2d": [x1, y1, x2, y2]}}, {where}',
    "boxes": 'the boxes as a JSON list, [{{"bbox_2d": [x1, y1, x2, y2], "label": name}}], {where}, or [] if there is nothing',
    "point": 'a point on it as JSON, {{"point_2d": [x, y]}}, {where}',
    "count": "the number",
}
_WHERE = {
    CoordinateFormat.PIXELS: "in pixels of the {0} x {1} picture",
    CoordinateFormat.MODEL_PIXELS: "in pixels of the {0} x {1} picture",
    CoordinateFormat.THOUSANDTHS: "in thousandths of its width and height",
    CoordinateFormat.UNIT: "in parts of its width and height, from 0 to 1",
}
_ENDS = (*".?!:", "\u3002", "\uff1f", "\uff01")
"""Signs after which a new sentence may begin."""
VLM_R1_BOX = "Please provide the bounding box coordinate of the region this sentence describes: {0}."
VLM_R1_REC = (
    "{0} First output the thinking process in <think> </think> tags and then output the final answer in <answer> </answer> tags. "
    "Output the final answer in JSON format."
)
VLM_R1_OD = (
    "First thinks about the reasoning process in the mind and then provides the user with the answer. The reasoning process and "
    "answer are enclosed within <think> </think> and <answer> </answer> tags, respectively, i.e., "
    "<think> reasoning process here </think><answer> answer here </answer>\n{0}"
)
"""VLM-R1's templates of the task types `rec` and `odLength`, for questions of the data."""
VLM_R1_BOXES = (
    "Please carefully check the image and detect the following objects: {0}. Output the bbox coordinates of detected objects in "
    'JSON format:\n```json\n[{{"bbox_2d": [x1, y1, x2, y2], "label": "object name"}}]\n```\n'
    "If there are none, simply respond with None."
)
"""For data without questions of their own, after those of VLM-R1's detection data."""
VISION_R1_BOXES = (
    "Locate every item from the category list in the image and output the coordinates in JSON format. "
    "The category set includes {0}."
)


def ask(text: str, style: str, asks: str, coordinate_format: CoordinateFormat, size: tuple[int, int]) -> str:
    """A question with instructions for the answer. asks: box, boxes, point or count. size: (width, height) in the pixels of
    `coordinate_format`."""
    where = _WHERE[coordinate_format].format(*size)
    text = text if text.rstrip().endswith(_ENDS) else f"{text.rstrip()}."
    if style == "short":
        return f"{text} {_SHORT[asks].format(where=where)}"
    what = _WHAT[asks].format(where=where)
    if style == "json":
        return f"{text} Answer with {what}, and nothing else."
    return f"{text} Think in <think> </think> tags, then give {what}, in <answer> </answer> tags."


def answer(style: str, asks: str, truth: Any) -> str:
    """The text of a gold completion. truth: a box, a point, a number, or a list of `{"bbox_2d", "label"}`, in the answer's
    coordinate format."""
    if asks == "count":
        return str(truth)
    if style == "short":
        if asks == "boxes":
            return "\n".join(f"{t['label']} {numbers(t['bbox_2d'])}" for t in truth) or "none"
        return numbers(truth)
    if asks == "boxes":
        return listed(truth)
    return json.dumps({"bbox_2d" if asks == "box" else "point_2d": list(truth)})


def numbers(values: Sequence[float]) -> str:
    return " ".join(f"{v:g}" if abs(v) < 1e5 else str(v) for v in values)


def listed(objects: Sequence[Mapping[str, Any]]) -> str:
    """Boxes as a JSON list."""
    return json.dumps([{"bbox_2d": list(o["bbox_2d"]), "label": o["label"]} for o in objects], ensure_ascii=False)


def thought(text: str, said: str) -> str:
    """A completion with a thought and an answer in their tags."""
    return f"<think>{text}</think>\n<answer>{said}</answer>"
