"""Losses per token, and the one place where they are averaged. Pure functions over tensors."""

from __future__ import annotations

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


LossFunction = Callable[[LossInputs, float, float], tuple[torch.Tensor, torch.Tensor]]
"""(inputs, clip_low, clip_high) -> (loss_L, clipped_L), both float32 [L]."""


def clipped_surrogate(inputs: LossInputs, clip_low: float, clip_high: float) -> tuple[torch.Tensor, torch.Tensor]:
    """The negative clipped objective (Schulman et al., PPO, equation 7), with separate bounds (Yu et al., DAPO, equation 10).

    Returns (loss_L, clipped_L): clipped_L is 1.0 where the bound cuts the gradient off.
    """
    ratio_L = (inputs.logprobs_L - inputs.old_logprobs_L).exp()
    bounded_L = ratio_L.clamp(1 - clip_low, 1 + clip_high)
    plain_L, clipped_L = ratio_L * inputs.advantages_L, bounded_L * inputs.advantages_L
    return -torch.minimum(plain_L, clipped_L), (clipped_L < plain_L).float()


def negative_log_likelihood(
    inputs: LossInputs, clip_low: float = 0.0, clip_high: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Supervised learning: minus the log-probability of each token, weighted by its advantage (1 for demonstrations)."""
    return -inputs.logprobs_L * inputs.advantages_L, torch.zeros_like(inputs.logprobs_L)


def k3(logprobs_L: torch.Tensor, reference_L: torch.Tensor) -> torch.Tensor:
    """Unbiased, non-negative estimate of KL(policy || reference) from the policy's samples (Schulman, Approximating KL)."""
    log_ratio_L = reference_L - logprobs_L
    return log_ratio_L.exp() - 1 - log_ratio_L


def average(values_L: torch.Tensor, micro: MicroBatch, batch: Batch, normalise: Literal["token", "sequence"]) -> torch.Tensor:
    """A micro-batch's share of the batch mean; the shares of all micro-batches and ranks add up to it, however they are split.

    token: every trained token counts the same. sequence: every rollout counts the same, and its tokens among themselves.
    """
    if normalise == "token":
        return values_L.sum() / max(batch.num_tokens, 1)
    return (values_L / batch.lengths_N[micro.rollout_L]).sum() / max(batch.num_rollouts, 1)
