"""Types for alarms of plugins: a function that looks at a run's metrics after each step.

A plugin declares it with the hook `mmrl_alarms`, and `[limits.alarms]` of a run file changes its thresholds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class MetricHistory(Protocol):
    """The metrics of the current stage, up to its latest step."""

    def recent(self, name: str, steps: int = 5) -> float | None:
        """The mean of a metric over the latest steps, at most 10; None if fewer steps have it."""
        ...

    def change(self, name: str) -> tuple[float, float] | None:
        """(mean of the stage's first five steps, mean of its latest five); None while these share a step."""
        ...


@dataclass(frozen=True, slots=True)
class AlarmReading:
    """What an alarm's function found, which is compared with the thresholds."""

    value: float
    """The figure. The alarm is given when it reaches the threshold."""
    what: str
    """What is wrong, with its numbers: a clause such as `30% of the answers are empty`."""
    cure: str
    """What to do about it: a clause such as `raise max_tokens`."""
