"""Paired tests of two runs on the same items: the difference, its interval and its p-value."""

from __future__ import annotations

import math
import operator
import random
import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from mmrl.api.statistics import Z, effective_count_of_shares, mean_interval

DRAWS = 9999
"""Random draws of a test that can't be exact."""
EQUAL = 1e-9
"""Values that differ by less are equal."""
SUMS = 20_000
"""Maximal number of different sums of an exact permutation test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedDifference:
    """The difference of the second from the first, item by item."""

    n: int
    """Number of items."""
    difference: float
    """Mean of the second's values minus the first's."""
    low: float
    high: float
    """Bounds of its 95% interval; infinite for one graded item, or graded differences that are all equal, which say nothing of
    their spread."""
    wins: int
    """Number of items on which the second is better."""
    losses: int
    ties: int
    p: float
    """Two-sided p-value: the probability of a difference at least as large if neither is better."""
    test: str
    """Name of the test."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def paired_difference(
    first: Sequence[float], second: Sequence[float], sets: Sequence[Hashable] | None = None
) -> PairedDifference:
    """Compare the values [n] of the first with those [n] of the second on the same items, n >= 1.

    Values that are all 0 or 1 get Agresti and Min's interval and McNemar's exact test, others Student's interval of the mean
    difference and a sign-flip test. Values that differ by less than 1e-9 are ties. sets: the set of each item, where items of a
    set may be alike: then the signs of sets are flipped, and the intervals count sets, see `mean_interval`.
    """
    differences = [round(b - a, 9) for a, b in zip(first, second, strict=True)]
    wins, losses, n = sum(d > 0 for d in differences), sum(d < 0 for d in differences), len(differences)
    binary = all(v in (0.0, 1.0) for v in (*first, *second))
    if binary:
        share = effective_count_of_shares(differences, sets) / n
        low, high = proportions_interval(wins * share, losses * share, n * share)
    else:
        low, high = mean_interval(differences, sets) if max(differences) - min(differences) > EQUAL else (-math.inf, math.inf)
    if binary and sets is None:
        p, test = mcnemar(wins, losses), "McNemar's exact test"
    else:
        sums: dict[Hashable, float] = {}
        for one, difference in zip(range(n) if sets is None else sets, differences, strict=True):
            sums[one] = sums.get(one, 0.0) + difference
        p, exact = sign_flips([*sums.values()])
        of = "" if sets is None else f" of {len(sums)} sets"
        test = f"exact sign-flip test{of}" if exact else f"sign-flip test{of}, {DRAWS} draws"
    return PairedDifference(
        n=n,
        difference=statistics.fmean(differences),
        low=low,
        high=high,
        wins=wins,
        losses=losses,
        ties=n - wins - losses,
        p=p,
        test=test,
    )


def mcnemar(wins: int, losses: int) -> float:
    """Two-sided p-value of wins and losses being equally likely: twice the smaller tail of the binomial distribution of
    wins + losses coin tosses, at most 1 (McNemar 1947, with the exact distribution instead of chi-squared)."""
    n, term, tail = wins + losses, 1, 0
    for i in range(min(wins, losses) + 1):
        tail += term
        term = term * (n - i) // (i + 1)
    return min(1.0, 2 * tail / 2**n)


def proportions_interval(wins: float, losses: float, n: float) -> tuple[float, float]:
    """The 95% interval of (wins - losses) / n for n pairs of 0 or 1, within -1..1: the normal one with half an item added to each
    of the four kinds of pairs (Agresti and Min 2005, Simple improved confidence intervals for comparing matched proportions).
    Without that, the interval of runs that agree on every item would be empty."""
    total, gap = n + 2, wins - losses
    half = Z * math.sqrt(wins + losses + 1 - gap * gap / total) / total
    return max(-1.0, gap / total - half), min(1.0, gap / total + half)


def sign_flips(differences: Sequence[float], seed: int = 0) -> tuple[float, bool]:
    """(two-sided p-value of each difference being as likely as its opposite, whether it is exact).

    It is the share of all choices of signs whose sum is at least as far from 0 as the observed one (Fisher, The design of
    experiments, section 21). Equal sums are counted together, so it is exact for many items on a coarse scale. With more than
    `SUMS` different sums, `DRAWS` choices are drawn, and the observed one counts as one more (Phipson and Smyth 2010, Permutation
    p-values should never be zero).
    """
    scale = 10**9  # integers, so that equal sums don't depend on their order
    sizes = sorted((abs(round(d * scale)) for d in differences if d), reverse=True)
    bar = abs(sum(round(d * scale) for d in differences))
    chances = {0: 1.0}
    for size in sizes:
        sums: defaultdict[int, float] = defaultdict(float)
        for value, chance in chances.items():
            sums[value + size] += chance / 2
            sums[value - size] += chance / 2
        if len(sums) > SUMS:
            return _drawn(sizes, bar, random.Random(seed)), False
        chances = sums
    return min(1.0, sum(chance for value, chance in chances.items() if abs(value) >= bar)), True


def _drawn(sizes: Sequence[int], bar: int, rng: random.Random) -> float:
    # a random byte chooses the signs of eight sizes at once
    tables = [[_signed(sizes[i : i + 8], byte) for byte in range(256)] for i in range(0, len(sizes), 8)]
    far = sum(abs(sum(map(operator.getitem, tables, rng.randbytes(len(tables))))) >= bar for _ in range(DRAWS))
    return (1 + far) / (1 + DRAWS)


def _signed(sizes: Sequence[int], byte: int) -> int:
    return sum(size if byte >> i & 1 else -size for i, size in enumerate(sizes))
