"""Advantages for the rollouts and tokens that teach most, and less or nothing for all others."""

from __future__ import annotations

import math

import torch

from mmrl.algorithms.advantage import group_relative
from mmrl.api.tokens import DISCRETE, for_tokens


@for_tokens(*DISCRETE)
def down_sampled(
    rewards_N: torch.Tensor,
    groups_N: torch.Tensor,
    entropy_NT: torch.Tensor,
    mask_NT: torch.Tensor,
    progress_N: torch.Tensor,
    *,
    first_rollouts: float = 0.5,
    last_rollouts: float = 1.0,
    first_tokens: float = 0.2,
    last_tokens: float = 1.0,
) -> torch.Tensor:
    """The advantage of `group_relative`, for a share of the rollouts and of their tokens: D3S (Wang et al., section 3, arXiv
    2509.22115).

    Of the batch's rollouts those are kept whose advantages have the largest variance, and of their tokens those with the
    largest |advantage| times entropy. Both shares grow linearly over the stage. What is kept is scaled up by the number of all
    tokens over that of the kept ones, so that a mean over all tokens is one over the kept ones. (The paper's numbers are those of
    its batches; these shares are ours.)

    rewards_N: float, NaN if the score failed. groups_N: int64. entropy_NT: float, nats, of each token's distribution. mask_NT:
    bool, trained tokens. progress_N: 0..1. first_rollouts, last_rollouts: share of the rollouts at the beginning and at the end
    of the stage, rounded up. first_tokens, last_tokens: the same of the kept rollouts' tokens.

    Returns float32 [N, T]: 0 for what is left out, NaN in rollouts whose reward is NaN.
    """
    advantages_N = group_relative(rewards_N, groups_N).double()
    failed_N = advantages_N.isnan()
    progress = float(progress_N[0]) if len(progress_N) else 0.0
    there = int((~failed_N).sum())
    wanted = math.ceil(there * (first_rollouts + (last_rollouts - first_rollouts) * progress) - ROUNDING)
    kept_N = most_varied(advantages_N, wanted)
    weight_NT = advantages_N.abs()[:, None] * entropy_NT.double()
    candidates_NT = mask_NT & kept_N[:, None] & (weight_NT > 0)
    tokens = int((mask_NT & kept_N[:, None]).sum())
    wanted = math.ceil(tokens * (first_tokens + (last_tokens - first_tokens) * progress) - ROUNDING)
    kept_NT = torch.zeros_like(mask_NT)
    order = weight_NT.masked_fill(~candidates_NT, 0.0).flatten().argsort(descending=True, stable=True)
    kept_NT.view(-1)[order[:wanted]] = True
    kept_NT &= candidates_NT
    every = int((mask_NT & ~failed_N[:, None]).sum())
    scaled_NT = advantages_N[:, None] * (every / max(int(kept_NT.sum()), 1))
    return scaled_NT.where(kept_NT, 0.0).masked_fill(failed_N[:, None], torch.nan).float()


@for_tokens(*DISCRETE)
def likelihood_weighted(
    rewards_N: torch.Tensor, groups_N: torch.Tensor, logprobs_NT: torch.Tensor, mask_NT: torch.Tensor, *, share: float = 0.2
) -> torch.Tensor:
    """The advantage A of `group_relative`, less of it for unlikely tokens: A (share p + 1 - share), with p a token's probability
    under the policy before the update (Yang et al., Do Not Let Low-Probability Tokens Over-Dominate in RL for LLMs, arXiv
    2505.12929, Advantage Reweighting).

    The gradient of a token's log-probability by the logits is the larger, the less likely the token is, so that unlikely ones
    dominate an update.

    rewards_N: float, NaN if the score failed. groups_N: int64. logprobs_NT: float, nats. mask_NT: bool, trained tokens. share: of
    the advantage that is multiplied by the probability, 0..1; 0 is GRPO. (The published scripts have 0.2, and 0.3 with the
    paper's second method, Lopti, which isn't part of this.)

    Returns float32 [N, T]: 0 for tokens that aren't trained, NaN in rollouts whose reward is NaN.
    """
    advantage_N1 = group_relative(rewards_N, groups_N).double()[:, None]
    weight_NT = share * logprobs_NT.double().exp() + 1 - share
    return (advantage_N1 * weight_NT).where(mask_NT | rewards_N.isnan()[:, None], 0.0).float()


def most_uncertain(advantages: torch.Tensor, entropy_NT: torch.Tensor, mask_NT: torch.Tensor, share: float) -> torch.Tensor:
    """The advantages, 0 for tokens whose entropy is below the quantile 1 - share of all trained tokens: the forking tokens of
    Wang et al., Beyond the 80/20 Rule, section 5, arXiv 2506.01939.

    advantages: float, [N] or [N, T]; rollouts that are NaN count in no quantile. entropy_NT: float. mask_NT: bool, trained
    tokens. share: 0..1; 0 keeps the highest alone.

    Returns float32 [N, T]: NaN in rollouts that are NaN.
    """
    every_NT = advantages if advantages.ndim == 2 else advantages[:, None].expand(mask_NT.shape)
    left_out_N = every_NT.isnan().any(1)
    counted = entropy_NT[mask_NT & ~left_out_N[:, None]].sort().values
    if not len(counted):
        return every_NT.float()
    threshold = counted[math.ceil((1 - share) * (len(counted) - 1) - ROUNDING)]
    kept_NT = mask_NT & (entropy_NT >= threshold)
    return every_NT.where(kept_NT | left_out_N[:, None], 0.0).float()


ROUNDING = 1e-9
"""Taken off a number before it is rounded up, so that 0.1 of 30 are 3."""


def most_varied(values_N: torch.Tensor, size: int) -> torch.Tensor:
    """bool [N]: a subset of this size with the largest variance. It consists of the k largest values and the size - k smallest
    ones, for some k; among equals the smallest k. NaN is never chosen."""
    order = values_N.nan_to_num(torch.inf).argsort(stable=True)[: int((~values_N.isnan()).sum())]
    size = min(size, len(order))
    if not size:
        return torch.zeros(len(values_N), dtype=torch.bool)
    choices = [torch.cat([order[: size - k], order[len(order) - k :]]) for k in range(size + 1)]
    best = max(choices, key=lambda chosen: float(values_N[chosen].var(correction=0)))
    kept_N = torch.zeros(len(values_N), dtype=torch.bool)
    kept_N[best] = True
    return kept_N
