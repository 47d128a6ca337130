"""Confidence intervals, for evaluations and for plugins."""

import functools
import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Hashable, Sequence

Z = 1.959963984540054
"""The normal quantile of a two-sided 95% interval."""


def wilson(successes: float, n: float, z: float = Z) -> tuple[float, float]:
    """The Wilson score interval (1927) of a proportion: (low, high) within 0..1; (0, 1) if n is 0."""
    if n == 0:
        return 0.0, 1.0
    p, zz = successes / n, z * z / n
    middle = (p + zz / 2) / (1 + zz)
    half = z * math.sqrt(p * (1 - p) / n + zz / (4 * n)) / (1 + zz)
    return 0.0 if p <= 0 else max(0.0, middle - half), 1.0 if p >= 1 else min(1.0, middle + half)  # exact at the ends


def mean_interval(values: Sequence[float], sets: Sequence[Hashable] | None = None) -> tuple[float, float]:
    """The 95% interval of the mean, by Student's t: (low, high); infinite for fewer than two values, or sets. sets: the set of
    each value, where values of a set may be alike and sets are independent; by default all values are independent."""
    count = len(values if sets is None else {*sets})
    if count < 2:
        return -math.inf, math.inf
    mean = statistics.fmean(values)
    half = student(count - 1) * statistics.stdev(values) / math.sqrt(effective_count(values, sets))
    return mean - half, mean + half


def effective_count(values: Sequence[float], sets: Sequence[Hashable] | None) -> float:
    """The number of independent values whose mean varies as much as that of these: their number over Kish's design effect, with
    the clustered variance (Miller 2024, Adding error bars to evals, arXiv 2411.00640, section 2.2), times C / (C - 1) for C sets.
    At most `len(values)`. If all values are the same, it is that of sets whose values always are. values: at least one. sets: see
    `mean_interval`."""
    if sets is None:
        return len(values)
    n, mean, sums = len(values), statistics.fmean(values), defaultdict[Hashable, float](float)
    largest = max(abs(value - mean) for value in values) or 1.0  # else squares may overflow or vanish
    deviations = [(value - mean) / largest for value in values]
    for deviation, one in zip(deviations, sets, strict=True):
        sums[one] += deviation
    count, spread = len(sums), math.fsum(deviation**2 for deviation in deviations)
    if count < 2 or min(values) == max(values):
        return _count_if_alike(sets)
    clustered = count / (count - 1) * math.fsum(total**2 for total in sums.values())
    return n / max(1.0, clustered * (n - 1) / (n * spread))


def _count_if_alike(sets: Sequence[Hashable]) -> float:
    """The effective number of values if those of a set say the same, Kish's (sum of sizes)^2 / (sum of their squares): the number
    of sets that are equally large, and fewer of others. sets: the set of each value."""
    return len(sets) ** 2 / sum(size**2 for size in Counter(sets).values())


def effective_count_of_shares(values: Sequence[float], sets: Sequence[Hashable] | None) -> float:
    """The effective number of values that are 0 or 1, for intervals of their share that take the normal quantile.

    Where it hangs on a spread that few sets show, it is lower by (z / t)^2 with Student's t for the number of sets less one (Korn
    and Graubard 1998, Confidence intervals for proportions with small expected number of positive counts estimated from survey
    data), but never below that of sets whose values always are the same. sets: see `mean_interval`."""
    if sets is None or (alike := _count_if_alike(sets)) == len(values) or len({*sets}) < 2:
        return effective_count(values, sets)
    return max(alike, effective_count(values, sets) * (Z / student(len({*sets}) - 1)) ** 2)


@functools.lru_cache(maxsize=256)
def student(freedom: int, share: float = 0.95) -> float:
    """The t with P(|T| <= t) = share, for Student's T with `freedom` degrees of freedom (at least 1), to 1e-9."""
    low, high = 0.0, 1.0
    while _student_share(high, freedom) < share:
        low, high = high, 2 * high
    while high - low > 1e-10 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if _student_share(middle, freedom) < share else (low, middle)
    return high


def _student_share(t: float, freedom: int) -> float:
    """P(|T| <= t), in closed form (Abramowitz and Stegun, Handbook of Mathematical Functions, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    term, cosine = (math.cos(angle) if freedom % 2 else 1.0), math.cos(angle) ** 2
    total = 0.0 if freedom == 1 else term
    for i in range(3 if freedom % 2 else 2, freedom - 1, 2):
        term *= cosine * (i - 1) / i
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if freedom % 2 else math.sin(angle) * total
