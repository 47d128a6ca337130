"""What a plan knows of policies that act and say by `planned` what their passes are: weights, memory and work, counted by passes
over tensors without numbers."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mmrl.api.errors import UserError, plugin_errors
from mmrl.config.parts import entry
from mmrl.config.sections import (
    EXPERT,
    HgDaggerStage,
    OffPolicyStage,
    PolicyConfig,
    RecapStage,
    RunConfig,
    SftStage,
    Stage,
    teacher_of,
)
from mmrl.registry import plugins
from mmrl.train.plan.acting import Call, acting_workload, longest_episode
from mmrl.train.plan.beneath import beneath_of
from mmrl.train.plan.cost import Cost, Seconds
from mmrl.train.plan.counter import Pass
from mmrl.train.plan.critics import critics_of
from mmrl.train.plan.machines import Machine
from mmrl.train.plan.memory import Part, fresh_gradients
from mmrl.train.plan.once import once
from mmrl.train.plan.seconds import CostModel
from mmrl.train.plan.shapes import Shapes, Text
from mmrl.train.plan.traced import kept_of, trace, trace_both
from mmrl.train.plan.trained import Trained
from mmrl.train.plan.workload import Micro, Sizes, Workload
from mmrl.train.update.aliasing import AT_ONCE


class Passes:
    """The passes of a policy, each counted once."""

    def __init__(self, policy: PolicyConfig) -> None:
        """Raises UserError for a kind that doesn't act or doesn't say what its passes are."""
        from mmrl.policies.acting.base import ActingPolicy
        from mmrl.policies.acting.planned import META
        from mmrl.policies.load import checked_options, policy_class
        from mmrl.policies.lora import add_adapters

        spec = plugins.registry().get("policies", policy.kind)
        kind, options = policy_class(spec), checked_options(policy, spec)
        if not issubclass(kind, ActingPolicy):
            raise UserError(f'mmrl plan supports policy.kind = "vlm" and policies that act, not {policy.kind!r}')
        self.what = f"policy {spec.id!r}: its planned()"
        with plugin_errors(self.what):
            self.planned = kind.planned(policy.model_copy(update={"options": options}))
            self.named = tuple((name, tuple(p.shape)) for name, p in self.planned.model.named_parameters())
            self.reads_text = kind.reads_text if self.planned.reads_text is None else self.planned.reads_text
            self.lora = policy.lora is not None
            if policy.lora is not None:
                add_adapters(self.planned.model, policy.lora.model_copy(update={"nf4": []}), 0, META)
        self.beneath = beneath_of(self.planned.computed)
        for weight in self.planned.model.parameters():  # gradients are another part of the memory
            weight.requires_grad_(True).register_post_accumulate_grad_hook(lambda own: setattr(own, "grad", None))

    @property
    def shapes(self) -> Shapes:
        text = Text(layers=1, hidden=self.planned.width, heads=1, kv_heads=1, head_dim=1, vocabulary=1)
        return Shapes(family="", text=text, listed=self.named, traced=True, reads_text=self.reads_text)

    @once
    def act(self, rows: int, text: int) -> Pass:
        step, more = self.planned.step, self.planned.steps - 1
        with plugin_errors(self.what):
            first = trace(lambda: self.planned.act(rows, text))
            return first if step is None else first.then(trace(lambda: step(rows, text)), more)

    @once
    def look(self, rows: int, text: int) -> Pass | None:
        """The part of `act` whose kernels no CUDA graph starts; None where there are no graphs."""
        if (look := self.planned.look) is None:
            return None
        with plugin_errors(self.what):
            return trace(lambda: look(rows, text))

    @once
    def learn(self, rows: int, text: int, demonstrated: bool, frozen: frozenset[str], again: bool) -> tuple[Pass, Pass]:
        """(forwards, backwards). frozen: names of weights that aren't trained. again: with gradient checkpointing."""
        from mmrl.policies.gradient_checkpointing import gradient_checkpointing
        from mmrl.policies.layers import repeated_layers
        from mmrl.policies.lora import is_adapter

        model = self.planned.model
        for name, weight in model.named_parameters():
            weight.requires_grad_(name not in frozen and (not self.lora or is_adapter(name)))
        layers = repeated_layers(model) if again else []
        with plugin_errors(self.what):
            forward, backward, layer = trace_both(lambda: self.planned.learn(rows, text, demonstrated), layers)
            if not layers:
                return forward, backward
            with gradient_checkpointing(model):
                kept, _ = kept_of(lambda: self.planned.learn(rows, text, demonstrated))
        peak = kept + layer + backward.peak - forward.kept
        return replace(forward, kept=kept), replace(forward.then(backward), peak=peak)


