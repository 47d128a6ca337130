"""Rules of critics of whole turns: the advantage of an answer, what the critics learn, and which episodes are worth imitating.

E critics, n turns or episodes.
"""

from __future__ import annotations

import torch
from torch.nn.functional import binary_cross_entropy_with_logits

from mmrl.algorithms import off_policy

SURE = 1e-4
"""Least distance of a probability of success from 0 and 1 (DigiRL's published code)."""


def answer_advantage(
    rewards_N: torch.Tensor, answer_values_NT: torch.Tensor, values_NT: torch.Tensor, mask_NT: torch.Tensor
) -> torch.Tensor:
    """The value of a whole answer less that of the state before it, for each of its tokens: ArCHer (Zhou et al., section 3.3,
    arXiv 2402.19446). Meant for `policy_gradient`.

    rewards_N: float, NaN if the score failed; only that is read. answer_values_NT, values_NT: float, the lower of two critics
    each. mask_NT: bool, trained tokens.

    Returns float32 [N, T]: 0 for tokens that aren't trained, NaN in failed rows.
    """
    found_NT = (answer_values_NT.double() - values_NT.double()).where(mask_NT, 0.0)
    return found_NT.masked_fill(rewards_N.isnan()[:, None], torch.nan).float()


def token_baseline(
    advantages_NT: torch.Tensor, values_NT: torch.Tensor, mask_NT: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """REINFORCE with a baseline that is learned for each token: a critic of tokens foresees the advantage of the answer, and what
    it foresaw is taken off (ArCHer, and `actor_loss` of its published code).

    advantages_NT: float, NaN in failed rows. values_NT: float, the critic's value before each token. mask_NT: bool, trained
    tokens.

    Returns (advantages_NT, targets_NT), float32: 0 and NaN for tokens that aren't trained, NaN in failed rows.
    """
    rest_NT = (advantages_NT - values_NT).where(mask_NT, 0.0).where(~advantages_NT.isnan(), torch.nan)
    return rest_NT.float(), advantages_NT.where(mask_NT, torch.nan).float()


def returns_loss(
    answers_En: torch.Tensor, rewards_n: torch.Tensor, discounts_n: torch.Tensor, next_En: torch.Tensor
) -> torch.Tensor:
    """The squared error of answers' values, averaged over turns and summed over critics: each learns the reward, and the
    discounted value that its own target critic gives the next state (ArCHer, equation 1).

    discounts_n: 0 where the episode terminated. next_En: without a gradient."""
    targets_En = off_policy.td_targets(rewards_n, discounts_n, next_En)
    return off_policy.td_loss(answers_En, targets_En, torch.ones_like(rewards_n))


def values_loss(values_En: torch.Tensor, answers_En: torch.Tensor) -> torch.Tensor:
    """The squared error of states' values, averaged over turns and summed over critics: each learns what its own target critic
    gives an answer of the policy (ArCHer, equation 2)."""
    return off_policy.td_loss(values_En, answers_En, torch.ones_like(values_En[0]))


def success_loss(logits_En: torch.Tensor, success_n: torch.Tensor) -> torch.Tensor:
    """The cross-entropy of the probability of success, averaged over turns and summed over critics (DigiRL, equation 4).

    success_n: bool, whether the return of the episode from there on is above 0."""
    targets_En = success_n.to(logits_En.dtype).expand_as(logits_En)
    return binary_cross_entropy_with_logits(logits_En, targets_En, reduction="none").mean(1).sum()


def furthest_above(rewards_n: torch.Tensor, chances_n: torch.Tensor, *, share: float = 0.1) -> torch.Tensor:
    """bool [n]: the `share` of episodes whose reward is furthest above the probability of success that their prompt had, all that
    tie with the last of them included (DigiRL, section 4.2, and its published code, which interpolates the quantile)."""
    above_n = rewards_n.double() - chances_n.double().clamp(SURE, 1 - SURE)
    return above_n >= above_n.quantile(1 - share)
