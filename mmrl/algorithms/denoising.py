"""DPPO: PPO over the steps by which a policy denoises an action (Ren et al., Diffusion Policy Policy Optimization, arXiv
2409.00588, section 4; irom-princeton/dppo, model/diffusion/diffusion_ppo.py). A unit of credit is a call of the policy, whose
tokens are its denoising steps. Pure functions of tensors."""

from __future__ import annotations

import math

import torch

from mmrl.algorithms.gae import gae
from mmrl.algorithms.loss import LossInputs, finite_ratio, pessimistic
from mmrl.api.tokens import TokenKind, for_tokens


@for_tokens(TokenKind.DENOISING_STEP)
def denoising_gae(
    rewards_NT: torch.Tensor,
    values_NT: torch.Tensor,
    bootstrap_N: torch.Tensor,
    units_NT: torch.Tensor,
    *,
    gamma: float = 0.99,
    lam: float = 0.95,
    denoising_gamma: float = 0.99,
    whiten: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`gae`, with a discount of earlier steps: a token's advantage is its unit's, times denoising_gamma to the number of later
    tokens in the unit.

    The first four, gamma, lam, whiten and what is returned as there.
    """
    advantages_NT, returns_NT = gae(rewards_NT, values_NT, bootstrap_N, units_NT, gamma=gamma, lam=lam, whiten=whiten)
    own_NT, place_NT = units_NT >= 0, torch.arange(units_NT.shape[1], device=units_NT.device).expand(units_NT.shape)
    number = int(units_NT.amax().clamp_min(0)) + 1 if units_NT.numel() else 1
    last_NU = place_NT.new_zeros(len(units_NT), number)
    last_NU = last_NU.scatter_reduce(1, units_NT.clamp_min(0), place_NT.where(own_NT, 0), "amax")
    later_NT = (last_NU.gather(1, units_NT.clamp_min(0)) - place_NT).where(own_NT, 0)
    return (advantages_NT * denoising_gamma**later_NT).float(), returns_NT


@for_tokens(TokenKind.DENOISING_STEP)
def scheduled_surrogate(
    inputs: LossInputs, through_call_L: torch.Tensor, *, clip: float = 0.01, first_clip: float = 0.001, clip_rate: float = 3.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """`clipped_surrogate` with a narrower bound for earlier denoising steps: at a share t of the way through its call it is
    first_clip + (clip - first_clip) (e^(clip_rate t) - 1) / (e^clip_rate - 1).

    through_call_L: see `mmrl.algorithms.loss.MEASURED`. clip: bound of the last step's ratio, above and below 1. first_clip: of
    the first's. clip_rate: how late the bound grows.

    Returns (loss_L, clipped_L): clipped_L is 1.0 where clipping removes the gradient.
    """
    bound_L = first_clip + (clip - first_clip) * (clip_rate * through_call_L).expm1() / math.expm1(clip_rate)
    ratio_L = finite_ratio(inputs.logprobs_L - inputs.old_logprobs_L)
    return pessimistic(ratio_L, ratio_L.clamp(1 - bound_L, 1 + bound_L), inputs.advantages_L)
