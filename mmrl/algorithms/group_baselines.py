"""Advantages that compare the rollouts of a group by something else than their mean and deviation. See
`mmrl.algorithms.advantage` for what all advantages share."""

from __future__ import annotations

from typing import Literal

import torch

from mmrl.algorithms.advantage import NOTHING, centred, group_sums, spread


def length_weighted(rewards_N: torch.Tensor, groups_N: torch.Tensor, lengths_N: torch.Tensor) -> torch.Tensor:
    """Reward minus the mean of its group weighted by length, the baseline of least variance if the gradient of a rollout grows
    with its tokens: OPO (Hao et al., On-Policy RL with Optimal Reward Baseline, section 3, arXiv 2505.23585).

    rewards_N: float, NaN if the score failed. groups_N: int64. lengths_N: int64, trained tokens.

    Returns float32 [N]: 0 for groups without spread, with a single valid rollout, or without a token.
    """
    centred_N = centred(rewards_N, groups_N)
    weights_N = lengths_N.double().masked_fill(centred_N.isnan(), 0.0)
    mean_N = group_sums(weights_N * centred_N, groups_N) / group_sums(weights_N, groups_N).clamp_min(1)
    return (centred_N - mean_N).float()


def best_of_group(
    rewards_N: torch.Tensor, groups_N: torch.Tensor, *, scale: Literal["group", "none"] = "group", epsilon: float = 1e-6
) -> torch.Tensor:
    """The best reward of a group minus the second best, for the best; 0 for all others: the gradient of the best of as many
    tries as the group has (Tang et al., Optimizing Language Models for Inference Time Objectives using Reinforcement Learning,
    arXiv 2503.19595), which is pass@k with rewards of 0 and 1.

    rewards_N: float, NaN if the score failed. groups_N: int64. scale: divide by the group's standard deviation, as verl does, or
    not, as the paper does. epsilon: added to the standard deviation.

    Returns float32 [N]: 0 also where two rollouts are best, and for a single valid rollout; NaN where the reward was NaN.
    """
    centred_N = centred(rewards_N, groups_N)
    valid_N = ~centred_N.isnan()
    count_N = group_sums(valid_N.double(), groups_N)
    others_NN = (groups_N[:, None] == groups_N) & valid_N
    best_other_N = centred_N.expand(len(centred_N), -1).masked_fill(~others_NN.fill_diagonal_(False), -torch.inf).amax(1)
    gain_N = (centred_N - best_other_N).clamp_min(0.0).where(count_N > 1, 0.0)
    if scale == "group":
        gain_N = gain_N / ((group_sums(centred_N**2, groups_N) / (count_N - 1).clamp_min(1)).sqrt() + epsilon).clamp_min(NOTHING)
    return gain_N.masked_fill(~valid_N, torch.nan).float()


def rescaled(rewards_N: torch.Tensor, groups_N: torch.Tensor) -> torch.Tensor:
    """Reward minus the mean of its group, times the number of rollouts over that of rollouts in groups with spread, so that
    groups which teach nothing don't make the gradient smaller: GPG (Chu et al., Group Policy Gradient, arXiv 2504.02546).

    rewards_N: float, NaN if the score failed. groups_N: int64. (verl takes the rollouts whose reward isn't 0 instead of those in
    groups with spread.)

    Returns float32 [N]: 0 for groups without spread or with a single valid rollout, NaN where the reward was NaN.
    """
    centred_N = centred(rewards_N, groups_N)
    valid_N = ~centred_N.isnan()
    teaching = int((spread(rewards_N, groups_N) & valid_N).sum())
    return (centred_N * (int(valid_N.sum()) / max(teaching, 1))).float()
