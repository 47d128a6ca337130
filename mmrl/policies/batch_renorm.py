"""Batch renormalisation of E networks side by side."""

from __future__ import annotations

import torch
from torch import nn

MOST_SCALE, MOST_SHIFT = 3.0, 5.0
"""Farthest that the running moments pull a batch's: factor of the standard deviation, and standard deviations of the mean."""
EPSILON = 1e-3
"""Added to a variance, as in flax."""
TINY = 1e-12
"""Least variance whose root is taken."""


class BatchRenorm(nn.Module):
    """Each number of [E, n, W] by the batch's mean and standard deviation, drawn towards the running ones within bounds (Ioffe,
    Batch Renormalization, algorithm 1, arXiv 1702.03275; as in the code of CrossQ, with its bounds). The first `warmup` batches
    are normalised by their own moments alone. Without training by the running moments."""

    mean: torch.Tensor
    variance: torch.Tensor
    batches: torch.Tensor

    def __init__(self, networks: int, wide: int, *, momentum: float = 0.99, warmup: int = 100_000) -> None:
        """momentum: share of the running moments that stays with each batch."""
        super().__init__()
        self.momentum, self.warmup = momentum, warmup
        self.scale = nn.Parameter(torch.ones(networks, 1, wide))
        self.shift = nn.Parameter(torch.zeros(networks, 1, wide))
        self.register_buffer("mean", torch.zeros(networks, 1, wide))
        self.register_buffer("variance", torch.ones(networks, 1, wide))
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, x_EnW: torch.Tensor) -> torch.Tensor:
        mean, variance = self._of_batch(x_EnW) if self.training else (self.mean, self.variance)
        return (x_EnW - mean) / (variance + EPSILON).sqrt() * self.scale + self.shift

    def _of_batch(self, x_EnW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(mean, variance) by which a batch is normalised; the running ones move towards its own."""
        mean, variance = x_EnW.mean(1, keepdim=True), x_EnW.var(1, correction=0, keepdim=True)
        with torch.no_grad():
            running = (self.variance + EPSILON).sqrt()
            scale = ((variance + EPSILON).sqrt() / running).clamp(1 / MOST_SCALE, MOST_SCALE)
            shift = ((mean - self.mean) / running).clamp(-MOST_SHIFT, MOST_SHIFT)
            warm = self.batches >= self.warmup
            self.mean.lerp_(mean, 1 - self.momentum)
            self.variance.lerp_(variance, 1 - self.momentum)
            self.batches += 1
        # the root of a variance of 0, of a unit that is 0 for the whole batch, has no gradient
        deviation = variance.clamp_min(TINY).sqrt() * (variance >= TINY)
        renormed = mean - shift * deviation / scale, variance / scale**2
        return torch.where(warm, renormed[0], mean), torch.where(warm, renormed[1], variance)
