"""Sine, cosine, roots and lengths whose bits are the same on every machine, as those of states must be.

torch's sine and cosine differ in the last bit between the middle and the end of a vector, and between devices. Its square roots
of float32 on a CPU come from MKL, which rounds some to the other neighbour, on each kind of processor other ones.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # torch would make `import mmrl` slow
    import torch


def sin_cos(angle: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Sine and cosine of angles in radians, with an error below 1e-5."""
    import torch

    angle = wrapped(angle)
    size = angle.abs()
    folded = torch.where(size > math.pi / 2, torch.where(angle > 0, math.pi - angle, -math.pi - angle), angle)
    return _sine(folded), _sine(math.pi / 2 - size)


def wrapped(angle: torch.Tensor, period: float | torch.Tensor = 2 * math.pi) -> torch.Tensor:
    """The same angle within half a period of 0."""
    return angle - (angle / period + 0.5).floor() * period


def angle_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The angle of vectors from the x axis, -pi to pi, with an error below 2e-5 (Abramowitz and Stegun, 4.4.49); 0 for a vector
    of length 0."""
    import torch

    wide, high = x.abs(), y.abs()
    ratio = torch.minimum(wide, high) / torch.maximum(wide, high).clamp(min=1e-30)
    square = ratio * ratio
    series = square * 0.0208351 - 0.0851330
    for coefficient in (0.1801410, -0.3302995, 0.9998660):
        series = series * square + coefficient
    angle = ratio * series
    angle = torch.where(high > wide, math.pi / 2 - angle, angle)
    angle = torch.where(x < 0, math.pi - angle, angle)
    return torch.where(y < 0, -angle, angle)


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
