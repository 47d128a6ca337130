"""The adaptive exploration reward of InfiGUI-G1, as published (recipe/infigui-g1 of verl; VideoSSR's copy of it, commit b0d2acb).

Liu et al. 2025, "InfiGUI-G1: Advancing GUI Grounding with Adaptive Exploration Policy Optimization". `answer` is the true box in
pixels.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Sequence
from itertools import combinations
from typing import Any

from mmrl import Case, CoordinateFormat, Score
from mmrl.api.verifiers.parse import MAX_LENGTH
from mmrl_gui.coordinates import numbers_of
from mmrl_gui.geometry import inside

_BRACKET = re.compile(r"[\[\]]")
MOST = 200
"""Maximum of points; more count as no answer. Every three of them are checked."""


def aer(case: Case) -> Score:
    """1 for the form, plus 1 / sqrt(N k) for N points of which the k-th is the first in the true box, or -1 / N if none is; -1 in
    total if the form is wrong, or any three points lie on one line. No points are 0.

    The form: one thought, not empty, at the beginning; then a text with a JSON list, from the first bracket to the one that
    closes it, of objects with a `point_2d` of two numbers.

    Known exploits, as published: N wrong points of which no three are on a line earn 1 - 1 / N.
    """
    listed = _points(case.completion) if len(case.completion) <= MAX_LENGTH else None
    if listed is None or len(listed) > MOST:
        return Score(-1.0, detail="no thought, or no list of points")
    try:
        if _on_a_line(listed):
            return Score(-1.0, detail="three points on a line")
        rank = next((k for k, point in enumerate(listed, 1) if _hits(point, case)), None)
    except (TypeError, ValueError, OverflowError):  # not a number
        return Score(-1.0, detail="a point that is none")
    if not listed:
        return Score(0.0, detail="no points")
    value = 1 / math.sqrt(len(listed) * rank) if rank else -1 / len(listed)
    return Score(1.0 + value, parts={"format": 1.0, "accuracy": value}, detail=f"{len(listed)} points, the first right: {rank}")


def _hits(point: Sequence[Any], case: Case) -> bool:
    numbers = numbers_of(case)
    if numbers.order is CoordinateFormat.PIXELS and not numbers.grid:
        return inside(point, case.answer)  # as published: where the first entry is outside, the second may be anything
    return inside(numbers.pixels([v + 0 for v in point]), case.answer)


def _points(text: str) -> list[Any] | None:
    thought, closing, answer = text.partition("</think>")
    if not thought.startswith("<think>") or not closing or text.count("<think>") != 1 or text.count("</think>") != 1:
        return None
    piece = _first_list(answer)
    if not thought[len("<think>") :].strip() or piece is None:
        return None
    try:
        listed = json.loads(piece)
    except (ValueError, RecursionError):
        return None
    if not all(isinstance(one, dict) and isinstance(one.get("point_2d"), list) and len(one["point_2d"]) == 2 for one in listed):
        return None
    return [one["point_2d"] for one in listed]


def _first_list(text: str) -> str | None:
    """From the first bracket to the one that closes it, brackets in texts counted like others."""
    start, depth = text.find("["), 0
    for match in _BRACKET.finditer(text):
        if match.start() < start:  # it closes nothing
            continue
        depth += 1 if match[0] == "[" else -1
        if depth == 0:
            return text[start : match.end()]
    return None


def _on_a_line(points: Sequence[Sequence[float]]) -> bool:
    """Whether any three points lie on one line, up to rounding; two equal ones and a third do."""
    triples = combinations(points, 3)
    return any(math.isclose((y2 - y1) * (x3 - x1), (y3 - y1) * (x2 - x1)) for (x1, y1), (x2, y2), (x3, y3) in triples)
