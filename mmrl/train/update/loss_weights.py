"""What a loss returns, checked, and the weights of its tokens for a sampler with other probabilities."""

from __future__ import annotations

from typing import Any

import torch

from mmrl.api.errors import PluginError


def check_loss_output(found: Any, logprobs_L: torch.Tensor, what: str) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss's result (loss_L, clipped_L). Raises PluginError unless both are tensors [L] and loss_L has a gradient; a loss
    that averages itself would depend on the division into micro-batches."""
    length = len(logprobs_L)
    if (
        not isinstance(found, tuple)
        or len(found) != 2
        or not all(isinstance(f, torch.Tensor) and f.shape == (length,) for f in found)
    ):
        shapes = [list(f.shape) if isinstance(f, torch.Tensor) else f for f in (found if isinstance(found, tuple) else [found])]
        raise PluginError(
            f"{what} must return (loss_L, clipped_L), each a tensor [{length}], not {', '.join(map(str, shapes)):.80}"
        )
    loss_L, clipped_L = found
    if loss_L.device != logprobs_L.device or clipped_L.device != logprobs_L.device:
        raise PluginError(f"{what} must stay on the device of its inputs, {logprobs_L.device}, not go to {loss_L.device}")
    if logprobs_L.requires_grad and not loss_L.requires_grad:
        raise PluginError(f"{what} has no gradient: compute loss_L from inputs.logprobs_L, without detach() or integers")
    return loss_L, clipped_L.detach().float()


def importance_weights(
    old_L: torch.Tensor, sampler_L: torch.Tensor, own_L: torch.Tensor, mask: bool, cap: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight of each token, float32 [L]; whether it exceeded the cap, bool [L]). The weight is the token's probability under the
    learner divided by that under the sampler, at most `cap`; with `mask`, 0 above `cap`; 1 for tokens that weren't sampled
    (Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training)."""
    ratio_L = (old_L - sampler_L).where(own_L, 0.0).exp()
    cut_L = own_L & (ratio_L > cap)
    return (ratio_L.where(~cut_L, 0.0) if mask else ratio_L.clamp_max(cap)), cut_L
