"""Sine, cosine, roots and lengths whose bits are the same on every machine, as those of states must be.

torch's sine and cosine differ in the last bit between the middle and the end of a vector, and between devices. Its square roots
of float32 on a CPU come from MKL, which rounds some to the other neighbour, on each kind of processor other ones.
"""

from __future__ import annotations

import math

import torch


def sin_cos(angle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sine and cosine of angles in radians, with an error below 1e-5."""
    angle = wrapped(angle)
    size = angle.abs()
    folded = torch.where(size > math.pi / 2, torch.where(angle > 0, math.pi - angle, -math.pi - angle), angle)
    return _sine(folded), _sine(math.pi / 2 - size)


def wrapped(angle: torch.Tensor, period: float | torch.Tensor = 2 * math.pi) -> torch.Tensor:
    """The same angle within half a period of 0."""
    return angle - torch.floor(angle / period + 0.5) * period


def _sine(x: torch.Tensor) -> torch.Tensor:
    """Of angles within a quarter turn of 0: Taylor's series up to the 9th power."""
    square = x * x
    series = square * (1 / 362880) - 1 / 5040
    for coefficient in (1 / 120, -1 / 6, 1.0):
        series = series * square + coefficient
    return x * series


def root(x: torch.Tensor) -> torch.Tensor:
    """The square root of float32 numbers, rounded to the nearest: that of float64 lies nearer to the exact one than any middle
    between two float32 numbers does."""
    return x.double().sqrt().to(x.dtype)


def length(dx: torch.Tensor, dy: torch.Tensor) -> torch.Tensor:
    """Of vectors."""
    return root(dx * dx + dy * dy)
