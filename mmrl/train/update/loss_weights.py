"""What a loss returns, checked, and the weights of its tokens for a sampler with other probabilities."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mmrl.algorithms.loss import LossInputs, rollout_sums
from mmrl.api.errors import PluginError
from mmrl.config.sections import RlStage


def check_loss_output(
    found: Any, logprobs_L: torch.Tensor, what: str
) -> tuple[torch.Tensor, torch.Tensor, dict[str, torch.Tensor]]:
    """The loss's loss_L and clipped_L, and the number of chosen tokens for metrics if it tells chosen_L. Raises PluginError
    unless all are tensors [L] and loss_L has a gradient; a loss that averages itself would depend on the division into
    micro-batches."""
    length = len(logprobs_L)
    if (
        not isinstance(found, tuple)
        or len(found) not in (2, 3)
        or not all(isinstance(f, torch.Tensor) and f.shape == (length,) for f in found)
    ):
        shapes = [list(f.shape) if isinstance(f, torch.Tensor) else f for f in (found if isinstance(found, tuple) else [found])]
        raise PluginError(
            f"{what} must return (loss_L, clipped_L), each a tensor [{length}], not {', '.join(map(str, shapes)):.80}"
        )
    loss_L, clipped_L, *chosen = found
    if any(one_L.device != logprobs_L.device for one_L in found):
        raise PluginError(f"{what} must stay on the device of its inputs, {logprobs_L.device}, not go to {loss_L.device}")
    if logprobs_L.requires_grad and not loss_L.requires_grad:
        raise PluginError(f"{what} has no gradient: compute loss_L from inputs.logprobs_L, without detach() or integers")
    return loss_L, clipped_L.detach().float(), {"chosen_share": chosen[0].detach().float().sum()} if chosen else {}


def off_policy_weights(
    stage: RlStage | None, inputs: LossInputs, old_L: torch.Tensor, sampler_L: torch.Tensor, own_L: torch.Tensor
) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
    """(weight of each token's loss by the stage's keys, float32 [L], None if they are off; sums for metrics).

    old_L, sampler_L: log-probabilities before the update and at the sampler, the latter NaN where nothing was sampled. own_L:
    bool, tokens that were sampled from the prompt that is trained on.
    """
    weight_L, sums = None, {}
    if stage and stage.importance_sampling != "off":
        weight_L, cut_L = importance_weights(
            old_L,
            sampler_L,
            own_L,
            stage.importance_sampling == "mask",
            stage.importance_sampling_cap,
            stage.importance_sampling_floor,
            inputs if stage.importance_sampling_level == "sequence" else None,
        )
        sums = {"importance": weight_L.where(own_L, 0.0).sum(), "importance_cut": cut_L.sum()}
    if stage and stage.off_policy_mask is not None:
        left_out_L = drifted(inputs, sampler_L.where(own_L, inputs.old_logprobs_L), stage.off_policy_mask)
        weight_L = (torch.ones_like(old_L) if weight_L is None else weight_L).masked_fill(left_out_L, 0.0)
        sums["drifted"] = left_out_L.sum()
    if stage and stage.gap_mask is not None:
        left_out_L = apart(inputs, old_L, sampler_L, own_L, stage.gap_mask)
        weight_L = (torch.ones_like(old_L) if weight_L is None else weight_L).masked_fill(left_out_L, 0.0)
        sums["apart"] = left_out_L.sum()
    return weight_L, sums


def weight_figures(stage: RlStage, found: Mapping[str, float]) -> dict[str, float]:
    """The metrics of `off_policy_weights`. found: its sums over all ranks, and the numbers of tokens."""
    figures = {}
    if found["sampled"] and stage.importance_sampling != "off":
        figures["importance/mean"] = found["importance"] / found["sampled"]
        figures["importance/capped_share"] = found["importance_cut"] / found["sampled"]
    for key, name in (("off_policy_mask", "drifted"), ("gap_mask", "apart")):
        if getattr(stage, key) is not None:
            figures[f"importance/{name}_share"] = found[name] / found["tokens"]
    return figures


def importance_weights(
    old_L: torch.Tensor,
    sampler_L: torch.Tensor,
    own_L: torch.Tensor,
    mask: bool,
    cap: float,
    floor: float = 0.0,
    whole: LossInputs | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight of each token, float32 [L]; whether it was outside of floor..cap, bool [L]). The weight is the token's probability
    under the learner divided by that under the sampler, kept in floor..cap; with `mask`, 0 outside; 1 for tokens that weren't
    sampled (Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training).

    whole: of rollouts all of whose tokens are here: the probabilities are those of whole rollouts then."""
    log_ratio_L = (old_L - sampler_L).where(own_L, 0.0)
    if whole is not None:
        log_ratio_L = rollout_sums(log_ratio_L, whole)[whole.rollout_L].where(own_L, 0.0)
    ratio_L = log_ratio_L.exp()
    cut_L = own_L & ((ratio_L > cap) | (ratio_L < floor))
    return (ratio_L.where(~cut_L, 0.0) if mask else ratio_L.clamp(floor, cap)), cut_L


def apart(inputs: LossInputs, old_L: torch.Tensor, sampler_L: torch.Tensor, own_L: torch.Tensor, limit: float) -> torch.Tensor:
    """bool [L]: sampled tokens of rollouts whose mean log-ratio, of the learner's probability before the update to the sampler's,
    is further from 0 than `limit`, in nats: their geometric mean ratio is outside of exp(-limit)..exp(limit). (verl's
    `seq_mean_k1` and OpenRLHF's `seq-mask-tis` have two bounds; docs/algo/rollout_corr.md of verl, arXiv 2512.23075.)"""
    sums_N = rollout_sums((old_L - sampler_L).where(own_L, 0.0), inputs)
    mean_N = sums_N / rollout_sums(own_L.to(sums_N.dtype), inputs).clamp_min(1)
    return own_L & (mean_N.abs() > limit)[inputs.rollout_L]


def drifted(inputs: LossInputs, sampler_L: torch.Tensor, limit: float) -> torch.Tensor:
    """bool [L]: tokens with a negative advantage of rollouts that the policy has left: their mean log-ratio of the sampler's
    probability to the current one is above `limit` nats (DeepSeek-V3.2, arXiv 2512.02556)."""
    sums_N = rollout_sums(sampler_L - inputs.logprobs_L.detach(), inputs)
    mean_L = (sums_N / inputs.lengths_N.clamp_min(1))[inputs.rollout_L]
    return (inputs.advantages_L < 0) & (mean_L > limit)
