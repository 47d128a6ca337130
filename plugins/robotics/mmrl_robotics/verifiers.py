"""What an episode in a simulator was worth, from its outcome."""

from __future__ import annotations

from mmrl import Case


def success(case: Case) -> float:
    """1 where the task was solved in some state of the episode."""
    return float(case.outcome["success"])


def at_end(case: Case) -> float:
    """1 where it was solved in the state that the episode was left in."""
    return float(case.outcome["success_at_end"])


def quick(case: Case, limit: float = 100.0) -> float:
    """0 without success; with it 0.5, and as much more as there is left of `limit` steps."""
    if not case.outcome["success"]:
        return 0.0
    return 0.5 + 0.5 * max(0.0, 1.0 - case.outcome["steps"] / limit)
