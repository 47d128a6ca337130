"""Weights of objectives that follow how they converge (Beyond Reasoning Gains, arXiv 2510.21978, section 4, as in its first
version)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

WORST = 2.0
"""Largest ratio of two losses that counts: what was solved and is forgotten gets a large weight, and not an endless one."""


def objective_weights(losses_KT: Sequence[Sequence[float]], window: int, temperature: float) -> list[float]:
    """A factor for each objective's weight; their mean is 1.

    losses_KT: the losses of each of K objectives in its newest steps, 0 or above. Over the newest `window` steps and as many
    before them, a loss's convergence is the ratio of the two means (near 1 if it no longer falls, 0 if nothing is left), and its
    instability the newest ones' standard deviation divided by the sum of both means. The factors are K x softmax of the sum of
    the two, divided by `temperature`. All are 1 while an objective has fewer losses than two windows. (The paper's second version
    has the inverse ratio of the means, and the deviation of both windows' losses from the newest mean.)
    """
    if any(len(losses) < 2 * window for losses in losses_KT):
        return [1.0] * len(losses_KT)
    scores = [_score(losses[-2 * window : -window], losses[-window:]) / temperature for losses in losses_KT]
    powers = [math.exp(s - max(scores)) for s in scores]
    return [len(powers) * p / sum(powers) for p in powers]


def _score(before: Sequence[float], newest: Sequence[float]) -> float:
    old, new = statistics.fmean(before), statistics.fmean(newest)
    if not old + new:
        return 0.0
    convergence = min(new / old, WORST) if old else WORST
    return convergence + statistics.pstdev(newest) / (old + new)
