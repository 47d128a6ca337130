"""Losses that weigh tokens with a positive advantage in another way than those with a negative one. Pure functions of tensors."""

from __future__ import annotations

from typing import Literal

import torch

from mmrl.algorithms.loss import LossInputs, finite_ratio, pessimistic, rollout_sums
from mmrl.api.tokens import TokenKind, for_tokens


@for_tokens(TokenKind.WORD)
def tapered(inputs: LossInputs, *, level: Literal["sequence", "token"] = "sequence") -> tuple[torch.Tensor, torch.Tensor]:
    """-w A log p, with w = 1 for a positive advantage and w = min(r, 1), without a gradient, for others: TOPR (Le Roux et al.,
    Tapered Off-Policy REINFORCE, equation 8, arXiv 2503.14286).

    Good rollouts are imitated however old they are, and bad ones count less, the further the policy has left them already:
    without the taper their loss has no lower bound. At r = 1 the gradient is that of REINFORCE.

    level: r is the product of the ratios of the rollout's tokens, as in the paper; or each token's own, as in ROLL (`pg_variant:
    topr`), which has less variance in long completions.

    Returns (loss_L, clipped_L): clipped_L is 1.0 where r is bounded by 1.
    """
    log_ratio_L = (inputs.logprobs_L - inputs.old_logprobs_L).detach()
    if level == "sequence":
        log_ratio_L = rollout_sums(log_ratio_L, inputs)[inputs.rollout_L]
    gains_L = inputs.advantages_L > 0
    weight_L = log_ratio_L.clamp_max(0.0).exp().masked_fill(gains_L, 1.0)
    return -weight_L * inputs.advantages_L * inputs.logprobs_L, (~gains_L & (log_ratio_L > 0)).float()


def gradient_preserving(
    inputs: LossInputs,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    low_weight: float = 0.75,
    high_weight: float = 1.0,
    dual_clip: float = 10.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`clipped_surrogate` in which tokens beyond a bound keep the gradient that they have at the bound, times a weight: CE-GPPO
    (Su et al., Coordinating Entropy via Gradient-Preserving Policy Optimization, arXiv 2509.20712, and its code).

    Tokens that fall below the lower bound are unlikely ones, and their gradient lowers the entropy; the gradient of those beyond
    the upper one raises it. So the two weights steer the entropy.

    clip_low: the ratio is clipped at 1 - clip_low. clip_high: the ratio is clipped at 1 + clip_high. low_weight: weight of tokens
    with a negative advantage below the lower bound; 0 removes their gradient, as clipping does; published are 0.5 for 1.5B and
    0.75 for 7B. high_weight: weight of tokens with a positive advantage beyond the upper bound. dual_clip: upper bound of the
    ratio for negative advantages, above 1; 0 is off.

    Returns (loss_L, clipped_L): clipped_L is 1.0 beyond either bound, and where the dual clip removes the gradient.
    """
    ratio_L = finite_ratio(inputs.logprobs_L - inputs.old_logprobs_L)
    score_L = (inputs.logprobs_L - inputs.logprobs_L.detach()).exp()  # 1, with the gradient of log p
    low_L = (inputs.advantages_L < 0) & (ratio_L < 1 - clip_low)
    high_L = (inputs.advantages_L > 0) & (ratio_L > 1 + clip_high)
    kept_L = torch.where(low_L, low_weight * (1 - clip_low) * score_L, ratio_L)
    kept_L = torch.where(high_L, high_weight * (1 + clip_high) * score_L, kept_L)
    loss_L, cut_L = pessimistic(kept_L, kept_L, inputs.advantages_L, dual_clip)
    return loss_L, cut_L.maximum((low_L | high_L).float())


def flipped_ratio(
    inputs: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2, limit: float = 3.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """-w A log p, with the ratio r as the weight w of a negative advantage and 1 / r as that of a positive one, both without a
    gradient: ASPO (Wang et al., Asymmetric Importance Sampling Policy Optimization, arXiv 2510.06062, and its code).

    With r as the weight of both, likely tokens of good rollouts are raised the most and unlikely ones the least, which is the
    wrong way round. Its code's wider bounds for tokens of high entropy are left out.

    clip_low: tokens with a negative advantage lose their gradient below a ratio of 1 - clip_low. clip_high: those with a positive
    one beyond 1 + clip_high. limit: upper bound of the weight; tokens at it keep their gradient.

    Returns (loss_L, clipped_L), the loss with the value of a surrogate, -w A; clipped_L is 1.0 where there is no gradient.
    """
    falls_L = inputs.advantages_L < 0
    ratio_L = finite_ratio((inputs.logprobs_L - inputs.old_logprobs_L).detach())
    cut_L = torch.where(falls_L, ratio_L < 1 - clip_low, ratio_L > 1 + clip_high)
    weight_L = torch.where(falls_L, ratio_L.clamp_min(1 - clip_low), 1 / ratio_L.clamp_max(1 + clip_high)).clamp_max(limit)
    score_L = (inputs.logprobs_L - inputs.logprobs_L.detach()).exp()  # 1, with the gradient of log p
    return -weight_L * inputs.advantages_L * torch.where(cut_L, score_L.detach(), score_L), cut_L.float()
