"""Rollouts by unit of credit: token, action, chunk or turn."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn.functional import pad


@dataclass(frozen=True, slots=True, kw_only=True)
class Units:
    """Rollouts by unit of credit (token, action, chunk, turn); U: the largest number of units. float64 unless noted otherwise."""

    rewards_NU: torch.Tensor
    """Sum of the rewards of the unit's tokens."""
    values_NU: torch.Tensor
    """Value of the unit's first token."""
    next_values_NU: torch.Tensor
    """Value of the next unit; for the last one the bootstrap."""
    exists_NU: torch.Tensor
    """bool: whether the rollout has this unit."""
    first_NT: torch.Tensor
    """bool [N, T]: whether a unit begins at the token."""
    index_NT: torch.Tensor
    """int64 [N, T]: the unit of each token, -1 for none."""

    def returns(self, gamma: float) -> torch.Tensor:
        """[N, U]: the unit's reward and what follows it, discounted by gamma for each unit."""
        returns_NU = self.rewards_NU.clone()
        for u in reversed(range(returns_NU.shape[1] - 1)):
            returns_NU[:, u] += gamma * returns_NU[:, u + 1]
        return returns_NU

    def of_tokens(self, numbers_NT: torch.Tensor) -> torch.Tensor:
        """int64 [N, U]: the number that all tokens of a unit have, -1 for units that a rollout doesn't have."""
        row_M, column_M = (self.index_NT >= 0).nonzero(as_tuple=True)
        numbers_NU = torch.full_like(self.exists_NU, -1, dtype=torch.int64)
        numbers_NU[row_M, self.index_NT[row_M, column_M]] = numbers_NT[row_M, column_M]
        return numbers_NU

    def to_tokens(self, values_NU: torch.Tensor) -> torch.Tensor:
        """[N, T]: the value of each token's unit, 0 for tokens without a unit."""
        return values_NU.gather(1, self.index_NT.clamp_min(0)).where(self.index_NT >= 0, 0.0)

    def to_first_tokens(self, values_NU: torch.Tensor) -> torch.Tensor:
        """[N, T]: the unit's value at its first token, NaN elsewhere."""
        return self.to_tokens(values_NU).where(self.first_NT, torch.nan)


def by_unit(rewards_NT: torch.Tensor, values_NT: torch.Tensor, bootstrap_N: torch.Tensor, units_NT: torch.Tensor) -> Units:
    """Group tokens into units of credit.

    rewards_NT: float, NaN in failed rows. values_NT: float, before each token. bootstrap_N: float, the value after the last token
    if the environment truncated the episode, else 0. units_NT: int64, rising along each row, -1 for tokens without a unit.
    """
    (n, t), u = units_NT.shape, int(units_NT.amax().clamp_min(0)) + 1 if units_NT.numel() else 1
    own_NT = units_NT >= 0
    zeros_NU = torch.zeros(n, u, dtype=torch.float64, device=units_NT.device)
    used_NU = zeros_NU.scatter_add(1, units_NT.clamp_min(0), own_NT.double()) > 0
    count_N1 = used_NU.sum(1, keepdim=True)
    index_NT = (used_NU.cumsum(1) - 1).clamp_min(0).gather(1, units_NT.clamp_min(0))  # closes gaps in the numbers
    place_NT = torch.arange(t, device=units_NT.device).expand(n, t)
    first_NU = torch.full_like(used_NU, t - 1, dtype=torch.long)
    first_NU = first_NU.scatter_reduce(1, index_NT, place_NT.where(own_NT, t), "amin")
    values_NU = pad(values_NT.double(), (0, 1)).gather(1, first_NU.clamp_min(0))  # so that there is one to take without tokens
    return Units(
        rewards_NU=zeros_NU.scatter_add(1, index_NT, rewards_NT.double().where(own_NT, 0.0)),
        values_NU=values_NU,
        next_values_NU=values_NU.roll(-1, 1).scatter(1, (count_N1 - 1).clamp_min(0), bootstrap_N.double()[:, None]),
        exists_NU=torch.arange(u, device=units_NT.device) < count_N1,
        first_NT=own_NT & (place_NT == first_NU.gather(1, index_NT)),
        index_NT=index_NT.where(own_NT, -1),
    )
