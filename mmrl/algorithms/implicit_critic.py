"""PACS: reinforcement as supervised learning of whether an answer is right (Li et al., Implicit Actor Critic Coupling via a
Supervised Learning Framework for RLVR, arXiv 2509.02522, and its code)."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from mmrl.algorithms.advantage import group_sums
from mmrl.algorithms.loss import LossInputs


def class_balanced(rewards_N: torch.Tensor, groups_N: torch.Tensor, *, threshold: float = 0.5) -> torch.Tensor:
    """The weight of a rollout's label, positive for a correct rollout and negative for an incorrect one. Both classes of a group
    weigh the same: n / (2 c) for a rollout of a class with c of the group's n, and 1 in a group of one class.

    rewards_N: float, NaN if the score failed. groups_N: int64. threshold: smallest reward of a correct rollout. Returns float32
    [N], NaN where the score failed.
    """
    valid_N = ~rewards_N.isnan()
    correct_N = (rewards_N >= threshold) & valid_N
    all_N, correct_in_N = group_sums(valid_N.double(), groups_N), group_sums(correct_N.double(), groups_N)
    alike_N = torch.where(correct_N, correct_in_N, all_N - correct_in_N)
    weights_N = torch.where(alike_N == all_N, 1.0, all_N / (2 * alike_N))
    return torch.where(correct_N, weights_N, -weights_N).masked_fill(~valid_N, torch.nan).float()


def implicit_critic(
    inputs: LossInputs, log_ratios_N: torch.Tensor, groups_N: torch.Tensor, credits_N: torch.Tensor, *, beta: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Binary cross-entropy between a rollout's label and its score less the mean score of the others of its group.

    The score is beta times the rollout's log-ratio. A rollout's scores move the baselines of the others of its group, so that the
    gradient by its own score has a part from each of them; it is known in closed form from the scores of all. At the step's
    first update all scores are 0. The sign of a rollout's credit is its label, and its size the weight of its cross-entropy.

    Meant for `normalise="constant"` with constant 1. Returns (loss_L, clipped_L): the rollout's cross-entropy in equal parts for
    its tokens; clipped_L is 0.
    """
    valid_N = ~credits_N.isnan()
    alike_NN = (groups_N[:, None] == groups_N) & valid_N & valid_N[:, None]
    alike_NN = alike_NN.to(log_ratios_N.dtype).fill_diagonal_(0.0)
    others_N = alike_NN.sum(1).clamp_min(1.0)
    scores_N = beta * log_ratios_N
    logits_N = scores_N - alike_NN @ scores_N / others_N
    labels_N, weights_N = (credits_N > 0).to(log_ratios_N.dtype), credits_N.nan_to_num(0.0).abs()
    entropy_N = weights_N * F.binary_cross_entropy_with_logits(logits_N, labels_N, reduction="none")
    errors_N = weights_N * (logits_N.sigmoid() - labels_N)
    slopes_N = beta * (errors_N - alike_NN @ (errors_N / others_N))  # of the mean over rollouts, by the sum of log-probabilities
    moved_L = inputs.logprobs_L - inputs.logprobs_L.detach()  # 0, with the gradient of log p
    each_N = entropy_N / inputs.lengths_N.clamp_min(1)
    return slopes_N[inputs.rollout_L] * moved_L + each_N[inputs.rollout_L], torch.zeros_like(moved_L, dtype=torch.float32)
