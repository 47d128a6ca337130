"""What an episode in a simulator was worth, from its outcome."""

from __future__ import annotations

import re

from mmrl import Case

PERCENT = re.compile(r"\s*([+-]?\d{1,3}(?:\.\d{1,6})?)\s*%?\s*", re.ASCII)


def success(case: Case) -> float:
    """1 where the task was solved in some state of the episode."""
    return float(case.outcome["success"])


def at_end(case: Case) -> float:
    """1 where it was solved in the state that the episode was left in."""
    return float(case.outcome["success_at_end"])


def percent(case: Case) -> float:
    """1 where the completion is the right percentage, less the further it is off, 0 from 100 on; it must be a number alone."""
    match = PERCENT.fullmatch(case.completion)
    return max(0.0, 1.0 - abs(float(match.group(1)) - case.answer) / 100) if match else 0.0


def quick(case: Case, limit: float = 100.0) -> float:
    """0 without success; with it 0.5, and as much more as there is left of `limit` steps."""
    if not case.outcome["success"]:
        return 0.0
    return 0.5 + 0.5 * max(0.0, 1.0 - case.outcome["steps"] / limit)
