"""The rewards of VLM-R1 for boxes, as published, faults included (github.com/om-ai-lab/VLM-R1, commit 9005247).

Shen et al., "VLM-R1: A Stable and Generalizable R1-style Large Vision-Language Model". `answer` is the true box, or for detection
the list of `{"bbox_2d", "label"}`, where `[]` stands for the published "None".

Published completions end at 2,048 tokens; one of more than `mmrl.api.verifiers.parse.MAX_LENGTH` characters is read as if it
were empty.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from mmrl import Case
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag, has_think_answer_format, last_tag
from mmrl_grounding.coco import THRESHOLDS, average_precision
from mmrl_grounding.coordinates import in_pixels, truth_as_written
from mmrl_grounding.geometry import Box, area, sides
from mmrl_grounding.geometry import iou as continuous_iou

_BOX = re.compile(r"\[(\d+),\s*(\d+),\s*(\d+),\s*(\d+)\]")
_TURN = re.compile(r"</think>\s*<answer>")
_AFTER_BLANK = {c: re.compile(rf"(?<=\s){c}") for c in ("\n", "\r")}
_LEAST_IOU, _POSITION, _COMPLETE = 0.5, 0.7, 0.3


# -- referring expressions --------------------------------------------------------------------------------------------------


def iou(case: Case, rescale: bool = True, convention: Literal["pixel", "continuous"] = "pixel") -> float:
    """The IoU of the true box and the first `[a, b, c, d]` of whole numbers in the first answer tag.

    rescale: the numbers are pixels of the picture as the model saw it, or in the coordinate format of the case, and are scaled to
    the original's (the module for Qwen). Else they are compared with the truth in their own format (InternVL, GLM).
    convention: "pixel" counts an overlap of one pixel or less, in width or in height, as none (Qwen, InternVL); "continuous" is
    the usual IoU (GLM).

    Known exploits, as published: any text around the box passes, and one box over the whole picture earns the object's share
    of it. Not read, as published: a box with decimals, a minus sign, or a blank next to its brackets.
    """
    found = _BOX.search((first_tag(_bounded(case)) or "").strip())
    try:
        if found is None:
            return 0.0
        box = [int(digits) for digits in found.groups()]
        if rescale:
            return _iou(in_pixels(box, case), case.answer, convention)
        return _iou(box, truth_as_written(case.answer, case), convention)
    except (ValueError, OverflowError, ZeroDivisionError):  # too many digits; no area on either side
        return 0.0


def _iou(a: Box, b: Box, convention: str = "pixel") -> float:
    if convention == "continuous":
        return float(continuous_iou(a, b))
    width, height = sides(a, b)
    common = width * height if width > 1 and height > 1 else 0
    return float(common) / (area(a) + area(b) - common)


def form(case: Case, box: Literal["object", "list", "none"] = "object") -> float:
    """Thinking, then an answer with a box in it, anywhere in the completion.

    box: "object" wants a box of whole numbers between two braces, `<think>.*?</think>\\s*<answer>.*?\\{.*BOX.*\\}.*?</answer>`
    (Qwen); "list" needs no braces (InternVL); "none" is `<think>(.*?)<answer>(.*?)</answer>`: no box, no end of the thinking
    (GLM).

    Known exploits, as published: what stands before and after isn't read, nor are the numbers.
    """
    text = _bounded(case)
    start = text.find("<think>")
    if start < 0:
        return 0.0
    start += len("<think>")
    if box == "none":
        return float(_after(text, "</answer>", _after(text, "<answer>", start)) >= 0)
    turn = _TURN.search(text, start)
    at = turn.end() if turn else -1
    if box == "object":
        at = _after(text, "{", at)
    found = _BOX.search(text, at) if at >= 0 else None
    at = found.end() if found else -1
    if box == "object":
        at = _after(text, "}", at)
    return float(_after(text, "</answer>", at) >= 0)


def _after(text: str, piece: str, at: int) -> int:
    """Where the next piece ends; -1 when there is none, or none was found before."""
    found = text.find(piece, at) if at >= 0 else -1
    return found + len(piece) if found >= 0 else -1


# -- detection --------------------------------------------------------------------------------------------------------------


def ap(case: Case, only_50: bool = False, length: bool = False) -> float:
    """COCO's AP of the boxes in the last ```json block of the last answer tag; confidences are equal, in listed order.

    only_50: AP at IoU 0.5 (`od_ap50`). length: times the number of true boxes over that of listed ones, 1 at most (`odLength`).
    No tag is 0. Nothing found and nothing there is 1. Labels must be equal, case and all.

    Known exploits, as published: boxes after the right ones cost nothing (but with `length`), nor do labels that aren't there; a
    box with a NaN takes a true one at every IoU; without true boxes, any answer without a block earns 1. -1, which the judge
    takes for a failure, if every true box is reversed, as in pycocotools.
    """
    said = last_tag(_bounded(case))
    if said is None:
        return 0.0
    wanted = _truth(case)
    listed = _items(last_between(said.strip(), "```json", "```"))
    if not listed or not wanted:
        return float(not listed and not wanted)
    labels = {item["label"] for item in wanted}
    found = [pair for item in listed if (pair := _prediction(item, labels))]
    if not found:
        return 0.0
    truth = [(item["bbox_2d"], item["label"]) for item in wanted]
    value = average_precision(truth, found, THRESHOLDS[:1] if only_50 else THRESHOLDS)
    return value * min(1.0, len(wanted) / len(listed)) if length else value


def weighted_sum(case: Case) -> float:
    """0.7 x position + 0.3 x completeness of the boxes in the first ```json block of the answer, all in lower case.

    Boxes are matched from the highest IoU down to 0.5, labels or not. Position is the sum of the matched IoUs over the number of
    true boxes, where a wrong label counts 0; completeness is 1 less half the shares of missed and of superfluous boxes. Without
    true boxes, only "none" earns 1.

    Known exploits, as published: a right box with a wrong label earns 0.3; a box without a label has that of the match before it.
    If the first match has no label, the published code fails; that is 0 here.
    """
    said, wanted = clean(_bounded(case)), _truth(case)
    if not wanted:
        return float(said == "none")
    listed = _items(next(between(clean(said), "```json", "```"), None))
    if not listed:
        return 0.0
    matches = _greedy(listed, wanted)
    position, label = 0.0, None
    for value, p, t in matches:
        try:
            label = listed[p]["label"].lower()
        except Exception:  # noqa: BLE001  the published rule: after any error the previous label stays
            if label is None:
                return 0.0
        position += value * (label == str(wanted[t].get("label", "")).lower())
    missed, superfluous = 1 - len(matches) / len(wanted), 1 - len(matches) / len(listed)
    return _POSITION * position / len(wanted) + _COMPLETE * (1 - (missed + superfluous) / 2)


def turns(case: Case) -> float:
    """`<think>.*?</think>\\s*<answer>.*?</answer>` matches the whole completion: the format reward of detection.

    Known exploits, as published: empty blocks and any number of further tags inside pass.
    """
    return float(has_think_answer_format(_bounded(case)))


def _greedy(listed: Sequence[Any], wanted: Sequence[Any]) -> list[tuple[float, int, int]]:
    """(IoU, number of the listed box, of the true box), the highest first; of equal ones the first listed, then the first
    true."""
    pairs = []
    for p, item in enumerate(listed):
        try:
            box = item["bbox_2d"]
            pairs += [(-v, p, t) for t, w in enumerate(wanted) if (v := _pair(box, w["bbox_2d"])) >= _LEAST_IOU]
        except (TypeError, KeyError, IndexError):
            continue
    matches, taken_p, taken_t = [], set(), set()
    for value, p, t in sorted(pairs):
        if p not in taken_p and t not in taken_t:
            matches.append((-value, p, t))
            taken_p.add(p)
            taken_t.add(t)
    return matches


def _pair(a: Box, b: Box) -> float:
    try:
        return _iou(a, b)
    except (ZeroDivisionError, OverflowError):
        return 0.0


def _prediction(item: Any, labels: set[Any]) -> tuple[Box, Any] | None:
    """(box, label) of an item that is passed to COCO; None for invalid items and labels that the truth doesn't have."""
    try:
        box, label = item["bbox_2d"], item["label"]
        corners = tuple(float(box[i] - 0) for i in range(4))
        return (corners, label) if label in labels else None
    except (TypeError, KeyError, IndexError, OverflowError):
        return None


def _truth(case: Case) -> list[dict[str, Any]]:
    """The true boxes in the coordinate format of the completion."""
    return [{**item, "bbox_2d": truth_as_written(item["bbox_2d"], case)} for item in case.answer or ()]


def _items(block: str | None) -> list[Any]:
    """The elements of a JSON block: items, the keys of an object, the letters of a text; empty if it isn't JSON."""
    if block is None:
        return []
    try:
        return list(json.loads(block.strip()))
    except (ValueError, TypeError, RecursionError):
        return []


# -- text -------------------------------------------------------------------------------------------------------------------


def clean(text: str) -> str:
    """The last answer tag's text, or all of it, on one line, without blanks around and full stops at the end, in lower case."""
    found = last_tag(text)
    text = text if found is None else found
    for sign, after_blank in _AFTER_BLANK.items():
        text = after_blank.sub("", text)
        text = text.replace(sign, " ")
    return text.strip().rstrip(".").lower()


def between(text: str, opening: str, closing: str) -> Iterator[str]:
    """The texts between two markers, in order: the matches of `opening(.*?)closing`, line breaks included, in linear time."""
    at = 0
    while (start := text.find(opening, at)) >= 0 and (end := text.find(closing, start + len(opening))) >= 0:
        yield text[start + len(opening) : end]
        at = end + len(closing)


def last_between(text: str, opening: str, closing: str) -> str | None:
    """The last text between two markers; None without any."""
    found = deque(between(text, opening, closing), maxlen=1)
    return found[0] if found else None


def _bounded(case: Case) -> str:
    return case.completion if len(case.completion) <= MAX_LENGTH else ""
