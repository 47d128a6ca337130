"""Alarms for runs in simulators."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl import AlarmReading

if TYPE_CHECKING:
    from mmrl.api.alarms import MetricHistory


def leaves_goal(history: MetricHistory, successes: float = 0.05) -> AlarmReading | None:
    """Share of the successful episodes, over five steps, whose goal is no longer reached at the end. ManiSkill's baselines report
    both, as `success_once` and `success_at_end`.

    successes: Smallest share of episodes that reach the goal; below it the figure would be noise.
    """
    once, at_end = history.recent("episode/success"), history.recent("episode/success_at_end")
    if once is None or at_end is None or once < successes or not once:
        return None
    left = 1 - at_end / once
    return AlarmReading(
        left,
        f"{left:.0%} of the episodes that reach the goal leave it again ({once:.0%} reach it, {at_end:.0%} are there at the end)",
        "reward the goal in the last step too, or set terminate_on_success = true",
    )
