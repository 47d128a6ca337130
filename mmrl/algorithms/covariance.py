"""Losses that spare the tokens which lower the entropy most, by the covariance of advantage and log-probability (Cui et al., The
Entropy Mechanism of Reinforcement Learning for Reasoning Language Models, section 4, arXiv 2505.22617)."""

from __future__ import annotations

import torch

from mmrl.algorithms.loss import LossInputs, clipped_surrogate, finite_ratio, pessimistic


def token_covariances(logprobs_M: torch.Tensor, advantages_M: torch.Tensor) -> torch.Tensor:
    """[M]: each token's part of the covariance, (A - mean A) (log p - mean log p)."""
    return (advantages_M - advantages_M.mean()) * (logprobs_M - logprobs_M.mean())


def clipped_covariance(
    inputs: LossInputs,
    batch_M3: torch.Tensor,
    places_L: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    share: float = 2e-4,
    low: float = 1.0,
    high: float = 5.0,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`clipped_surrogate` without some tokens, drawn among those with a covariance between low and high that clipping leaves:
    Clip-Cov.

    The draw has always the same seed, so that all micro-batches leave out the same tokens; whose turn it is still varies, since
    the candidates do.

    batch_M3, places_L: see `mmrl.algorithms.loss.MEASURED`. clip_low: the ratio is clipped at 1 - clip_low. clip_high: the ratio
    is clipped at 1 + clip_high. share: how many tokens of the batch are left out, 0..1, rounded down and at least one. low: of
    covariances, in nats times the unit of advantages. high: of covariances.

    Returns (loss_L, clipped_L, chosen_L): clipped_L is 1.0 where either removes the gradient, chosen_L where the draw does.
    """
    loss_L, clipped_L = clipped_surrogate(inputs, clip_low=clip_low, clip_high=clip_high)
    new_M, old_M, advantages_M = batch_M3.unbind(1)
    ratio_M, covariance_M = finite_ratio(new_M - old_M), token_covariances(new_M, advantages_M)
    _, cut_M = pessimistic(ratio_M, ratio_M.clamp(1 - clip_low, 1 + clip_high), advantages_M)
    (candidates,) = ((covariance_M > low) & (covariance_M < high) & (cut_M == 0)).nonzero(as_tuple=True)
    order = torch.randperm(len(candidates), generator=torch.Generator().manual_seed(0)).to(candidates.device)
    spared_M = torch.zeros_like(new_M, dtype=torch.float32)
    spared_M[candidates[order[: _number(share, new_M)]]] = 1.0
    spared_L = spared_M[places_L]
    return loss_L * (1 - spared_L), clipped_L.maximum(spared_L), spared_L


def covariance_penalty(
    inputs: LossInputs, batch_M3: torch.Tensor, places_L: torch.Tensor, *, share: float = 2e-4, penalty: float = 1.0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """-r A, with the absolute log-ratio as a penalty for the tokens of the largest covariance: KL-Cov. The ratio r isn't clipped.

    batch_M3, places_L: see `mmrl.algorithms.loss.MEASURED`. share: how many tokens of the batch have the penalty, 0..1, rounded
    down and at least one; none whose covariance isn't above 0. penalty: its weight, at least 0. (The paper's shares are 2e-3 for
    7B and 2e-4 for 32B, its weight 1; verl's weight is 0.1.)

    Returns (loss_L, clipped_L, chosen_L): clipped_L is 0, and chosen_L is 1.0 where the penalty is.
    """
    log_ratio_L = inputs.logprobs_L - inputs.old_logprobs_L
    covariance_M = token_covariances(batch_M3[:, 0], batch_M3[:, 2])
    chosen_M = torch.zeros_like(covariance_M, dtype=torch.float32)
    chosen_M[covariance_M.topk(min(_number(share, covariance_M), len(covariance_M))).indices] = 1.0
    chosen_L = chosen_M.where(covariance_M > 0, 0.0)[places_L]
    loss_L = penalty * chosen_L * log_ratio_L.abs() - finite_ratio(log_ratio_L) * inputs.advantages_L
    return loss_L, torch.zeros_like(chosen_L), chosen_L


def _number(share: float, values_M: torch.Tensor) -> int:
    """A share of all tokens, in tokens."""
    return max(int(share * len(values_M)), 1)
