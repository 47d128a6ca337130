"""Confidence intervals, for evaluations and for the figures of plugins."""

import math

Z = 1.959963984540054
"""Two-sided 95%."""


def wilson(successes: float, n: int, z: float = Z) -> tuple[float, float]:
    """The score interval of a proportion (Wilson 1927): (low, high) within 0..1; (0, 1) when n is 0."""
    if n == 0:
        return 0.0, 1.0
    p, zz = successes / n, z * z / n
    middle = (p + zz / 2) / (1 + zz)
    half = z * math.sqrt(p * (1 - p) / n + zz / (4 * n)) / (1 + zz)
    return max(0.0, middle - half), min(1.0, middle + half)