@functools.lru_cache(4)
def _passes(policy: str) -> Passes:
    return Passes(PolicyConfig.model_validate_json(policy))


def passes_of(policy: PolicyConfig) -> Passes:
    """Those of a configuration, which are made once."""
    return _passes(policy.model_dump_json(exclude_unset=True))


def passes_sizes(config: RunConfig, text: int, steps: int, pixels: int | None) -> Sizes:
    """The sizes of calls; see `mmrl.train.plan.acting.vla_sizes`. pixels: of a picture, where the policy says nothing."""
    found = passes_of(config.policy)
    planned, text = found.planned, text if found.reads_text else 0
    images, shown = planned.pictures, planned.pixels
    if base := found.beneath:
        images, shown = max(images, base.pictures), base.pixels(pixels or 0)
    return Sizes(text=text, images=images, pixels=shown, steps=steps or longest_episode(config))


def demonstrates(stage: Stage) -> bool:
    """Whether its calls are learned as demonstrations, whose chain from noise is unknown."""
    return isinstance(stage, SftStage | RecapStage | HgDaggerStage | OffPolicyStage) or teacher_of(stage) == EXPERT


def passes_workload(config: RunConfig, stage: Stage, shapes: Shapes, sizes: Sizes, learners: int) -> Workload:
    planned = passes_of(config.policy).planned
    prompt = planned.prefix(sizes.text)
    behind = planned.tokens(sizes.text, demonstrates(stage)) - prompt
    return acting_workload(config, stage, Call(prompt=prompt, behind=behind, chunk=planned.chunk, alone=True), sizes, learners)


def _learned(config: RunConfig, stage: Stage, rows: int, sizes: Sizes) -> tuple[Pass, Pass]:
    found = passes_of(config.policy)
    names = [name for name, _ in found.planned.model.named_parameters()]
    frozen = frozenset(name for name in names if (part := entry(stage.parts, name)) and part.freeze)
    return found.learn(rows, sizes.text, demonstrates(stage), frozen, config.train.gradient_checkpointing)


