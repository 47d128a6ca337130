"""Losses that hold the policy near the one that sampled by something else than a clipped ratio. Pure functions of tensors."""

from __future__ import annotations

from typing import Literal

import torch

from mmrl.algorithms.loss import LossInputs, finite_ratio
from mmrl.api.tokens import DISCRETE, for_tokens

ALMOST_NOTHING = 1e-8
"""Added to probabilities before a logarithm, as in verl (trainer/ppo/core_algos.py, `dppo_kl`)."""


def soft_gate(
    inputs: LossInputs, *, temperature: float = 1.0, negative_temperature: float = 1.05
) -> tuple[torch.Tensor, torch.Tensor]:
    """Minus 4 / t sigmoid(t (r - 1)) A, r a token's probability ratio: SAPO (Gao et al., Soft Adaptive Policy Optimization,
    arXiv 2511.20347).

    At r = 1 the gradient is that of r A; it fades as r moves away on either side, where clipping would cut it off.

    temperature: t of tokens with a positive advantage, above 0; larger is closer to hard clipping. negative_temperature: t of the
    others; a little larger, since they raise many tokens at once.

    Returns (loss_L, clipped_L); clipped_L is 0.
    """
    ratio_L = finite_ratio(inputs.logprobs_L - inputs.old_logprobs_L)
    sharpness_L = torch.full_like(ratio_L, negative_temperature).masked_fill(inputs.advantages_L > 0, temperature)
    gate_L = (sharpness_L * (ratio_L - 1)).sigmoid() * 4 / sharpness_L
    return -gate_L * inputs.advantages_L, torch.zeros_like(ratio_L, dtype=torch.float32)


@for_tokens(*DISCRETE)
def divergence_mask(
    inputs: LossInputs,
    *,
    divergence: Literal["tv", "kl"] = "tv",
    clip_low: float = 0.15,
    clip_high: float = 0.15,
    limit: float = 20.0,
    penalty: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Minus min(r, limit) A log p, no gradient through the ratio r, and 0 for tokens that have moved too far already in the
    direction of their advantage: Divergence PPO (Qi et al., Rethinking the Trust Region in LLM Reinforcement Learning, arXiv
    2602.04879).

    A rare token may grow tenfold without changing the policy much, and a likely one can't; so what is bounded is a distance of
    the two distributions, seen as "this token or any other".

    divergence: `tv`, the difference of the token's probabilities; or `kl`, KL(old || new). clip_low: how far tokens with an
    advantage of at most 0 may fall; published for both bounds are 0.15 with `tv` and 0.05 with `kl`. clip_high: how far tokens
    with a positive advantage may rise. limit: upper bound of the weight r; verl's `clip_ratio_c`. penalty: weight of the squared
    log-ratio of all tokens, those that have moved too far too (Kimi K2.5, arXiv 2602.02276), at least 0; prime-rl's default loss
    has 0.001, with bounds of 0.2 and without a limit.

    Returns (loss_L, clipped_L): clipped_L is 1.0 where the advantage has no gradient for that reason.
    """
    log_ratio_L = (inputs.logprobs_L - inputs.old_logprobs_L).detach()
    old_L, others_L = inputs.old_logprobs_L.exp(), _others(inputs.logprobs_L.detach())
    if divergence == "tv":
        moved_L = (inputs.logprobs_L.detach().exp() - old_L).abs()
    else:
        old_others_L = _others(inputs.old_logprobs_L)
        moved_L = old_others_L * ((old_others_L + ALMOST_NOTHING) / (others_L + ALMOST_NOTHING)).log() - old_L * log_ratio_L
    gains_L = inputs.advantages_L > 0
    cut_L = torch.where(gains_L, (log_ratio_L > 0) & (moved_L > clip_high), (log_ratio_L < 0) & (moved_L > clip_low))
    weight_L = finite_ratio(log_ratio_L).clamp_max(limit)
    loss_L = -weight_L * inputs.advantages_L * inputs.logprobs_L * ~cut_L
    return loss_L + penalty * (inputs.logprobs_L - inputs.old_logprobs_L) ** 2, cut_L.float()


def _others(logprobs_L: torch.Tensor) -> torch.Tensor:
    """The probability of all other tokens, exact where it is tiny."""
    return -torch.expm1(logprobs_L.clamp_max(0.0))


def quadratic_penalty(inputs: LossInputs, *, beta: float = 0.05) -> tuple[torch.Tensor, torch.Tensor]:
    """-(A log p - beta / 2 (log r)^2), r a token's probability ratio: DRO (Richemond et al., Offline Regularised Reinforcement
    Learning for LLMs Alignment, arXiv 2405.19107, and Kimi k1.5, arXiv 2501.12599), token by token as in verl.

    Without a ratio before the advantage: it stands for learning far from the policy that sampled, held back by the square.

    beta: weight of the square, at least 0. verl has no default; 0.05 is that of the example in Tinker's documentation.

    Returns (loss_L, clipped_L); clipped_L is 0.
    """
    log_ratio_L = inputs.logprobs_L - inputs.old_logprobs_L
    loss_L = beta / 2 * log_ratio_L**2 - inputs.advantages_L * inputs.logprobs_L
    return loss_L, torch.zeros_like(log_ratio_L, dtype=torch.float32)
