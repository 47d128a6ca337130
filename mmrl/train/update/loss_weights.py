"""What a loss returns, checked, and the weights of its tokens for a sampler with other probabilities."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from mmrl.algorithms.kl import ESTIMATES, MOST
from mmrl.algorithms.loss import LossInputs, rollout_sums
from mmrl.api.errors import PluginError
from mmrl.compute.ranks import all_reduce_sum
from mmrl.config.sections import RlStage
from mmrl.policies.batches import ActionMicroBatch, Batch, MicroBatch


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


def compared_with(stage: RlStage | None, micro: MicroBatch | ActionMicroBatch, old_L: torch.Tensor) -> torch.Tensor:
    """float32 [L]: the log-probabilities that the loss's ratio divides by. These are those before the update, `old_L`; those of
    the sampler for tokens that were sampled from another prompt than is trained on, unless `noisy.ratio` is "clean", and with
    `ratio_to = "sampler"` for all that were sampled."""
    sampled_L = ~micro.sampler_logprobs_L.isnan()
    forgets = bool(stage and stage.noisy and stage.noisy.ratio == "clean")
    to_sampler_L = micro.off_policy_L & sampled_L & (not forgets)
    if stage and stage.ratio_to == "sampler":
        to_sampler_L = to_sampler_L | (sampled_L & ~micro.off_policy_L)
    return micro.sampler_logprobs_L.where(to_sampler_L, old_L)


def off_policy_weights(
    stage: RlStage | None,
    inputs: LossInputs,
    old_L: torch.Tensor,
    sampler_L: torch.Tensor,
    own_L: torch.Tensor,
    mean: float = 1.0,
) -> tuple[torch.Tensor | None, dict[str, torch.Tensor]]:
    """(weight of each token's loss by the stage's keys, float32 [L], None if they are off; sums for metrics).

    old_L, sampler_L: log-probabilities before the update and at the sampler, the latter NaN where nothing was sampled. own_L:
    bool, tokens that were sampled from the prompt that is trained on. mean: see `mean_weight`.
    """
    weight_L, sums = None, {}
    if stage and stage.importance_sampling != "off":
        weight_L, cut_L = _importance(stage, inputs, old_L, sampler_L, own_L)
        sums = {"importance": weight_L.where(own_L, 0.0).sum(), "importance_cut": cut_L.sum()}
        weight_L = torch.where(own_L, weight_L / mean, weight_L)
    if stage and stage.off_policy_mask is not None:
        left_out_L = drifted(inputs, sampler_L.where(own_L, inputs.old_logprobs_L), stage.off_policy_mask)
        weight_L = (torch.ones_like(old_L) if weight_L is None else weight_L).masked_fill(left_out_L, 0.0)
        sums["drifted"] = left_out_L.sum()
    if stage and stage.gap_mask is not None:
        left_out_L = apart(inputs, old_L, sampler_L, own_L, stage.gap_mask, stage.gap_estimator, stage.gap_level)
        weight_L = (torch.ones_like(old_L) if weight_L is None else weight_L).masked_fill(left_out_L, 0.0)
        sums["apart"] = left_out_L.sum()
    return weight_L, sums


def mean_weight(
    stage: RlStage, batches: Sequence[Batch], old: Sequence[Sequence[torch.Tensor]], device: torch.device | str = "cpu"
) -> float:
    """The mean of the importance weights over all tokens of a step that were sampled from their own prompts, or over all
    completions if weights are those of completions, on all ranks: what `importance_sampling_normalise` divides by, so that the
    weights have a mean of 1 (verl, `rollout_is_batch_normalize`). 1 if all of them are 0.

    old: the log-probabilities before the update, for each micro-batch of each batch. device: of the policy, on which ranks add
    up; the host waits for it once."""
    found = [torch.zeros(2, dtype=torch.float64, device=device)]
    for batch, known in zip(batches, old, strict=True):
        for micro, old_L in zip(batch.micro, known, strict=True):
            own_L = ~micro.sampler_logprobs_L.isnan() & ~micro.off_policy_L
            inputs = LossInputs(
                logprobs_L=old_L,
                old_logprobs_L=old_L,
                advantages_L=micro.advantages_L,
                rollout_L=micro.rollout_L,
                lengths_N=batch.lengths_N,
            )
            weight_L, _ = _importance(stage, inputs, old_L, micro.sampler_logprobs_L, own_L)
            share_L = own_L.to(weight_L.dtype)
            if stage.importance_sampling_level != "token":
                share_L = share_L / rollout_sums(share_L, inputs).clamp_min(1)[inputs.rollout_L]
            found.append(torch.stack([(weight_L * share_L).sum(), share_L.sum()]).double())
    total, number = all_reduce_sum(torch.stack(found).sum(0)).tolist()
    return total / number if number and total / number > 1e-8 else 1.0


def _importance(
    stage: RlStage, inputs: LossInputs, old_L: torch.Tensor, sampler_L: torch.Tensor, own_L: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """`importance_weights` by the stage's keys."""
    level, mask = stage.importance_sampling_level, stage.importance_sampling == "mask"
    whole = None if level == "token" else inputs
    bounds = (stage.importance_sampling_cap, stage.importance_sampling_floor)
    return importance_weights(old_L, sampler_L, own_L, mask, *bounds, whole, level == "geometric")


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
    geometric: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight of each token, float32 [L]; whether it was outside of floor..cap, bool [L]). The weight is the token's probability
    under the learner divided by that under the sampler, kept in floor..cap; with `mask`, 0 outside; 1 for tokens that weren't
    sampled (Yao et al., Your Efficient RL Framework Secretly Brings You Off-Policy RL Training).

    whole: of rollouts all of whose tokens are here: the ratio is that of whole rollouts then, the product of their tokens'.
    geometric: it is the geometric mean of their tokens' (ms-swift, `sequence_truncate`; AReaL, ROLL)."""
    log_ratio_L = (old_L - sampler_L).where(own_L, 0.0)
    if whole is not None:
        sums_N = rollout_sums(log_ratio_L, whole)
        if geometric:
            sums_N = sums_N / rollout_sums(own_L.to(sums_N.dtype), whole).clamp_min(1)
        log_ratio_L = sums_N[whole.rollout_L].where(own_L, 0.0)
    ratio_L = log_ratio_L.clamp(-MOST, MOST).exp()
    cut_L = own_L & ((ratio_L > cap) | (ratio_L < floor))
    return (ratio_L.where(~cut_L, 0.0) if mask else ratio_L.clamp(floor, cap)), cut_L


