"""Advantages that compare the rollouts of a group by something else than their mean and deviation. See
`mmrl.algorithms.advantage` for what all advantages share."""

from __future__ import annotations

import math
from typing import Literal

import torch

from mmrl.algorithms.advantage import NOTHING, centred, group_sums, spread, success_relative
from mmrl.api.tokens import TokenKind, for_tokens


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


def best_of_k(rewards_N: torch.Tensor, groups_N: torch.Tensor, *, k: int = 4) -> torch.Tensor:
    """By how much a rollout raises the best reward of k rollouts of its group: the mean over all choices of k, those without it
    counting 0, of the best reward less the best of the k - 1 others: PKPO (Walder and Karkhanis, Pass@K Policy Optimization,
    equation 33, arXiv 2505.15201).

    The policy gradient with this advantage is that of the best of k, which is pass@k with rewards of 0 and 1, without bias. With
    k as large as the group it is `best_of_group` without scale, from which only the best rollout learns.

    rewards_N: float, NaN if the score failed. groups_N: int64. k: at least 2, and at most the group's valid rollouts count.

    Returns float32 [N], at least 0: 0 for the least reward of a group; NaN where the reward was NaN.
    """
    centred_N = centred(rewards_N, groups_N)
    found_N = torch.full_like(centred_N, torch.nan)
    for group in groups_N.unique().tolist():
        (places,) = ((groups_N == group) & ~centred_N.isnan()).nonzero(as_tuple=True)
        n = len(places)
        most = min(k, n)
        if most < 2:
            found_N[places] = 0.0
            continue
        sorted_n, order = centred_N[places].sort()
        ways = [math.comb(below, most - 2) / math.comb(n, most) for below in range(n)]  # in which it is the best of the others
        ways_n = torch.tensor(ways, dtype=torch.float64, device=sorted_n.device)
        found_N[places[order]] = sorted_n * ways_n.cumsum(0) - (ways_n * sorted_n).cumsum(0)
    return found_N.masked_fill(found_N < NOTHING, 0.0).float()


def per_success(rewards_N: torch.Tensor, groups_N: torch.Tensor, *, threshold: float = 0.5) -> torch.Tensor:
    """(1 - p) / p for a correct rollout and -1 for an incorrect one, with p the share of correct ones in its group: MaxRL (Tajwar
    et al., Maximum Likelihood Reinforcement Learning, arXiv 2602.02710).

    The policy gradient with 1 - p and -p is that of p, and this one that of log p: the mean score of a prompt's correct rollouts,
    less that of all. So hard prompts count more, as in supervised learning.

    rewards_N: float, NaN if the score failed. groups_N: int64. threshold: smallest reward of a correct rollout. (Its code divides
    rewards themselves by their mean, which is the same for rewards of 0 and 1, and has no meaning for negative ones.)

    Returns float32 [N]: 0 for groups in which all are correct, or none is; NaN where the reward was NaN.
    """
    relative_N = success_relative(rewards_N, groups_N, threshold=threshold).double()
    valid_N = ~rewards_N.isnan()
    right_N = group_sums(((rewards_N >= threshold) & valid_N).double(), groups_N)
    return (relative_N * group_sums(valid_N.double(), groups_N) / right_N.clamp_min(1)).float()


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


@for_tokens(TokenKind.WORD)
def optimal_token_baseline(
    rewards_NT: torch.Tensor, groups_N: torch.Tensor, slopes_NT: torch.Tensor, mask_NT: torch.Tensor, *, tail: bool = True
) -> torch.Tensor:
    """The reward to go of each token, minus the mean of those of its group at the same place, weighted by the energy so far: OTB
    (Li et al., The Optimal Token Baseline, arXiv 2602.07078; verl's `compute_multi_turn_optimal_token_baseline_advantage`).

    The energy of a rollout at a token is the sum of `slopes_NT` up to it, which stands for the squared norm of the gradient of
    the log-probability of what has been sampled so far; the baseline is the one of least variance at each place. Places count
    trained tokens, of all turns.

    rewards_NT: float, rows of failed rollouts NaN. groups_N: int64. slopes_NT: float, at least 0. mask_NT: bool, trained tokens.
    tail: tokens of the longest rollout of a group that no other one reaches have no baseline, so that their advantage is their
    reward to go, as in verl; without it they have their own, so that they teach nothing.

    Returns float32 [N, T]: 0 for tokens that aren't trained and in groups with a single valid rollout, NaN in failed rows.
    """
    failed_N = rewards_NT.isnan().any(1)
    there_NT = mask_NT & ~failed_N[:, None]
    to_go_NT = rewards_NT.double().where(there_NT, 0.0).flip(1).cumsum(1).flip(1)
    energy_NT = slopes_NT.double().where(there_NT, 0.0).cumsum(1).where(there_NT, 0.0)
    total_NT = group_sums(energy_NT, groups_N)
    baseline_NT = (group_sums(energy_NT * to_go_NT, groups_N) / total_NT).where(total_NT > 0, 0.0)
    alone_NT = group_sums(there_NT.double(), groups_N) == 1
    others_N1 = group_sums(there_NT.any(1).double(), groups_N)[:, None] > 1
    baseline_NT = baseline_NT.masked_fill(alone_NT, 0.0) if tail else baseline_NT
    found_NT = (to_go_NT - baseline_NT).where(there_NT & others_N1, 0.0)
    return found_NT.masked_fill(found_NT.abs() < NOTHING, 0.0).masked_fill(failed_N[:, None], torch.nan).float()
