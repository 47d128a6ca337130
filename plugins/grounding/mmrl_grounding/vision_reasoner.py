"""The rewards of VisionReasoner, as published, faults included (as bundled in github.com/fscdc/RewardMap, commit 15428ac).

Liu et al., "VisionReasoner: Unified Visual Perception and Reasoning via Reinforcement Learning". `answer` is the list of true
`{"bbox_2d", "point_2d"}`. Published coordinates are pixels of the picture as the model sees it, and distances count in them. A
completion of more than `mmrl.api.verifiers.parse.MAX_LENGTH` characters is read as if it were empty.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import numpy as np
from scipy.optimize import linear_sum_assignment

from mmrl import Case
from mmrl.api.verifiers.parse import MAX_LENGTH, first_tag, has_think_answer_format
from mmrl_grounding.coordinates import truth_as_written
from mmrl_grounding.geometry import inside, iou

MOST = 120
"""Maximum of objects of the answer and of the truth; further ones are ignored."""
_OVERLAP, _BOX_APART, _POINT_APART = 0.5, 10, 30


def accuracy(case: Case) -> float:
    """0 to 3: for each matched pair an IoU above 0.5, corners less than 10 apart in the mean, and a point less than 30 apart that
    lies in its own box, 1 each; matched for the most, over the larger number of objects. The IoU counts the pixels of both edges.

    Every item of the first answer tag's JSON list needs `bbox_2d` and `point_2d`, or the whole answer counts nothing.

    Known exploits, as published: labels are not read. Without true boxes every answer is 0.
    """
    data = _answered(case)
    try:
        given = _arrays([item["bbox_2d"] for item in data][:MOST], [item["point_2d"] for item in data][:MOST])
    except (TypeError, KeyError, ValueError, IndexError, OverflowError):
        return 0.0
    true = (case.answer or ())[:MOST]
    if given is None or not true:
        return 0.0
    boxes, points = given
    wanted = np.array([truth_as_written(item["bbox_2d"], case) for item in true], float)
    aims = np.array([truth_as_written(item["point_2d"], case) for item in true], float)
    with np.errstate(all="ignore"):
        overlaps = iou(boxes.T[:, :, None], wanted.T[:, None, :], np.minimum, np.maximum, extra=1) > _OVERLAP
        near = np.abs(boxes[:, None] - wanted[None]).mean(2) < _BOX_APART
        aimed = np.sqrt(((points[:, None] - aims[None]) ** 2).sum(2)) < _POINT_APART
    reward = overlaps.astype(float) + near + (aimed & inside(points.T, boxes.T)[:, None])
    return float(reward[linear_sum_assignment(-reward)].sum() / max(len(boxes), len(wanted)))


def _arrays(boxes: list[Any], points: list[Any]) -> tuple[np.ndarray, np.ndarray] | None:
    """[M, 4] and [M, 2], or None for lists that numpy can't convert to such arrays, or compute with."""
    made = [np.array(rows) for rows in (boxes, points)]
    # numpy can't subtract booleans, nor take the root of huge integers, which are objects, as null is
    for array, entries, kinds in zip(made, (4, 2), ("iufO", "biuf"), strict=True):
        if array.shape != (len(boxes), entries) or array.dtype.kind not in kinds or any(v is None for v in array.flat):
            return None
    return made[0].astype(float), made[1].astype(float)


def form(case: Case, thought: bool = True, entries: bool = True) -> float:
    """0 to 3: `<think>.*?</think>\\s*<answer>.*?</answer>` matches the whole completion (1), and the mean over the items of
    the first answer tag's JSON of having a `bbox_2d` of four entries (1) and a `point_2d` of two (1), up to the first item
    that breaks the code. thought, entries: count the first of these, and the other two.

    Known exploits, as published: entries are counted and not read; further answers inside pass.
    """
    total = float(thought and has_think_answer_format(_bounded(case)))
    data: Any = _answered(case) if entries else None
    try:
        for item in data:
            for key, size in (("bbox_2d", 4), ("point_2d", 2)):
                if key in item:
                    total += (isinstance(item[key], list) and len(item[key]) == size) / len(data)
    except (TypeError, KeyError):
        pass
    return min(total, 3.0)


def non_repeat(case: Case) -> float:
    """0 when two or more sentences of the completion, split at full stops, repeat an earlier one; else 1.

    Known exploits, as published: nothing else is read, so that an empty completion earns 1; other marks end no sentence.
    """
    parts = Counter(filter(None, (part.strip() for part in case.completion.split("."))))
    return float(sum(parts.values()) - len(parts) < 2)


def _answered(case: Case) -> Any:
    """The JSON of the first answer tag; None when it is none."""
    inside_tag = first_tag(_bounded(case))
    try:
        return None if inside_tag is None else json.loads(inside_tag.strip())
    except (ValueError, RecursionError):
        return None


def _bounded(case: Case) -> str:
    return case.completion if len(case.completion) <= MAX_LENGTH else ""
