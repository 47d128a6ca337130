"""Advantages: from the rewards of N rollouts to a credit for each. Pure functions; failed rollouts are NaN in and NaN out."""

from __future__ import annotations

from typing import Literal

import torch

EPSILON = 1e-4


def group_relative(
    rewards_N: torch.Tensor, groups_N: torch.Tensor, *, scale: Literal["group", "batch", "none"] = "group"
) -> torch.Tensor:
    """Reward minus the mean of its group, divided by a standard deviation: GRPO (Shao et al., DeepSeekMath, section 4.1.2).

    rewards_N: float, NaN where the score failed; such rollouts leave their group's statistics. groups_N: int64, its group.
    scale: divide by the group's sample standard deviation, by the batch's (Liu et al., Lite PPO), or not at all (Dr.GRPO).

    Returns float32 [N]: 0 for groups without spread or with a single valid rollout, NaN where the reward was NaN.
    """
    rewards_N = rewards_N.double()  # sums of equal rewards must have no spread at all
    valid_N = ~rewards_N.isnan()
    _, index_N = groups_N.unique(return_inverse=True)
    num_groups = int(index_N.max()) + 1 if len(index_N) else 0
    filled_N = rewards_N.where(valid_N, 0.0)

    def per_group(values_N: torch.Tensor) -> torch.Tensor:
        return torch.zeros(num_groups, dtype=torch.float64, device=values_N.device).index_add_(0, index_N, values_N)

    count_G = per_group(valid_N.double())
    centred_N = filled_N - (per_group(filled_N) / count_G.clamp_min(1))[index_N]
    centred_N = centred_N.where(valid_N & spread(rewards_N, groups_N), 0.0)
    if scale == "group":
        std_G = (per_group(centred_N**2) / (count_G - 1).clamp_min(1)).sqrt()
        centred_N = centred_N / (std_G[index_N] + EPSILON)
    elif scale == "batch" and valid_N.sum() > 1:
        centred_N = centred_N / (rewards_N[valid_N].std() + EPSILON)
    return centred_N.where(valid_N, torch.nan).float()


def spread(rewards_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
    """Bool [N]: the rollout's group has at least two different valid rewards, so there is something to learn from it."""
    _, index_N = groups_N.unique(return_inverse=True)
    num_groups = int(index_N.max()) + 1 if len(index_N) else 0
    empty = torch.full((num_groups,), torch.inf, dtype=rewards_N.dtype, device=rewards_N.device)
    low_G = empty.scatter_reduce(0, index_N, rewards_N.nan_to_num(torch.inf), "amin")
    high_G = (-empty).scatter_reduce(0, index_N, rewards_N.nan_to_num(-torch.inf), "amax")
    return (high_G > low_G)[index_N]
