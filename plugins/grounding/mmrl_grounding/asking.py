"""Prompts and gold completions in the styles that tasks share."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl.api.coordinates import CoordinateFormat

STYLES = ("short", "json", "tags")
_SHORT = {
    "box": "Answer with its box: {box}, {where}.",
    "boxes": "Answer with a line for each: its name and its box, {box}, {where}. If there is nothing, answer none.",
    "point": "Answer with a point on it: {point}, {where}.",
    "count": "Answer with the number.",
}
_TOKEN_BOXES = (
    "Answer with the box and the name of each, {box} name, and ; between them, {where}. If there is nothing, answer none."
)
"""The order of PaliGemma's answers, huggingface/blog, paligemma.md at 0995a4e."""
_WHAT = {
    "box": 'its box as JSON, {{"{box_key}": {box}}}, {where}',
    "boxes": 'the boxes as a JSON list, [{{"{box_key}": {box}, "label": name}}], {where}, or [] if there is nothing',
    "point": 'a point on it as JSON, {{"{point_key}": {point}}}, {where}',
    "count": "the number",
}
_WHERE = {
    CoordinateFormat.PIXELS: "in pixels of the {0} x {1} picture",
    CoordinateFormat.MODEL_PIXELS: "in pixels of the {0} x {1} picture",
    CoordinateFormat.THOUSANDTHS: "in thousandths of its width and height",
    CoordinateFormat.UNIT: "in parts of its width and height, from 0 to 1",
    CoordinateFormat.THOUSANDTHS_YX: "in thousandths of its height and width",
    CoordinateFormat.LOCATION_TOKENS: "in location tokens, <loc0000> to <loc1023> of its height and width",
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
    'JSON format:\n```json\n[{{"bbox_2d": [{1}], "label": "object name"}}]\n```\n'
    "If there are none, simply respond with None."
)
"""For data without questions of their own, after those of VLM-R1's detection data."""
VISION_R1_BOXES = (
    "Locate every item from the category list in the image and output the coordinates in JSON format. "
    "The category set includes {0}."
)

VISUAL_RFT_BOXES = (
    "Find every object of the kind '{0}', with its box and with how sure you are of it, from 0 to 1. Think in <think> </think> "
    "tags, then answer in <answer> </answer> tags, on one line: [{{'Position': [{1}], 'Confidence': number}}, ...]"
)


def ask(text: str, style: str, asks: str, coordinate_format: CoordinateFormat, size: tuple[int, int]) -> str:
    """A question with instructions for the answer. asks: box, boxes, point or count. size: (width, height) in the pixels of
    `coordinate_format`."""
    where = _WHERE[coordinate_format].format(*size)
    text = text if text.rstrip().endswith(_ENDS) else f"{text.rstrip()}."
    box, point = (coordinate_format.names(what, json=style != "short") for what in ("box", "point"))
    if style == "short":
        tokens = asks == "boxes" and coordinate_format is CoordinateFormat.LOCATION_TOKENS
        return f"{text} {(_TOKEN_BOXES if tokens else _SHORT[asks]).format(where=where, box=box, point=point)}"
    keys = {"box_key": coordinate_format.box_key, "point_key": coordinate_format.point_key}
    what = _WHAT[asks].format(where=where, box=box, point=point, **keys)
    if style == "json":
        return f"{text} Answer with {what}, and nothing else."
    return f"{text} Think in <think> </think> tags, then give {what}, in <answer> </answer> tags."


def answer(style: str, asks: str, truth: Any, written: CoordinateFormat) -> str:
    """The text of a gold completion. truth: a box, a point, a number, or a list of `{"bbox_2d", "label"}`, in the coordinate
    format `written`."""
    if asks == "count":
        return str(truth)
    if style == "short":
        if asks == "boxes":
            lines = [(t["label"], written.text(t["bbox_2d"], _number)) for t in truth]
            if written is CoordinateFormat.LOCATION_TOKENS:
                return " ; ".join(f"{box} {label}" for label, box in lines) or "none"
            return "\n".join(f"{label} {box}" for label, box in lines) or "none"
        return written.text(truth, _number)
    if asks == "boxes":
        return listed(truth, written)
    return json.dumps({written.box_key if asks == "box" else written.point_key: written.json_value(truth)})


def _number(value: float) -> str:
    return f"{value:.12g}"


def listed(objects: Sequence[Mapping[str, Any]], written: CoordinateFormat = CoordinateFormat.PIXELS) -> str:
    """Boxes as a JSON list."""
    plain = [{written.box_key: written.json_value(o["bbox_2d"]), "label": o["label"]} for o in objects]
    return json.dumps(plain, ensure_ascii=False)


def certain(objects: Sequence[Mapping[str, Any]]) -> str:
    """Boxes as Visual-RFT lists them, each for sure."""
    return str([{"Position": [int(v) if v == int(v) else v for v in o["bbox_2d"]], "Confidence": 1.0} for o in objects])


def thought(text: str, said: str) -> str:
    """A completion with a thought and an answer in their tags."""
    return f"<think>{text}</think>\n<answer>{said}</answer>"
