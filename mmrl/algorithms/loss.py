"""Losses per token, and the one place where they are averaged. Pure functions over tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch

from mmrl.types import Batch, MicroBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class LossInputs:
    """What a loss function sees of a micro-batch; all float32 [L] unless said otherwise."""

    logprobs_L: torch.Tensor
    """Under the current weights, with gradient."""
    old_logprobs_L: torch.Tensor
    """Under the weights before the step's first update."""
    advantages_L: torch.Tensor
    rollout_L: torch.Tensor
    """int64 rollout of each token."""
    lengths_N: torch.Tensor
    """int64 trained tokens of each rollout."""


LossFunction = Callable[..., tuple[torch.Tensor, torch.Tensor]]
"""(inputs, *, settings) -> (loss_L, clipped_L), both float32 [L]; clipped_L is 1.0 where a bound had an effect."""


def clipped_surrogate(
    inputs: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2, dual_clip: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Minus min(r A, clip(r, 1 - clip_low, 1 + clip_high) A), r the probability ratio of a token (Schulman et al., PPO, equation 7).

    Separate bounds: Yu et al., DAPO, equation 10. dual_clip: above 1, A < 0 is never multiplied by more than this
    (Ye et al., Mastering Complex Control in MOBA Games, equation 5); 0 is off.

    Returns (loss_L, clipped_L): clipped_L is 1.0 where a bound cuts the gradient off.
    """
    return bounded((inputs.logprobs_L - inputs.old_logprobs_L).exp(), inputs.advantages_L, 1 - clip_low, 1 + clip_high, dual_clip)


def sequence_surrogate(
    inputs: LossInputs, *, clip_low: float = 3e-4, clip_high: float = 4e-4
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped objective with one ratio for each rollout (Zheng et al., GSPO, equations 5 and 7).

    The ratio is the exponential of the mean log-ratio of the rollout's tokens, so its bounds are much narrower than a token's; the
    gradient reaches every token through that mean. Meant for `normalise="sequence"`.

    Returns (loss_L, clipped_L), each equal for all tokens of a rollout that have the same advantage.
    """
    log_ratio_L = inputs.logprobs_L - inputs.old_logprobs_L
    sums_N = log_ratio_L.new_zeros(len(inputs.lengths_N)).index_add(0, inputs.rollout_L, log_ratio_L)
    ratio_N = (sums_N / inputs.lengths_N.clamp_min(1)).exp()
    return bounded(ratio_N[inputs.rollout_L], inputs.advantages_L, 1 - clip_low, 1 + clip_high)


def bounded_surrogate(
    inputs: LossInputs, *, clip_low: float = 0.2, clip_high: float = 0.2, bound: float = 1e3
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped objective whose ratio was bounded before the exponential (Zhang et al., R1-Reward, StableReinforce's pre-clip).

    Returns (loss_L, clipped_L): clipped_L is 1.0 where either bound cuts the gradient off.
    """
    log_ratio_L = inputs.logprobs_L - inputs.old_logprobs_L
    loss_L, clipped_L = bounded(bounded_ratio(log_ratio_L, bound), inputs.advantages_L, 1 - clip_low, 1 + clip_high)
    return loss_L, clipped_L.maximum((log_ratio_L.abs() > math.log(bound)).float())


def bounded_ratio(log_ratio_L: torch.Tensor, bound: float = 1e3) -> torch.Tensor:
    """exp(log_ratio_L), with the logarithm limited to -log(bound)..log(bound), so that it can't overflow."""
    return log_ratio_L.clamp(-math.log(bound), math.log(bound)).exp()


def adaptive_surrogate(
    inputs: LossInputs, *, clip_low: float = 0.16, clip_high: float = 0.2, limit: float = 10.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The clipped objective whose bounds are the wider, the less likely the token was (Yang et al., DCPO, equation 4).

    With q the token's old probability: from 1/2 + sqrt(max(1 - 4 clip_low / q, 0)) / 2 to 1/2 + sqrt(1 + 4 clip_high / q) / 2. The
    ratio counts for at most `limit`, whatever the sign of the advantage (section A.6).

    Returns (loss_L, clipped_L): clipped_L is 1.0 where a bound cuts the gradient off.
    """
    old_L = inputs.old_logprobs_L.exp()
    low_L = 0.5 + 0.5 * (1 - 4 * clip_low / old_L).clamp_min(0).sqrt()
    high_L = (0.5 + 0.5 * (1 + 4 * clip_high / old_L).sqrt()).clamp_max(limit)
    ratio_L = (inputs.logprobs_L - inputs.old_logprobs_L).exp()
    return bounded(ratio_L, inputs.advantages_L, low_L, high_L, dual_clip=limit)


def bounded(
    ratio_L: torch.Tensor,
    advantages_L: torch.Tensor,
    low: float | torch.Tensor,
    high: float | torch.Tensor,
    dual_clip: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Minus min(ratio A, clip(ratio, low, high) A), and where that cuts the gradient off; see `clipped_surrogate`."""
    plain_L = ratio_L * advantages_L
    clipped_L = torch.minimum(ratio_L.new_tensor(high) if isinstance(high, float) else high, ratio_L).maximum(
        ratio_L.new_tensor(low) if isinstance(low, float) else low
    )
    return plain_L, clipped_L


def policy_gradient(inputs: LossInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """REINFORCE: the gradient is that of -A log p, token by token (Williams 1992; Sutton and Barto, section 13.3).

    Its value is -A, as that of the surrogates is on-policy. There is no ratio: what was sampled by earlier weights counts as if the
    current ones had sampled it, so it is meant for `epochs = 1`.
    """
    score_L = (inputs.logprobs_L - inputs.logprobs_L.detach()).exp()  # 1, with the gradient of log p
    return -score_L * inputs.advantages_L, torch.zeros_like(inputs.logprobs_L)
