"""Scores of episodes in simulators, from their outcomes."""

from __future__ import annotations

import re

from mmrl import Case
from mmrl.api.verifiers.parse import without_thinking

PERCENT = re.compile(r"\s*([+-]?\d{1,3}(?:\.\d{1,6})?)\s*%?\s*", re.ASCII)


def success(case: Case) -> float:
    """1 if the task was solved in some state of the episode."""
    return float(case.outcome["success"])


def at_end(case: Case) -> float:
    """1 if it was solved in the final state of the episode."""
    return float(case.outcome["success_at_end"])


def percent(case: Case) -> float:
    """1 if the completion is the right percentage, falling to 0 at an error of 100; it must be a number alone."""
    match = PERCENT.fullmatch(without_thinking(case.completion))
    return max(0.0, 1.0 - abs(float(match.group(1)) - case.answer) / 100) if match else 0.0


def quick(case: Case, limit: float = 100.0) -> float:
    """0 without success; with it 0.5, plus half the share of `limit` steps that is left."""
    if not case.outcome["success"]:
        return 0.0
    return 0.5 + 0.5 * max(0.0, 1.0 - case.outcome["steps"] / limit)
