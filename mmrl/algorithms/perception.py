"""What a policy sees: how much less of a picture changes what it says, as a part of the loss and as credit for tokens."""

from __future__ import annotations

import torch

from mmrl.algorithms.advantage import EPSILON, NOTHING, group_relative
from mmrl.algorithms.kl import k3

LOG_RATIO, MOST = 20.0, 10.0
"""Bounds of a token's log-ratio and of its divergence, as in the code of PAPO and VPPO: what is maximised has no other end."""


def visual_divergence(logprobs: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
    """q/p - 1 - log(q/p) of each sampled token, where p is its probability with its picture and q with a masked one: `k3` of the
    two, between 0 and 10, and log(q/p) between -20 and 20. Beyond these bounds it has no gradient.

    logprobs, masked: log p and log q, float of the same shape; so is the result.

    PAPO's implicit perception loss is minus its mean (Wang et al., Perception-Aware Policy Optimization, arXiv 2507.06448,
    section 3), and VPPO's token perception is it before the update (Huang et al., Spotlight on Token Perception, arXiv
    2510.09285). Both as in their code.
    """
    log_ratio = (masked - logprobs).clamp(-LOG_RATIO, LOG_RATIO)
    return k3(torch.zeros_like(log_ratio), log_ratio).clamp_max(MOST)


def visually_perceptive(
    rewards_N: torch.Tensor,
    groups_N: torch.Tensor,
    perception_NT: torch.Tensor,
    mask_NT: torch.Tensor,
    *,
    share: float = 0.4,
    least: float = 0.9,
    epsilon: float = EPSILON,
) -> torch.Tensor:
    """GRPO's credit for the tokens of each rollout that depend most on its picture, and 0 for the others: VPPO (Huang et al.,
    arXiv 2510.09285, section 3, and its code).

    perception_NT: float, 0 or above; 0 after a rollout's end, as is mask_NT. share: of a rollout's tokens, at least one; among
    equals the earlier. least: the factor of the credit of the step's rollout with the smallest mean perception; factors rise
    linearly with it, and their mean is 1. epsilon: added to the standard deviation.

    Returns float32 [N, T]. (The code takes the smallest and the largest mean of each device's mini-batch, and the mean of each
    micro-batch.)
    """
    credit_N = group_relative(rewards_N, groups_N, epsilon=epsilon).double()
    lengths_N = mask_NT.sum(1)
    kept_N = (lengths_N.double() * share).ceil().clamp_min(1)
    order_NT = perception_NT.double().masked_fill(~mask_NT, -torch.inf).argsort(dim=1, descending=True, stable=True)
    chosen_NT = torch.zeros_like(mask_NT).scatter_(1, order_NT, torch.arange(mask_NT.shape[1]) < kept_N[:, None]) & mask_NT
    factors_N = _factors(perception_NT.double().sum(1) / lengths_N.clamp_min(1), ~credit_N.isnan() & (lengths_N > 0), least)
    return (credit_N[:, None] * factors_N[:, None] * chosen_NT).float()


def _factors(means_N: torch.Tensor, valid_N: torch.Tensor, least: float) -> torch.Tensor:
    """Factors of credit from mean perceptions: linear, from `least` up, their mean over valid rollouts 1; 1 without spread."""
    ones_N = torch.ones_like(means_N)
    if not valid_N.any():
        return ones_N
    low, high = means_N[valid_N].min(), means_N[valid_N].max()
    if high - low <= NOTHING:
        return ones_N
    height_N = (means_N - low) / (high - low)
    return torch.where(valid_N, least + height_N * (1 - least) / height_N[valid_N].mean(), ones_N)
