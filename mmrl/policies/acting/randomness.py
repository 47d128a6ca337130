"""What the randomness of a policy that acts is a function of."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmrl.api.simulators import noise


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRandomness:
    """The randomness of n calls: theirs alone, whatever stands beside them."""

    seeds_n: torch.Tensor
    """int64, of the episodes."""
    calls_n: torch.Tensor
    """int64: which call of its episode each is."""

    def to(self, device: torch.device) -> CallRandomness:
        return CallRandomness(seeds_n=self.seeds_n.to(device), calls_n=self.calls_n.to(device))

    def uniform(self, use: int, *shape: int) -> torch.Tensor:
        """float32 [n, *shape]. use: tells the draws of one call apart."""
        return noise.uniform(self.seeds_n, self.calls_n, use, shape=shape)

    def normal(self, use: int, *shape: int) -> torch.Tensor:
        """As `uniform`, of the standard normal distribution."""
        return noise.normal(self.seeds_n, self.calls_n, use, shape=shape)