def passes_memory(config: RunConfig, stage: Stage, work: Workload, weights: Trained, sizes: Sizes) -> Sequence[Part]:
    """What calls and updates need on top of the `resident` parts."""
    found, parts = passes_of(config.policy), []
    if work.sampled:
        rows = -(-config.simulate.num_envs // config.simulate.lanes)
        size, because = found.act(rows, sizes.text).peak, f"{rows:,} environments at once"
        if found.beneath:
            size = max(size, found.beneath.memory(rows, sizes))
        parts.append(Part(name="calls", bytes=size, phases=("generate",), because=because))
    if (base := found.planned.frozen) is not None:
        size = sum(p.numel() * p.element_size() for p in base.parameters()) + (found.beneath.bytes if found.beneath else 0)
        parts.append(Part(name="base", bytes=size, because="the frozen policy beneath"))
    if critics := critics_of(stage, found.planned, work.updates):
        parts.append(Part(name="critics", bytes=critics.bytes, because=f"{critics.weights:,} weights and as many targets"))
    rows = max(micro.rows for micro in work.micro)
    kept = _learned(config, stage, rows, sizes)[1].peak
    because = (
        f"{rows:,} calls of {next(iter(work.micro)).length:,} tokens{', checkpointed' * config.train.gradient_checkpointing}"
    )
    parts.append(Part(name="activations", bytes=kept, phases=("update",), because=because))
    return [*parts, *fresh_gradients(config, weights, kept, stage.optimizer)]


class PassesCost(CostModel):
    """Costs of the passes of a policy on one machine."""

    def __init__(self, config: RunConfig, stage: Stage, shapes: Shapes, machine: Machine, sizes: Sizes) -> None:
        super().__init__(shapes, machine, config.policy.dtype)
        self.config, self.stage, self.sizes = config, stage, sizes

    def _cost(self, found: Pass) -> Cost:
        reached = self.rate * self.machine.matmul
        return Cost(
            products=sum(max(flops / reached, size / self.stream) for flops, size in found.products),
            attention=found.attention / (self.rate * self.machine.attention),
            streaming=found.moved / self.stream,
            starting=found.operations * self.machine.launch,
            flops=found.flops,
        )

    def critics(self, work: Workload) -> list[Seconds]:
        """The updates of critics, and what the policy's updates ask of them."""
        found = critics_of(self.stage, passes_of(self.config.policy).planned, work.updates)
        if found is None:
            return []
        both = self._cost(found.forward) + self._cost(found.backward)
        stepped = self._stepped(found.weights + found.gripper_weights, 1 + bool(found.gripper))
        once = sum(map(self._cost, found.gripper), self._cost(found.target) + both + stepped)
        cost = once.times(found.updates * found.calls)
        if found.noise is None:
            cost = cost + both.times(found.calls)
        else:
            of_noise = self._cost(found.noise[0]) + self._cost(found.noise[1])
            distilled = self._cost(found.target) + of_noise + self._stepped(found.noise_weights, 1)
            cost = cost + of_noise.times(found.updates * found.calls) + distilled.times(found.noise_updates * found.calls)
            cost = cost + self.call(AT_ONCE, work).times(found.acted / AT_ONCE)
        return [Seconds(name="update: critics", seconds=cost.seconds(self.machine), limit=cost.limit, flops=cost.flops)]

    def _stepped(self, weights: int, optimizers: int) -> Cost:
        """A step of so many optimisers of critics, which have so many weights together."""
        return Cost(streaming=4 * 10 * weights / self.stream, starting=14 * optimizers * self.machine.launch)

    def call(self, rows: int, work: Workload, graphs: bool = False) -> Cost:
        found = passes_of(self.config.policy)
        own = self._cost(found.act(rows, self.sizes.text))
        if graphs and (look := found.look(rows, self.sizes.text)):
            own = replace(own, starting=self._cost(look).starting)
        if found.beneath is None:
            return own
        return own + found.beneath.cost(rows, self.sizes, self.machine, graphs)

    def forward(self, micro: Micro, picture: int) -> Cost:
        return self._cost(_learned(self.config, self.stage, micro.rows, self.sizes)[0])

    def backward(self, micro: Micro, picture: int, weights: Trained, checkpointing: bool) -> Cost:
        found = self._cost(_learned(self.config, self.stage, micro.rows, self.sizes)[1])
        return found if checkpointing else replace(found, starting=self.machine.behind * found.starting)

    def optimiser(self, weights: Trained, passes: int, split: int) -> Cost:
        tensors = len(passes_of(self.config.policy).named)
        found = super().optimiser(weights, passes, split)
        return Cost(streaming=found.streaming, starting=3 * tensors * self.machine.launch)

    def offload(self, train: Any, stage: Stage, work: Workload, weights: Trained) -> Cost:
        """Of the optimiser: of activations only the inputs of layers are moved, which aren't known here."""
        return super().offload(train.model_copy(update={"offload_activations": False}), stage, work, weights)
