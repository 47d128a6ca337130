"""The rewards of Vision-R1, as published, faults included (github.com/jefferyZhan/Griffon, commit 9866875, `Vision-R1`).

Zhan et al., "Vision-R1: Evolving Human-Free Alignment in Large Vision-Language Models via Vision-Guided Reinforcement Learning".
`answer` is the list of true `{"bbox_2d", "label"}`. Published completions end at 512 tokens; one of more than
`mmrl.api.verifiers.parse.MAX_LENGTH` characters is read as if it were empty. Numbers are float32, as published.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import numpy as np
from scipy.optimize import linear_sum_assignment

from mmrl import Case
from mmrl.api.verifiers.parse import MAX_LENGTH
from mmrl_grounding.coordinates import in_pixels
from mmrl_grounding.geometry import giou

REFINED_AT = 1500
"""The step at which the published training switches from the first stage of its rules to the second."""
Stage = Literal["auto", "none", "first", "second"]
_MATCH = {"none": (0.0, 1.0), "first": (0.5, 0.75), "second": (0.75, 0.9)}
"""Stage -> in precision, a matched box with a lower GIoU counts 0, with a higher one 1."""
_FOUND = {"none": 0.5, "first": 0.5, "second": 0.75}
"""Stage -> GIoU from which a true box counts as found."""
_RECALL = {"none": (0.0, 1.0), "first": (0.5, 0.75), "second": (0.5, 0.75)}
"""Stage -> a lower recall counts 0, a higher one 1."""
_ITEM = re.compile(r'\{"bbox_2d": \[(\d{1,3}|1000), (\d{1,3}|1000), (\d{1,3}|1000), (\d{1,3}|1000)\], "label": "([^"]+)"\}')


def precision(case: Case, stage: Stage = "auto") -> float:
    """The mean quality of the matched boxes, their GIoU: below 0.5 it is 0 and above 0.75 it is 1 (second stage: 0.75 and 0.9).

    stage: of the progressive rule refinement; "none" uses the GIoU itself, at least 0. "auto" is that of `meta["stage"]`, else by
    `meta["step"]`, else none, as in the released script.

    Known exploits, as published: superfluous boxes and wrong labels cost nothing, one certain box is as good as all of them.
    """
    quality = _matched(case)
    if quality is None:
        return float(_instances(case) == 0)
    return float(_sharpened(quality, *_MATCH[_stage(case, stage)]).mean()) if len(quality) else 0.0


def recall(case: Case, stage: Stage = "auto") -> float:
    """The share of the true boxes that are matched with a GIoU above 0.5 (second stage: 0.75); with a stage, a share below 0.5
    is 0 and one above 0.75 is 1.

    stage: see `precision`.

    Known exploits, as published: superfluous boxes and wrong labels cost nothing; three quarters and a bit of the boxes are
    enough.
    """
    quality, now = _matched(case), _stage(case, stage)
    number = _instances(case)
    if quality is None:
        return float(number == 0)
    if not number:
        return 0.0
    share = _sharpened(quality, _FOUND[now], _FOUND[now]).sum(dtype=np.float32) / np.float32(number)
    return float(_sharpened(np.array([share], np.float32), *_RECALL[now])[0])


def form(case: Case) -> float:
    """1 when the completion is JSON, with or without its fence, and the boxes of its labelled items have four entries. If there
    are no true boxes, it is the reverse.

    Known exploits, as published: any JSON passes, an empty list, an object or a number, and items without label or box.
    """
    text = re.sub(r"```json\n|\n```", "", _bounded(case)).strip()
    right = True
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        right, found = False, None
    for item in found if isinstance(found, list) else ():
        if isinstance(item, dict) and "bbox_2d" in item and "label" in item:
            right &= isinstance(item["bbox_2d"], list) and len(item["bbox_2d"]) == 4
    return float(right == (_instances(case) > 0))


def _sharpened(values: np.ndarray, low: float, high: float) -> np.ndarray:
    return np.where(values < np.float32(low), 0, np.where(values > np.float32(high), 1, values)).astype(np.float32)


def _stage(case: Case, stage: Stage) -> str:
    if stage != "auto":
        return stage
    step = case.meta.get("step")
    return str(case.meta.get("stage") or ("none" if step is None else "first" if step < REFINED_AT else "second"))


def _instances(case: Case) -> int:
    return int(case.meta.get("num_instances", len(case.answer or ())))


def _matched(case: Case) -> np.ndarray | None:
    """float32, the GIoU of each matched pair; None when nothing is listed. Matching goes by distance (L1, in pixels of the
    original), less 1 for the right label, less the GIoU. Without true boxes nothing is matched: there the published code
    fails."""
    listed = _listed(_bounded(case).strip())
    if not listed:
        return None
    if not case.answer:
        return np.zeros(0, np.float32)
    given = np.array([in_pixels(list(np.array(box, np.float32)), case) for box, _ in listed], np.float32)
    wanted = np.array([item["bbox_2d"] for item in case.answer], np.float32)
    names = [str(item.get("label", "")).lower() for item in case.answer]
    same = np.array([[label == name for name in names] for _, label in listed], np.float32)
    with np.errstate(all="ignore"):
        gious = giou(given.T[:, :, None], wanted.T[:, None, :], np.minimum, np.maximum)
    apart = np.abs(given[:, None] - wanted[None]).sum(-1, dtype=np.float32)
    cost = np.nan_to_num(apart - same - gious, nan=1e30, posinf=1e30, neginf=-1e30)
    return gious[linear_sum_assignment(cost)]


def _listed(text: str) -> list[tuple[list[int], str]]:
    """(box, label) of each item of a JSON list, numbers cut to whole ones; where that gives none, of each that is written
    exactly as `{"bbox_2d": [1, 2, 3, 4], "label": "cat"}`. Boxes without an area are left out."""
    parsed = _json(text)
    found = []
    for item in parsed if isinstance(parsed, list) else ():
        try:
            box, label = item.get("bbox_2d"), item.get("label")
            if isinstance(box, list) and len(box) == 4:
                found.append(([int(v) for v in box], label.strip().lower() if isinstance(label, str) else ""))
        except (AttributeError, TypeError, ValueError, OverflowError):  # the published rule: unreadable items are skipped
            continue
    found = [pair for pair in found if _proper(pair[0])]
    if not found:
        whole = (([int(v) for v in parts[:4]], parts[4].strip().lower()) for parts in _ITEM.findall(text))
        found = [pair for pair in whole if _proper(pair[0])]
    return found


def _proper(box: list[int]) -> bool:
    return box[0] < box[2] and box[1] < box[3] and max(map(abs, box)) < 2**62


def _json(text: str) -> Any:
    """The text as JSON: without its first line if that begins with ```json, and up to the next fence. None when it isn't."""
    lines = text.splitlines()
    if lines and lines[0].startswith("```json"):
        text = "\n".join(lines[1:])
    try:
        return json.loads(text.partition("```")[0])
    except (ValueError, RecursionError):
        return None


def _bounded(case: Case) -> str:
    return case.completion if len(case.completion) <= MAX_LENGTH else ""
