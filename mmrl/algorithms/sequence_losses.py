"""Losses whose token depends on the other tokens of its rollout, all of which must be in one micro-batch."""

from __future__ import annotations

import math

import torch

from mmrl.algorithms.loss import LossInputs, clipped_surrogate, finite_ratio, rollout_sums
from mmrl.api.tokens import TokenKind, for_tokens

SMALLEST = 1e-8
"""Smallest ratio of a rollout in `gamma_weight`, as in TRL."""


@for_tokens(TokenKind.WORD)
def geometric_mean(inputs: LossInputs, *, clip_low: float = 0.4, clip_high: float = 0.4) -> tuple[torch.Tensor, torch.Tensor]:
    """Minus A times the geometric mean of the rollout's ratios, each of which is clipped first: GMPO (Zhao et al.,
    Geometric-Mean Policy Optimization, arXiv 2507.20673).

    Unlike in `sequence_surrogate`, a token beyond the bounds loses its gradient, and the others of its rollout keep theirs. Meant
    for `normalise="sequence"`.

    clip_low: the *log*-ratio is clipped at -clip_low, so the ratio at exp(-clip_low). clip_high: the *log*-ratio is clipped at
    clip_high.

    Returns (loss_L, clipped_L): the rollout's loss for each of its tokens; clipped_L is 1.0 where a token's gradient is gone.
    """
    log_ratio_L = inputs.logprobs_L - inputs.old_logprobs_L
    kept_L = torch.where(inputs.advantages_L > 0, log_ratio_L.clamp_max(clip_high), log_ratio_L.clamp_min(-clip_low))
    mean_N = rollout_sums(kept_L, inputs) / inputs.lengths_N.clamp_min(1)
    return -finite_ratio(mean_N)[inputs.rollout_L] * inputs.advantages_L, (kept_L != log_ratio_L).float()


@for_tokens(TokenKind.WORD)
def gamma_weight(
    inputs: LossInputs, *, power: float = 2.0, decay: float = 3.0, negative_power: float = 3.0, negative_decay: float = 2.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """-w^k exp(l (1 - w)) A log p, no gradient through w, the product of the rollout's ratios: VESPO (Shen et al.,
    arXiv 2602.10693).

    The weight is 1 at w = 1, largest at w = k / l, and falls to 0 on both sides, in place of clipping. w is kept in
    1e-8..exp(20), and each token's log-ratio in -20..20, as in TRL.

    power: k of tokens with an advantage of at least 0. decay: their l. negative_power: k of tokens with a negative advantage.
    negative_decay: their l.

    Returns (loss_L, clipped_L); clipped_L is 0.
    """
    log_ratio_L = (inputs.logprobs_L - inputs.old_logprobs_L).detach()
    log_w_L = rollout_sums(log_ratio_L.clamp(-20.0, 20.0), inputs).clamp(math.log(SMALLEST), 20.0)[inputs.rollout_L]
    gains_L = inputs.advantages_L >= 0
    k_L = torch.full_like(log_w_L, negative_power).masked_fill(gains_L, power)
    l_L = torch.full_like(log_w_L, negative_decay).masked_fill(gains_L, decay)
    weight_L = (l_L + k_L * log_w_L - l_L * log_w_L.exp()).exp()
    return -weight_L * inputs.advantages_L * inputs.logprobs_L, torch.zeros_like(log_w_L, dtype=torch.float32)


@for_tokens(TokenKind.WORD)
def future_weighted(
    inputs: LossInputs,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.28,
    dual_clip: float = 10.0,
    half_life: float = 32.0,
    weight_clip: float = 0.2,
    only_raises: bool = True,
    safe_ratio: float = 4.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`clipped_surrogate` times the weight of each token, by how the policy has moved on the tokens that follow it: FIPO (Ma et
    al., Future-KL Influenced Policy Optimization, arXiv 2603.19835; ms-swift, `loss_type fipo`).

    The weight is the exponential of the sum of the log-ratios from the token to the end of its rollout, discounted by
    2^(-1 / half_life) a token; it has no gradient, and is 1 at the step's first update.

    clip_low: the ratio is clipped at 1 - clip_low. clip_high: the ratio is clipped at 1 + clip_high. dual_clip: upper bound of
    the ratio for negative advantages, above 1; log-ratios of tokens above it don't count for what stands before them; 0 is off.
    half_life: tokens over which what follows loses half its weight, above 0. weight_clip: weights are kept in
    1 - weight_clip..1 + weight_clip; 0 is off. only_raises: weights are kept in 1..1 + weight_clip. safe_ratio: tokens of a
    larger ratio and a negative advantage have a weight of 0.8 to 1; 0 is off.

    Returns (loss_L, clipped_L): clipped_L is 1.0 where clipping the ratio removes the gradient.
    """
    loss_L, clipped_L = clipped_surrogate(inputs, clip_low=clip_low, clip_high=clip_high, dual_clip=dual_clip)
    log_ratio_L = (inputs.logprobs_L - inputs.old_logprobs_L).detach()
    counted_L = log_ratio_L.masked_fill(log_ratio_L > math.log(dual_clip), 0.0) if dual_clip else log_ratio_L
    weight_L = finite_ratio(discounted_ahead(counted_L, inputs.rollout_L, 0.5 ** (1 / half_life)))
    if weight_clip:
        weight_L = weight_L.clamp(1.0 if only_raises else 1 - weight_clip, 1 + weight_clip)
    if safe_ratio:
        risky_L = (inputs.advantages_L < 0) & (log_ratio_L > math.log(safe_ratio))
        weight_L = torch.where(risky_L, weight_L.clamp(0.8, 1.0), weight_L)
    return loss_L * weight_L, clipped_L


def discounted_ahead(values_L: torch.Tensor, rollout_L: torch.Tensor, gamma: float) -> torch.Tensor:
    """[L]: the sum of gamma^k times the value k tokens later in the same rollout, k from 0. The tokens of a rollout stand beside
    each other. Each round doubles the number of tokens that are summed."""
    found_L, ahead = values_L, 1
    while ahead < len(values_L):
        same_L = rollout_L[ahead:] == rollout_L[:-ahead]
        found_L = torch.cat([found_L[:-ahead] + (gamma**ahead * found_L[ahead:]).where(same_L, 0.0), found_L[-ahead:]])
        ahead *= 2
    return found_L
