"""The learner: forward, backward, clip, step."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from mmrl.algorithms.gae import value_loss
from mmrl.algorithms.kl import k3
from mmrl.algorithms.loss import LossFunction, LossInputs, average, negative_log_likelihood, probability_weighted_likelihood
from mmrl.algorithms.presets import Algorithm, Normalise
from mmrl.api.errors import LimitReached, PluginError, UserError, plugin_errors
from mmrl.compute.ranks import all_reduce_sum, world_size
from mmrl.config.sections import DistillStage, RlStage, SftStage, TrainConfig, Training
from mmrl.policies.batches import ActionMicroBatch, Batch, MicroBatch
from mmrl.policies.compiling import compiled_layers
from mmrl.policies.critic import Critic
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.policy import Policy
from mmrl.policies.reference import Reference
from mmrl.policies.shard import distribute_like
from mmrl.policies.shard_files import Under
from mmrl.train.update.demonstrations import Demonstrations, imitate
from mmrl.train.update.loss_weights import check_loss_output, compared_with, mean_weight, off_policy_weights, weight_figures
from mmrl.train.update.measured import Measured
from mmrl.train.update.optimizer import Optimizer
from mmrl.train.update.packer import Dealt
from mmrl.train.update.penalties import Penalties, reference_logprobs
from mmrl.train.update.redealing import dealt, table
from mmrl.train.update.routing import Routing

Sums = dict[str, torch.Tensor]
"""Name -> sum over the trained tokens of a pass, float64."""
SUMS = (
    *("loss", "tokens", "entropy", "clip_share", "kl", "logprob_gap", "sampled", "importance", "importance_cut"),
    *("value", "value_loss", "value_clip_share", "divergence", "moved", "perception", "drifted", "apart", "chosen_share"),
)
"""Names of the sums; most become means over tokens."""


class Learner:
    """The objective and the optimiser of one stage."""

    def __init__(
        self,
        policy: Policy,
        stage: Training,
        algorithm: Algorithm | None = None,
        *,
        temperature: float = 1.0,
        reference: Reference | None = None,
        critic: Critic | None = None,
        teacher: Policy | None = None,
        gap_limit: float = math.inf,
        train: TrainConfig | None = None,
        stale: bool = False,
    ) -> None:
        """algorithm: None for supervised learning. reference: the reference model of the KL penalty. teacher: the stage's
        teacher. gap_limit: maximal gap between sampler and learner in nats per token, above which `update` raises
        LimitReached. train: how the update is computed. stale: completions may be sampled with older weights."""
        self.policy, self.stage, self.temperature = policy, stage, temperature
        self.reference, self.critic, self.teacher = reference, critic, teacher
        self.gap_limit, self.train = gap_limit, train or TrainConfig()
        self.cure = (
            "with compute.staleness the weights have changed meanwhile: lower the learning rate, or raise that limit"
            if stale
            else "check policy.dtype, policy.attn_implementation and the model family"
        )
        self.rl = stage if isinstance(stage, RlStage) else None
        self.over_vocabulary = isinstance(stage, DistillStage) and stage.divergence in ("reverse", "forward")
        self.what = f"algorithm {algorithm.id!r}: its loss" if algorithm else "the likelihood"
        likely = isinstance(stage, SftStage) and stage.token_weights == "probability"
        imitating = probability_weighted_likelihood if likely else negative_log_likelihood
        self.loss: LossFunction = algorithm.loss if algorithm else imitating
        self.routing = Routing(policy, getattr(stage, "experts", None), compiled=self.train.compile)
        self.penalties = Penalties(self.routing, self.rl, reference if self.rl and self.rl.kl_coef else None, temperature)
        self.measured = Measured(self.routing, temperature, algorithm.loss_needs if algorithm else (), self.rl)
        self.chooses = False  # whether the loss tells which tokens it chose
        self.mean_weight = 1.0  # of the step's tokens, for the sampler
        self.normalise: Normalise = algorithm.normalise if algorithm else "token"
        self.constant = algorithm.constant if algorithm else 1.0
        own = list(critic.parameters()) if critic else []
        settings, offload = critic.config if critic else None, self.train.offload_optimizer
        half = any(p.dtype == torch.float16 for p in policy.model.parameters())
        self.optimizer = Optimizer(list(policy.parameters()), stage, own, settings, offload=offload, float16=half)

    @property
    def needs_every_rollout(self) -> bool:
        """Whether rollouts whose advantage is zero may have a gradient too."""
        return self.penalties.reach_all or self.critic is not None or bool(self.measured) or self.routing.penalises

    # -- the update -----------------------------------------------------------------------------------------------------------

    def update(
        self, batches: Dealt, step: int, *, kl: float = 0.0, demonstrations: Demonstrations | None = None
    ) -> dict[str, float]:
        """`epochs` passes over the batches, with an optimiser step after each batch; without batches, one step on the
        demonstrations.

        batches: the same targets in each pass, in any division. step: index in the stage, from 0. kl: current coefficient of the
        KL penalty. Returns metrics of the last pass, and the gap between sampler and learner of the first. Stops before a batch
        on which the policy has diverged by more than `stop_kl`.
        """
        with self._compiled():
            metrics = self._update(batches, step, kl, demonstrations)
        self.routing.end()
        return metrics

    def _update(self, batches: Dealt, step: int, kl: float, demonstrations: Demonstrations | None) -> dict[str, float]:
        nothing = Batch(
            micro=(), num_tokens=0, num_rollouts=0, lengths_N=torch.zeros(0, dtype=torch.long), looks=False, hears=False
        )
        if demonstrations:
            demonstrations = replace(demonstrations, batch=self._counted(demonstrations.batch))
        counted = [self._counted(b) for b in (batches(0) if callable(batches) else batches) or [nothing]]
        exact = self.policy.exact_sampler
        later = len(counted) > 1 or (self.rl is not None and self.rl.epochs > 1)
        self.routing.begin(counted, later)
        weighs = self.rl is not None and self.rl.importance_sampling_normalise and not exact
        old = [self._old(b, i) if weighs or len(counted) > 1 else [] for i, b in enumerate(counted)]  # of the weights before
        self.mean_weight = mean_weight(self.rl, counted, old, self.policy.device) if self.rl and weighs else 1.0
        means = [self.measured.before(b) if later else [] for b in counted]
        warming = self.critic is not None and step < self.critic.config.warmup_steps
        metrics: dict[str, float] = {}
        known_NT: torch.Tensor | None = None
        means_NT: torch.Tensor | None = None
        limit, before = self.rl.stop_kl if self.rl else None, self.optimizer.steps
        for epoch in range(self.rl.epochs if self.rl and batches else 1):
            passed: list[dict[str, float]] = []
            if epoch and callable(batches):
                if known_NT is None:
                    known_NT = table(counted, old)
                    means_NT = table(counted, means) if any(means) else None
                counted = [self._counted(b) for b in batches(epoch)]
                old = dealt(known_NT, counted)
                means = means if means_NT is None else dealt(means_NT, counted)
            for i, (batch, known) in enumerate(zip(counted, old, strict=True)):
                first = epoch == 0 and not (exact and i)
                measured = self.measured.now(batch, known, means[i], changed=bool(epoch or i)) if self.measured else []
                compute = partial(self._gradients, batch, known, kl, first, measured, demonstrations)
                figures = compute()
                if figures.pop("moved", 0.0) > (math.inf if limit is None else limit):
                    self.optimizer.clear()
                    return metrics | _means(passed) | {"optimizer_steps": float(self.optimizer.steps - before)}
                passed.append(figures | self.optimizer.step(step, only_critic=warming, again=compute))
            metrics |= _means(passed)
        return metrics | ({} if limit is None else {"optimizer_steps": float(self.optimizer.steps - before)})

    def _counted(self, batch: Batch) -> Batch:
        """The batch with its counts summed over all ranks."""
        if world_size() == 1:
            return batch
        own = [batch.num_tokens, batch.num_rollouts, batch.looks, batch.hears]
        counts = torch.tensor(own, dtype=torch.float64, device=self.policy.device)
        tokens, rollouts, looks, hears = all_reduce_sum(counts).tolist()
        return replace(batch, num_tokens=int(tokens), num_rollouts=rollouts, looks=bool(looks), hears=bool(hears))

    def _gradients(
        self,
        batch: Batch,
        old: list[torch.Tensor],
        kl: float,
        first: bool,
        measured: Sequence[Sequence[torch.Tensor]],
        gold: Demonstrations | None,
    ) -> dict[str, float]:
        """Compute the gradients of an optimiser step. See `_accumulate`."""
        figures = self._accumulate(batch, old, kl, 1 - (gold.weight if gold else 0.0), first, measured)
        if gold:
            with self._checkpointing():
                figures |= imitate(self.policy, gold, self.optimizer.backward)
        reached = (batch, gold.batch) if gold else (batch,)
        self.optimizer.forget_blank(looks=any(b.looks for b in reached), hears=any(b.hears for b in reached))
        if self.optimizer.scale and not math.isfinite(figures["loss"] + figures.get("imitation/loss", 0.0)):
            self.optimizer.clear()  # a smaller scale would not help
            raise UserError(
                "the loss is not finite: activations overflow in float16, or the learning rate is too high; set "
                'policy.dtype = "bfloat16", or lower the rate, and go on with --resume'
            )
        return figures

    def _accumulate(
        self,
        batch: Batch,
        old: list[torch.Tensor],
        kl: float,
        weight: float,
        first: bool,
        measured: Sequence[Sequence[torch.Tensor]],
    ) -> dict[str, float]:
        """Accumulate the gradients of the objective. old: log-probabilities before the update; appended to in the first pass.
        measured: what the loss needs besides its inputs, for each micro-batch; empty if it needs nothing."""
        sums = dict.fromkeys(SUMS, torch.zeros((), dtype=torch.float64, device=self.policy.device))  # the same on every rank
        counts = [(~m.returns_L.isnan()).sum() for m in batch.micro if m.returns_L is not None]
        targets = all_reduce_sum(_sum(counts, self.policy.device))
        self.routing.prepare(batch)
        with self._checkpointing():
            references = reference_logprobs(self.penalties.reference, batch, self.temperature)
            for i, (micro, reference_L) in enumerate(zip(batch.micro, references, strict=False)):
                if self.over_vocabulary:
                    loss_L, found = self._diverge(micro)
                else:
                    loss_L, found = self._objective(micro, batch, old, i, kl, measured[i] if measured else (), reference_L)
                loss = weight * average(loss_L, micro, batch, self.normalise, self.constant) + self.routing.penalty(batch)
                if "value_loss" in found and self.critic is not None:
                    loss = loss + self.critic.config.value_coef * found["value_loss"] / targets.clamp_min(1)
                self.optimizer.backward(loss)
                found |= {"loss": loss, "tokens": loss.new_full((), len(loss_L), dtype=torch.float64)}
                for name, value in found.items():
                    sums[name] = sums[name] + value.detach().to(self.policy.device)
        return self._figures(sums, first, targets) | self.routing.figures()

    def _objective(
        self,
        micro: MicroBatch | ActionMicroBatch,
        batch: Batch,
        old: list[torch.Tensor],
        i: int,
        kl: float,
        measured: Sequence[torch.Tensor],
        reference_L: torch.Tensor | None,
    ) -> tuple[torch.Tensor, Sums]:
        """(loss of each token, with KL penalty and entropy bonus; sums for metrics)."""
        stage, critic = self.rl, self.critic
        shared = critic is not None and critic.backbone is None
        options = {"states": shared, "entropy_gradient": bool(self.penalties.entropy_coef)}
        out = self.routing.outputs(micro, self.temperature, **options)
        if len(old) == i:
            old.append(out.logprobs_L.detach())
        own_L = ~micro.sampler_logprobs_L.isnan() & ~micro.off_policy_L
        inputs = LossInputs(
            logprobs_L=out.logprobs_L,
            old_logprobs_L=compared_with(stage, micro, old[i]),
            advantages_L=micro.advantages_L,
            rollout_L=micro.rollout_L,
            lengths_N=batch.lengths_N,
        )
        with plugin_errors(self.what):
            computed = self.loss(inputs, *measured)
        loss_L, clipped_L, chosen = check_loss_output(computed, out.logprobs_L, self.what)
        self.chooses = bool(chosen)
        weight_L, weighed = off_policy_weights(stage, inputs, old[i], micro.sampler_logprobs_L, own_L, self.mean_weight)
        loss_L = loss_L if weight_L is None else loss_L * weight_L
        loss_L, added = self.penalties(loss_L, micro, out, inputs.old_logprobs_L, old[i], kl, reference_L)
        gap_L = (micro.sampler_logprobs_L - old[i]).abs().where(own_L, 0.0)
        sums = {"entropy": out.entropy_L.sum(), "clip_share": clipped_L.sum(), **added}
        if stage and stage.stop_kl is not None:
            sums["moved"] = k3(old[i], out.logprobs_L.detach()).sum()  # the tokens were sampled with the old weights
        sums |= {"logprob_gap": gap_L.sum(), "sampled": own_L.sum(), **weighed, **chosen}
        if critic is not None and micro.values_L is not None and micro.returns_L is not None:
            values_L, _, value_L = critic.values(micro, out.states_QH, micro.returns_L)
            cut_L = torch.zeros_like(values_L)
            if value_L is None:
                clip, huber = critic.config.clip_range or math.inf, critic.config.huber
                value_L, cut_L = value_loss(values_L, micro.values_L, micro.returns_L, clip=clip, huber=huber)
            sums |= {"value_loss": value_L.sum(), "value_clip_share": cut_L.sum(), "value": values_L.sum()}
        return loss_L, sums

    def _diverge(self, micro: MicroBatch | ActionMicroBatch) -> tuple[torch.Tensor, Sums]:
        """The divergence from the teacher at each token, over the whole vocabulary."""
        assert isinstance(self.stage, DistillStage) and self.teacher is not None
        kind: Literal["forward", "reverse"] = "forward" if self.stage.divergence == "forward" else "reverse"
        loss_L, entropy_L = self.policy.divergence(micro, self.teacher, self.temperature, kind)
        return loss_L, {"entropy": entropy_L.sum(), "divergence": loss_L.sum()}

    def _compiled(self) -> AbstractContextManager[None]:
        """Passes of all models inside run compiled layers, if the run file sets it."""
        backbone = self.critic.backbone if self.critic else None
        policies = (self.policy, self.reference and self.reference.copy, backbone, self.teacher)
        return compiled_layers([policy.model for policy in policies if policy], self.train.compile)

    @contextlib.contextmanager
    def _checkpointing(self) -> Iterator[None]:
        """Passes inside use gradient checkpointing, if the run file sets it."""
        backbone = self.critic.backbone if self.critic else None
        on, offload = self.train.gradient_checkpointing, self.train.offload_activations
        with gradient_checkpointing(self.policy.model, on, offload):
            with gradient_checkpointing(backbone.model, on, offload) if backbone else contextlib.nullcontext():
                yield

    def _figures(self, sums: Sums, first: bool, targets: torch.Tensor) -> dict[str, float]:
        """Metrics: means over the tokens of all ranks. Raises LimitReached if the gap between sampler and learner is too
        large."""
        reduced = all_reduce_sum(torch.stack([sums[name] for name in SUMS]))
        found = dict(zip((*SUMS, "targets"), torch.cat([reduced, targets.double()[None]]).tolist(), strict=True))
        metrics = {"loss": found["loss"]}
        if not found["tokens"]:  # no group had spread, so nothing was computed
            return metrics
        asked = ["divergence", "entropy"] if self.over_vocabulary else ["entropy", "clip_share", "kl"]
        also = ["value"] * bool(self.critic) + ["chosen_share"] * self.chooses
        if self.rl and self.rl.perception:
            metrics["perception/kl"] = found["perception"] / found["tokens"]
        metrics |= {name: found[name] / found["tokens"] for name in [*asked, "moved", *also]}
        if not -1e-6 <= metrics.get("clip_share", 0.0) <= 1 + 1e-6:
            self.optimizer.clear()
            raise PluginError(f"{self.what}: clipped_L must be 1.0 where clipping removes the gradient, else 0.0")
        if self.critic:
            metrics |= {name: found[name] / max(found["targets"], 1.0) for name in ("value_loss", "value_clip_share")}
        if first and found["sampled"] and self.rl is not None:
            metrics["logprob_gap"] = found["logprob_gap"] / found["sampled"]
            self._check_gap(metrics["logprob_gap"])
        return metrics | (weight_figures(self.rl, found) if self.rl is not None else {})

    def _check_gap(self, gap: float) -> None:
        if not gap <= self.gap_limit:
            self.optimizer.clear()
            raise LimitReached(
                f"sampler and learner disagree by {gap:.3f} nats a token (limits.logprob_gap = {self.gap_limit}), so training "
                f"would be off-policy: {self.cure}",
                alarm="logprob_gap",
            )

    # -- measurements -----------------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def _old(self, batch: Batch, number: int) -> list[torch.Tensor]:
        """The log-probabilities before the update, per micro-batch. If the sampler is exact, they are the sampler's; those of the
        first batch come from its first pass, which measures the gap."""
        if self.policy.exact_sampler:
            return [micro.sampler_logprobs_L for micro in batch.micro] if number else []
        return [self.routing.outputs(micro, self.temperature).logprobs_L for micro in batch.micro]

    @torch.no_grad()
    def measure(self, batch: Batch, names: frozenset[str]) -> dict[str, torch.Tensor]:
        """`logprobs`, `entropy`, `slopes`, `reference`, `teacher` and `values` of every trained token of all ranks, [N, T], 0
        after a rollout's end; with `values` also `bootstrap` [N], the value of each rollout's final state."""
        with self._compiled():
            return self._measure(batch, names)

    def _measure(self, batch: Batch, names: frozenset[str]) -> dict[str, torch.Tensor]:
        shape = (len(batch.lengths_N), int(batch.lengths_N.max()) if len(batch.lengths_N) else 0)
        found = {name: torch.zeros(shape, device=self.policy.device) for name in names}
        bootstrap_N = torch.zeros(shape[0], device=self.policy.device)
        references = reference_logprobs(self.reference if "reference" in names else None, batch, self.temperature)
        for micro, reference_L in zip(batch.micro, references, strict=False):
            place = (micro.rollout_L, micro.place_L)
            shared = "values" in names and self.critic is not None and self.critic.backbone is None
            told = names & {"logprobs", "entropy"}
            out = self.routing.outputs(micro, self.temperature, within=False, states=shared) if shared or told else None
            for name in told:
                found[name][place] = getattr(out, f"{name}_L")
            if "slopes" in names:
                found["slopes"][place] = self.routing.slopes(micro, self.temperature)
            if reference_L is not None:
                found["reference"][place] = reference_L
            if "teacher" in names and self.teacher is not None:
                found["teacher"][place] = self.teacher.logprobs(micro, self.temperature)[0]
            if "values" in names and self.critic is not None:
                found["values"][place], values_R, _ = self.critic.values(micro, out.states_QH if out else None)
                bootstrap_N[micro.final_rollout_R] = values_R
        found["bootstrap"] = bootstrap_N
        return {name: all_reduce_sum(found[name]) for name in sorted(found)}  # 0 where another rank has the rollout

    # -- resume -----------------------------------------------------------------------------------------------------------------

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that a resume needs besides the policy's weights, by name, for a safetensors file."""
        found = {f"optimizer/{k}": v for k, v in self.optimizer.state().items()}
        found |= {f"reference/{k}": v for k, v in (self.reference.state() if self.reference else {}).items()}
        return found | {f"critic/{k}": v.detach() for k, v in (self.critic.parameters() if self.critic else ())}

    def load_state(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the result of `state`. Raises ValueError or KeyError for the state of another model's learner."""
        with torch.no_grad():
            for name, parameter in self.critic.parameters() if self.critic else ():
                parameter.copy_(distribute_like(tensors[f"critic/{name}"], parameter))
        if self.reference:
            self.reference.load_state(Under(tensors, "reference/"))
        self.optimizer.load_state(Under(tensors, "optimizer/"))

    def close(self) -> None:
        """End the stage: unfreeze the weights that it froze."""
        self.optimizer.release()
        self.routing.release()


def _means(passed: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each figure over the mini-batches that have it."""
    found: dict[str, list[float]] = {}
    for figures in passed:
        for name, value in figures.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) / len(values) for name, values in found.items()}


def _sum(values: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    return torch.stack([v.to(device) for v in values]).sum() if values else torch.zeros((), dtype=torch.long, device=device)
