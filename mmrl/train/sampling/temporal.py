"""A bonus for right answers to videos where the order of frames matters: T-GRPO (Feng et al., Video-R1, section 3.2)."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mmrl.api.types import Score, right
from mmrl.config.sections import TemporalConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """How right a group's answers are, and those to the same prompt with its frames shuffled."""

    straight: tuple[float, ...]
    mixed: tuple[float, ...]
    better: bool
    """The order matters: the mean is at least `ratio` times the other; where nothing is known it doesn't."""

    @classmethod
    def of(cls, straight: Sequence[Score], mixed: Sequence[Score], rule: TemporalConfig) -> Timed:
        known = [tuple(v for s in scores if (v := right(s, rule.verifier)) is not None) for scores in (straight, mixed)]
        better = all(known) and statistics.fmean(known[0]) >= rule.ratio * statistics.fmean(known[1])
        return cls(straight=known[0], mixed=known[1], better=better)

    def bonuses(self, scores: Sequence[Score], rule: TemporalConfig) -> list[float]:
        """What each answer of the group is paid."""
        return [rule.bonus if self.better and (right(s, rule.verifier) or 0.0) > rule.above else 0.0 for s in scores]


def figures(timed: Sequence[Timed]) -> dict[str, float]:
    """How right answers were with frames in order and shuffled, and the share of prompts whose order mattered."""
    straight, mixed = [v for one in timed for v in one.straight], [v for one in timed for v in one.mixed]
    if not straight or not mixed:
        return {}
    return {
        "temporal/ordered": statistics.fmean(straight),
        "temporal/shuffled": statistics.fmean(mixed),
        "temporal/paid_share": statistics.fmean(one.better for one in timed),
    }
