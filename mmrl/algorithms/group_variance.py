"""GVPO: rewards as what log-ratios must differ by within a group (Zhang et al., Group Variance Policy Optimization, arXiv
2504.19599; verl's recipe `gvpo`)."""

from __future__ import annotations

import torch

from mmrl.algorithms.advantage import group_sums
from mmrl.algorithms.loss import LossInputs


def group_variance(
    inputs: LossInputs, log_ratios_N: torch.Tensor, groups_N: torch.Tensor, credits_N: torch.Tensor, *, beta: float = 0.1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Half the variance within a group of beta times a rollout's log-ratio, less its credit.

    It is 0 for one policy alone, the one that is best if a KL divergence from the policy before the update, times beta, is
    subtracted from rewards; for rollouts of any policy. At the step's first update log-ratios are 0, and the gradient is that of
    REINFORCE with the group's mean as baseline, times beta.

    Meant for `normalise="constant"` with constant 1, with which the mean over rollouts is that over groups of equal size. The
    others as in `mmrl.algorithms.implicit_critic.implicit_critic`. beta: above 0.

    Returns (loss_L, clipped_L): the rollout's squared error in equal parts for its tokens; clipped_L is 0.
    """
    valid_N = ~credits_N.isnan()
    errors_N = (beta * log_ratios_N - credits_N.nan_to_num(0.0)).double()
    count_N = group_sums(valid_N.double(), groups_N)
    errors_N = errors_N - group_sums(errors_N.where(valid_N, 0.0), groups_N) / count_N.clamp_min(1)
    errors_N = errors_N.where(valid_N, 0.0)
    weights_N = count_N / (count_N - 1).clamp_min(1)
    slopes_N = (beta * weights_N * errors_N).to(log_ratios_N.dtype)
    each_N = (weights_N * errors_N**2 / 2).to(log_ratios_N.dtype) / inputs.lengths_N.clamp_min(1)
    moved_L = inputs.logprobs_L - inputs.logprobs_L.detach()  # 0, with the gradient of log p
    return slopes_N[inputs.rollout_L] * moved_L + each_N[inputs.rollout_L], torch.zeros_like(moved_L, dtype=torch.float32)
