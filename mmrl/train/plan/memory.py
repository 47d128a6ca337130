"""The memory of a step on one device, part by part, in bytes.

b is the bytes of a weight.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from mmrl.config.sections import (
    ComputeConfig,
    CriticConfig,
    GenerateConfig,
    OffPolicyStage,
    PreferenceStage,
    RecapStage,
    RlStage,
    RunConfig,
    SftStage,
    Stage,
)
from mmrl.train.plan.attention import Attention
from mmrl.train.plan.kept import LOGIT_CHUNK, activations, passing, recompute_bytes, without_gradients
from mmrl.train.plan.machines import Machine
from mmrl.train.plan.shapes import Shapes
from mmrl.train.plan.teams import slice_of, whole_rows
from mmrl.train.plan.trained import FULL, Trained, master_bytes, moments, passing_bytes, stepped_bytes, weight_bytes
from mmrl.train.plan.workload import Micro, Workload

ROUTE = 2
"""Bytes of an expert's number in `mmrl.policies.vlm.routes`."""
ROOM = 64
"""As in `mmrl.rollout.generate.cache`."""
PREFETCHED = 2
"""`AT_ONCE` of `mmrl.train.update.prefetch`, which isn't imported here either."""
BOTH = ("generate", "update")


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of the memory."""

    name: str
    bytes: int
    phases: tuple[str, ...] = BOTH
    """The phases in which it is allocated: sampling (`generate`), learning (`update`)."""
    because: str = ""
    """The reason of its size."""


# -- allocated from step to step --------------------------------------------------------------------------------------------


def resident(
    shapes: Shapes, config: RunConfig, stage: Stage, weights: Trained, teacher: int | None = None, learners: int = 1
) -> list[Part]:
    """What a learner keeps from step to step, and its gradients. teacher: number of weights of a distill stage's teacher."""
    b, split = config.policy.bytes_per_weight, learners if config.compute.weights == "sharded" else 1
    own = weight_bytes(weights, b)
    masters, state = (0, 0) if config.train.offload_optimizer else (master_bytes(weights, b), moments(stage.optimizer, weights))
    rl = stage if isinstance(stage, RlStage) else None
    pairs = stage if isinstance(stage, PreferenceStage) and stage.compares else None
    compared = rl if rl is not None and rl.refers else pairs
    improves = isinstance(stage, OffPolicyStage) and stage.improve is not None  # else the policy sees by what nothing trains
    twin = sampled_beside(config) and config.compute.sampler == "local"
    copy = compared is not None and (config.policy.lora is None or compared.reference == "frozen")
    found = [
        Part(
            name="weights",
            bytes=own // split,
            because=f"{weights.whole - weights.nf4:,} in {config.policy.dtype}"
            + (f", {weights.nf4:,} in 4 bits" if weights.nf4 else ""),
        ),
        Part(
            name="a whole matrix", bytes=b * weights.nf4_widest, because="the largest of those in 4 bits, to be multiplied with"
        ),
        Part(name="adapters", bytes=FULL * weights.adapters // split, because=f"{weights.adapters:,} in float32"),
        Part(name="float32 masters", bytes=masters // split, because=f"{config.policy.dtype} weights follow them"),
        Part(name="optimiser", bytes=state // split, because=f"{stage.optimizer} of {weights.moved:,} weights"),
        Part(
            name="mean weights",
            bytes=FULL * weights.moved // split if stage.ema_decay else 0,
            because=f"ema_decay = {stage.ema_decay:g}",
        ),
        Part(name="reference", bytes=own // split if copy else 0, because="a frozen copy to compare with"),
        Part(
            name="reference's means",
            bytes=FULL * weights.whole // split if copy and compared and compared.reference_decay else 0,
            because="its weights in float32, as reference_decay is set",
        ),
        Part(
            name="frozen copy",
            bytes=own if isinstance(stage, RecapStage) or improves or (rl and rl.turn_critic) else 0,
            because="what the critics see with",
        ),
        Part(name="sampler's copy", bytes=own if twin else 0, because=f"compute.staleness = {config.compute.staleness}"),
        Part(name="teacher", bytes=b * (teacher or 0), because=f"{teacher or 0:,} weights"),
        Part(name="critic", bytes=_critic(shapes, rl.critic, weights, b) // split if rl and rl.critic else 0),
        Part(name="gradients", bytes=FULL * weights.moved // split, phases=("update",), because="accumulated in float32"),
    ]
    if (
        split > 1
    ):  # as in `mmrl.policies.shard`: weights and gradients outside the language model's layers stay gathered for a pass
        rest = weights.whole - weights.inside
        size = b * (2 * weights.layer + (2 if weights.plain else 1) * rest)
        found.append(Part(name="gathered weights", bytes=size, phases=("update",), because="two layers, and all other weights"))
        size = b * (weights.whole - weights.whole // split)
        if not isinstance(stage, SftStage) and config.compute.placement != "separate" and not twin:
            found.append(
                Part(name="gathered for sampling", bytes=size, phases=("generate",), because="each rank has all weights")
            )
    return [part for part in found if part.bytes]


def sampled_beside(config: RunConfig) -> bool:
    """Whether a learner's device samples while it learns, with a copy of the weights or with vLLM's."""
    compute = config.compute
    return compute.staleness > 0 and compute.placement != "separate" and config.simulate.policy_device == "auto"


def _critic(shapes: Shapes, config: CriticConfig, weights: Trained, b: int) -> int:
    """A value function's weights, masters, moments and gradients."""
    widths = [shapes.text.hidden, *config.hidden_sizes, 1]
    head = sum((into + 1) * out for into, out in itertools.pairwise(widths))
    copy = weights.whole if config.backbone == "separate" else 0
    return 4 * FULL * head + copy * (b + (4 if b == 2 else 3) * FULL)


# -- an update --------------------------------------------------------------------------------------------------------------


def logits(shapes: Shapes, targets: int, b: int, trained: bool = True, adapted: bool = False) -> int:
    """Bytes of the logits that are computed at once. If they are all, or the head is adapted: in the weights' type, and four
    times in float32, for the log-probabilities, their inputs, and the gradients of both. Else
    `mmrl.policies.vlm.linear_logprobs` needs them twice in float32, and adds up the gradient of the output embeddings in float32
    if they are trained."""
    half, pairs = (b if b < FULL else 0) + b * shapes.text.bounded, targets * shapes.text.vocabulary
    if pairs <= LOGIT_CHUNK or adapted:
        return min(pairs, LOGIT_CHUNK) * (4 * FULL + half)
    summed = shapes.text.vocabulary * shapes.text.hidden * (FULL + half) if trained else 0
    return LOGIT_CHUNK * (2 * FULL + half) + summed


def update(
    shapes: Shapes,
    config: RunConfig,
    work: Workload,
    weights: Trained,
    kind: str,
    choices: int | None = None,
    optimizer: str = "adamw",
) -> list[Part]:
    """What the largest micro-batch needs on top of the `resident` parts. kind: of the machine. choices: from which a target is
    taken, by a policy that acts, whose rows have a dense mask; None: the vocabulary. optimizer: of the stage."""
    b = config.policy.bytes_per_weight
    moved = config.train.offload_activations
    how = f"{', checkpointed' if config.train.gradient_checkpointing else ''}{', in the host' if moved else ''}"
    on, attention = config.train.gradient_checkpointing, Attention(config.policy.attn_implementation, kind, shapes.text.capped)
    sizes = []
    team = config.compute.sequence_parallel
    for m in {*work.micro, *work.shown}:
        dense = choices is not None or not attention.by_blocks(m.length)
        own = slice_of(m, team)
        again = recompute_bytes(shapes, own, b, weights, dense) if on else 0
        whole = whole_rows(shapes, m, team, b, dense)
        beside = passing(shapes, b) * own.tokens
        twice = work.twins * (activations(shapes, own, b, on, weights, dense, moved) + whole)
        sizes.append((twice + again + beside, m))
    kept, worst = max(sizes, key=lambda found: found[0])
    made = (
        logits(shapes, worst.targets, b, weights.shares["head"] > 0, bool(weights.adapted_parts["head"]))
        if choices is None
        else 4 * FULL * worst.targets * choices
    )
    if worst.targets * shapes.text.vocabulary <= LOGIT_CHUNK:  # else they are not kept
        made *= work.twins
    pictures = f" and {worst.patches:,} patches" if worst.patches else ""
    found = [
        Part(
            name="activations",
            bytes=kept,
            phases=("update",),
            because=f"{worst.rows} x {worst.length:,} tokens{pictures}{how}"
            + (f", divided among {team} learners" if team > 1 else "")
            + (", and again with masked images" if work.twins > 1 else ""),
        ),
        Part(
            name="logits",
            bytes=made,
            phases=("update",),
            because=f"{min(worst.targets, _at_once(shapes)):,} tokens at once"
            if choices is None
            else f"{worst.targets:,} choices of {choices:,}",
        ),
    ]
    if choices is None:
        counted = worst if team > 1 or (b == FULL and weights.vision) else None
        found += pixels(shapes, work, kind, counted)
    if work.alone:
        head = b * shapes.text.vocabulary * shapes.text.hidden if weights.shares["head"] else 0  # the first of all gradients
        whole = choices is not None or worst.targets * shapes.text.vocabulary <= LOGIT_CHUNK  # else it is among the logits
        return [*found, *growing_gradients(config, weights, kept + made, head * whole, optimizer, kind)]
    return [*found, *fresh_gradients(config, weights, kept + made, optimizer, kind)]


def routes(shapes: Shapes, stage: Stage, work: Workload) -> list[Part]:
    """The experts that tokens went through, on the device: with several mini-batches or epochs of the whole step, as its first
    passes chose them; and of the micro-batch at hand those with which it was sampled (`Routing`)."""
    t, again = shapes.text, work.updates > 1 and isinstance(stage, RlStage)
    told = isinstance(stage, RlStage) and stage.asks_routes
    tokens = sum(m.tokens * n for m, n in work.micro.items()) * again + max(m.tokens for m in work.micro) * told
    if t.experts is None or not tokens:
        return []
    size = ROUTE * tokens * t.sparse * t.experts.chosen
    return [Part(name="routes", bytes=size, phases=("update",), because=f"{t.experts.chosen} of {t.experts.count} experts")]


def fresh_gradients(config: RunConfig, weights: Trained, kept: int, optimizer: str, kind: str = "gpu") -> list[Part]:
    """What is allocated while the activations are freed, or later. kept: bytes of these. kind: of the machine."""
    b, found = config.policy.bytes_per_weight, []
    split = config.compute.learners if config.compute.weights == "sharded" else 1
    fresh = b * weights.moved // split if b < FULL and weights.plain else 0  # of weights of 16 bits, before accumulation
    if config.train.offload_optimizer:
        stepped, why = stepped_bytes(optimizer, weights, b), "of the offloaded optimiser"
    else:
        stepped, why = passing_bytes(optimizer, weights, kind) // split, f"what {optimizer} computes with"
    for name, size, reason in (("fresh gradients", fresh, f"in {config.policy.dtype}"), ("what is stepped", stepped, why)):
        if (rest := size - kept) > 0:
            found.append(Part(name=name, bytes=rest, phases=("update",), because=f"{reason}, beyond the activations"))
    return found


def growing_gradients(config: RunConfig, weights: Trained, kept: int, head: int, optimizer: str, kind: str) -> list[Part]:
    """What is allocated as activations are freed, where a step has one backward pass: the gradients, too. The part of that name
    takes the place of the one that `resident` has. kept: bytes of activations and logits. head: of the gradient of the head."""
    b, split = config.policy.bytes_per_weight, config.compute.learners if config.compute.weights == "sharded" else 1
    whole = (FULL * weights.moved + (b * weights.largest if b < FULL and weights.plain else 0)) // split
    grown = max(head, whole - kept)
    stepped = [part for part in fresh_gradients(config, weights, 0, optimizer, kind) if part.name == "what is stepped"]
    found = [Part(name="gradients", bytes=grown, phases=("update",), because="in float32, beyond the activations")]
    rest = ((part, FULL * weights.moved // split + part.bytes - kept - grown) for part in stepped)
    return [*found, *(replace(part, bytes=size) for part, size in rest if size > 0)]


def pixels(shapes: Shapes, work: Workload, kind: str, counted: Micro | None) -> list[Part]:
    """Those of pictures, in float32: on a GPU of two micro-batches at a time, as `mmrl.train.update.prefetch` brings them over,
    on a CPU of the whole step. counted: a micro-batch whose pixels are among the activations."""
    all_of_it, many = sum(m.patches * n for m, n in work.micro.items()), work.micro.total()
    largest = sorted((m.patches for m, n in work.micro.items() for _ in range(min(n, PREFETCHED))), reverse=True)[:PREFETCHED]
    held = (all_of_it if kind == "cpu" else sum(largest)) - (counted.patches if counted else 0)
    whose = "the step" if kind == "cpu" or many <= PREFETCHED else f"{PREFETCHED} micro-batches at a time"
    size = round(work.twins * shapes.pixel_bytes * held)
    return [Part(name="pictures", bytes=size, phases=("update",), because=f"pixels of {whose}")] if held > 0 else []


def _at_once(shapes: Shapes) -> int:
    return max(1, LOGIT_CHUNK // shapes.text.vocabulary)


# -- sampling ---------------------------------------------------------------------------------------------------------------


def cache_token(shapes: Shapes, b: int) -> int:
    """Bytes per token of keys and values in all layers."""
    return b * shapes.text.cached


def cache_capacity(completion: int) -> int:
    """The cache's capacity in tokens for a completion of so many: `ROOM`, and about doubled until it is enough."""
    found = ROOM
    while found < completion:
        found += 1 + found
    return found


def concurrent_prompts(generate: GenerateConfig, prompts: int, size: int) -> int:
    """Number of prompts whose completions the local sampler decodes together. size: completions of each."""
    return max(1, min(prompts, generate.batch_size // size))


def local(shapes: Shapes, config: RunConfig, work: Workload) -> list[Part]:
    """What the local sampler needs on top of the `resident` parts."""
    t = shapes.text
    b = config.policy.bytes_per_weight
    found = [(concurrent_prompts(config.generate, n, size), size) for n, size in (*work.sampled, *work.perhaps) if n]
    prompts, rows = max(n for n, _ in found), max(n * size for n, size in found)
    held = rows * (work.prompt_tokens + cache_capacity(work.completion))
    growing = held // (t.layers - t.linear) if cache_capacity(work.completion) > ROOM else 0
    prefill = prompts * work.prompt_tokens * without_gradients(shapes, b)
    tower = prompts * looked(shapes, b, work.patches)
    generate = ("generate",)
    return [
        Part(
            name="key-value cache",
            bytes=(held + growing) * cache_token(shapes, b) + rows * FULL * t.linear * t.state,
            phases=generate,
            because=f"{rows:,} completions, {work.prompt_tokens:,} + {cache_capacity(work.completion):,} tokens each",
        ),
        Part(
            name="prompts and next tokens",
            bytes=max(prefill, tower, rows * t.vocabulary * (4 * FULL + b)),
            phases=generate,
            because=f"{prompts:,} prompts at once, then {rows:,} x {t.vocabulary:,} logits",
        ),
    ]


def acting(shapes: Shapes, config: RunConfig, work: Workload) -> list[Part]:
    """What a policy that acts needs for a call in all environments of a lane, on top of the `resident` parts."""
    rows = -(-config.simulate.num_envs // config.simulate.lanes)
    length = work.prompt_tokens + work.completion
    b = config.policy.bytes_per_weight
    size, said = called(shapes, b, rows, length, work.patches), f"{rows:,} environments x {length:,} tokens"
    found = [Part(name="calls", bytes=size, phases=("generate",), because=f"{said} at once")]
    if config.generate.cuda_graphs and work.decoded:  # what was read is copied, and a graph has a cache that grows
        held = rows * (work.prompt_tokens + length) * cache_token(shapes, b)
        found.append(Part(name="graphs", bytes=held, because=f"keys and values of {said}, twice"))
    return found


def called(shapes: Shapes, b: int, rows: int, length: int, patches: int) -> int:
    """Bytes of so many calls at once, without gradients. length, patches: tokens and patches of a call."""
    layer = rows * length * without_gradients(shapes, b) + b * rows * length**2
    return max(layer, rows * looked(shapes, b, patches))


def looked(shapes: Shapes, b: int, patches: int) -> int:
    """Bytes that the tower has of so many patches at once, without gradients."""
    return patches * shapes.seen.forward(b).peak // shapes.seen.patches if shapes.seen else 0


def vllm(compute: ComputeConfig, machine: Machine, alone: bool) -> list[Part]:
    """What vLLM uses of a device that it shares with a learner. alone: vLLM has its own devices."""
    if alone:
        return []
    share = int(compute.gpu_memory_utilization * machine.memory)
    if machine.kind == "cpu":
        share = 2**30
    phases = ("generate",) if compute.sleep_mode and machine.kind == "gpu" else BOTH
    return [
        Part(
            name="vLLM",
            bytes=share,
            phases=phases,
            because=f"compute.gpu_memory_utilization = {compute.gpu_memory_utilization:g}",
        )
    ]


# -- together ---------------------------------------------------------------------------------------------------------------


def peaks(parts: Sequence[Part]) -> Mapping[str, int]:
    """Bytes in each phase."""
    return {phase: sum(part.bytes for part in parts if phase in part.phases) for phase in BOTH}


def usable(machine: Machine) -> int:
    """Bytes that a process can use: without the driver's, and without 2% that an allocator can't use."""
    return int((machine.memory - machine.reserved) * 0.98)
