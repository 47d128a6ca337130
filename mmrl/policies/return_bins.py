"""A value as a distribution over bins: targets, their loss, and the mean."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """Equal bins of a range of returns."""

    low: float
    high: float
    """Lowest and highest return."""
    number: int
    smoothing: float
    """Standard deviation of a target's Gaussian, in bins; 0: the bin that the return falls into has all of it."""

    @property
    def width(self) -> float:
        return (self.high - self.low) / self.number

    def edges(self, like: torch.Tensor) -> torch.Tensor:
        """[M + 1], with the dtype and device of another tensor."""
        return torch.linspace(self.low, self.high, self.number + 1, dtype=like.dtype, device=like.device)

    def mean(self, logprobs_XM: torch.Tensor) -> torch.Tensor:
        """[X]: the expected return, from log-probabilities of the bins; a bin stands for its middle."""
        edges = self.edges(logprobs_XM)
        return (logprobs_XM.exp() * (edges[1:] + edges[:-1]) / 2).sum(-1)

    def targets(self, returns_L: torch.Tensor) -> torch.Tensor:
        """[L, M]: the probability of each bin under a Gaussian around the return, cut off at the range: HL-Gauss (Imani and White
        2018; Farebrother et al., Stop Regressing, section 3.1, arXiv 2403.03950). A return outside the range counts as its
        nearest end."""
        if not self.smoothing:
            place_L = ((returns_L - self.low) / self.width).long().clamp(0, self.number - 1)
            return torch.nn.functional.one_hot(place_L, self.number).to(returns_L.dtype)
        middle_L1 = returns_L.clamp(self.low, self.high)[:, None]
        below = torch.special.ndtr((self.edges(returns_L) - middle_L1) / (self.smoothing * self.width))
        return below.diff(dim=1) / (below[:, -1:] - below[:, :1])


def distributional_loss(logprobs_LM: torch.Tensor, returns_L: torch.Tensor, bins: Bins) -> torch.Tensor:
    """[L]: the cross-entropy of the bins' predicted log-probabilities with the targets, less the targets' entropy, so that 0 is
    the least; 0 for tokens without a target (NaN).

    Its gradient by the logits is that of the cross-entropy: predicted probability less target."""
    known_L = ~returns_L.isnan()
    targets_LM = bins.targets(returns_L.where(known_L, (bins.low + bins.high) / 2))
    gap_LM = targets_LM.clamp_min(math.ulp(0.0)).log().clamp_min(-1e4) - logprobs_LM
    return (targets_LM * gap_LM).sum(1).where(known_L, 0.0)