def apart(
    inputs: LossInputs,
    old_L: torch.Tensor,
    sampler_L: torch.Tensor,
    own_L: torch.Tensor,
    limit: float,
    estimator: str = "k1",
    level: str = "mean",
) -> torch.Tensor:
    """bool [L]: sampled tokens of rollouts on which the learner before the update and the sampler differ by more than `limit`
    nats, in either direction; with `level = "token"` tokens on which they do.

    estimator: of KL(sampler || learner), see `mmrl.algorithms.kl`. level: of the token, or the mean, the sum or the largest of
    the rollout's tokens. With k1 and the mean, the geometric mean of a rollout's ratios is outside of exp(-limit)..exp(limit).
    (verl's `rollout_rs`, docs/algo/rollout_corr.md, arXiv 2512.23075; its bounds of k1 are the exponentials of -limit and limit;
    OpenRLHF's `seq-mask-tis`.)"""
    log_ratio_L = (old_L - sampler_L).where(own_L, 0.0).clamp(-MOST, MOST)
    found_L = ESTIMATES[estimator](-log_ratio_L, torch.zeros_like(log_ratio_L))
    if level in ("mean", "sum"):
        sums_N = rollout_sums(found_L, inputs)
        number_N = rollout_sums(own_L.to(sums_N.dtype), inputs).clamp_min(1)
        found_L = (sums_N / number_N if level == "mean" else sums_N)[inputs.rollout_L]
    elif level == "max":
        worst_N = found_L.new_zeros(len(inputs.lengths_N)).scatter_reduce(0, inputs.rollout_L, found_L.abs(), "amax")
        found_L = worst_N[inputs.rollout_L]
    return own_L & (found_L.abs() > limit)


def drifted(inputs: LossInputs, sampler_L: torch.Tensor, limit: float) -> torch.Tensor:
    """bool [L]: tokens with a negative advantage of rollouts that the policy has left: their mean log-ratio of the sampler's
    probability to the current one is above `limit` nats (DeepSeek-V3.2, arXiv 2512.02556)."""
    sums_N = rollout_sums(sampler_L - inputs.logprobs_L.detach(), inputs)
    mean_L = (sums_N / inputs.lengths_N.clamp_min(1))[inputs.rollout_L]
    return (inputs.advantages_L < 0) & (mean_L > limit)
