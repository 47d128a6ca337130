"""Predict from shapes, before anything is loaded, whether a run fits into memory and how long a step takes.

`mmrl plan` prints the result of `predict`; `mmrl train` calls `check_fits` before it loads a model onto a GPU.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import Any

from mmrl.api.errors import UserError
from mmrl.config.parts import part_of
from mmrl.config.sections import ComputeConfig, OffPolicyStage, RlStage, RunConfig, Stage, teacher_of
from mmrl.judge.rewards import weights_of
from mmrl.registry import plugins
from mmrl.train.plan.acting import TEXT, bins_only, vla_sizes, vla_workload
from mmrl.train.plan.advice import Change, Offload, changes, offload, to_json
from mmrl.train.plan.configs import Found
from mmrl.train.plan.cost import Seconds
from mmrl.train.plan.kept import activations
from mmrl.train.plan.machines import Machine
from mmrl.train.plan.memory import BOTH, Part, acting, local, peaks, resident, routes, sampled_beside, update, usable, vllm
from mmrl.train.plan.seconds import CostModel, acting_seconds, host_seconds, sampling_seconds, transfer_seconds, update_seconds
from mmrl.train.plan.shapes import Shapes
from mmrl.train.plan.sources import find_shapes
from mmrl.train.plan.trained import Trained, trained
from mmrl.train.plan.verifier_models import VerifierModels, count_models
from mmrl.train.plan.vision_cache import NOTHING, kept_sight
from mmrl.train.plan.workload import Micro, Sizes, Workload, total, workload
from mmrl.train.sampling.rules import check_plugin_rules

__all__ = ["Plan", "Sizes", "StagePlan", "check_fits", "gib", "predict", "sizes_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """The prediction for a stage, on one learner's device."""

    number: int
    kind: str
    work: Workload
    weights: Trained
    parts: tuple[Part, ...]
    certain: int
    """Bytes that an update needs at least, for any prompts and completions."""
    seconds: tuple[Seconds, ...]
    step_s: float
    """Seconds of a step; parts that run at the same time count once."""
    perhaps_s: float
    """Further seconds of a step in which groups fail or are left out, as often as its rules sample again."""
    tokens_per_s: float
    """Prompt and completion tokens of all rollouts of all learners per second; each completion counts its prompt."""
    flop_use: float
    """Model operations of a step as a share of the device's dense rate (model FLOPs utilization)."""

    @property
    def peaks(self) -> dict[str, int]:
        return dict(peaks(self.parts))

    @property
    def peak(self) -> int:
        return max(self.peaks.values())

    @property
    def phase(self) -> str:
        """That of the peak."""
        return "update" if self.peaks["update"] >= self.peaks["generate"] else "generate"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The prediction for a run on a machine."""

    model: str
    found: Found
    parameters: dict[str, int]
    """Part of the model -> number of its weights."""
    machine: Machine
    learners: int
    engines: int
    """Devices that only sample."""
    sizes: Sizes
    stages: tuple[StagePlan, ...]
    usable: int
    """Usable bytes of a device."""
    engine_fits: bool
    """Whether vLLM's share of memory holds the model and some key-value cache."""
    changes: tuple[Change, ...]
    offload: Offload | None
    unknown_models: tuple[str, ...] = ()
    """Models of verifiers, whose memory isn't counted, as it isn't known."""

    @property
    def fits(self) -> bool:
        return self.engine_fits and all(stage.peak <= self.usable for stage in self.stages)

    def as_json(self) -> dict[str, Any]:
        """The output of `mmrl plan --json`; docs/plan.md explains the keys. In bytes and seconds, of one device."""
        return {
            "fits": self.fits,
            "model": {
                "name": self.model,
                "family": self.found.shapes.family,
                "source": self.found.source,
                "parameters": self.found.shapes.parameters,
                "parts": self.parameters,
            },
            "machine": {**asdict(self.machine), "usable": self.usable},
            "devices": {"learners": self.learners, "engines": self.engines},
            "sizes": asdict(self.sizes),
            "stages": [_stage_json(stage) for stage in self.stages],
            "engine_fits": self.engine_fits,
            "unknown_models": list(self.unknown_models),
            "changes": to_json(self.changes),
            "offload": None if self.offload is None else asdict(self.offload),
        }


def _stage_json(stage: StagePlan) -> dict[str, Any]:
    work = stage.work
    shown = ("asked", "prompts", "group", "prompt_tokens", "patches", "completion", "epochs", "updates", "reference", "looked_at")
    rounds = {"sampled": work.sampled, "perhaps": work.perhaps, "trained": work.trained}
    return {
        "stage": stage.number,
        "kind": stage.kind,
        "trained": stage.weights.moved,
        "work": {name: getattr(work, name) for name in (*shown, "states", "twins")}
        | {name: total(found) for name, found in rounds.items()}
        | {"micro_batches": work.micro.total(), "tokens": work.tokens},
        "memory": {
            "parts": [asdict(part) for part in stage.parts],
            "peaks": stage.peaks,
            "peak": stage.peak,
            "phase": stage.phase,
            "certain": stage.certain,
        },
        "seconds": {
            "parts": [asdict(part) for part in stage.seconds],
            "step": stage.step_s,
            "perhaps": stage.perhaps_s,
            "tokens_per_s": stage.tokens_per_s,
            "flop_use": stage.flop_use,
        },
    }


def sizes_of(
    config: RunConfig,
    model: Found,
    text: int | None = None,
    images: int = 1,
    pixels: int | None = None,
    completion: int | None = None,
    steps: int | None = None,
) -> Sizes:
    """The assumed sizes of prompts and completions, or of calls and episodes. Default of text: 128, or an instruction. Default of
    pixels: `policy.max_pixels`, or a megapixel if it is unset; for a policy that acts the option `size`. Default of completion:
    `generate.max_tokens`. Default of steps: those of the tasks' simulators."""
    if model.shapes.traced:
        return _passes().passes_sizes(config, TEXT if text is None else text, steps or 0, pixels)
    if config.policy.kind == "vla":
        side = int(config.policy.options.get("size") or (224 if model.shapes.family == "openvla" else 0))
        shown = min(pixels or side**2 or 224**2, model.most_pixels)
        return vla_sizes(config, TEXT if text is None else text, shown, steps or 0)
    text = 128 if text is None else text
    limit = 1 if model.shapes.hears else min(config.policy.max_pixels or 2**20, model.most_pixels)
    return Sizes(
        text=text,
        images=images,
        pixels=min(pixels, config.policy.max_pixels or model.most_pixels) if pixels else limit,
        completion=min(completion or config.generate.max_tokens, config.generate.max_tokens),
    )


def predict(
    config: RunConfig,
    machine: Machine,
    *,
    gpus: int | None = None,
    sizes: Sizes | None = None,
    online: bool = True,
    advise: bool = True,
) -> Plan:
    """Predict memory and time of a run file. config: the result of `mmrl.train.resolve.with_algorithm_defaults`. gpus: number of
    devices, instead of that of `[compute]`. online: allow fetching a model's config from the hub. advise: look for settings with
    which a run fits that doesn't. Raises UserError if the model's shapes are unknown, there are too few devices or a stage has
    wrong rules."""
    _check_rules(config)
    model = find_shapes(config.policy, online=online)
    config, learners, engines = _devices(config, gpus)
    sizes = sizes or sizes_of(config, model)
    models = count_models(config, machine, online)
    stages = tuple(_stage(config, i, model.shapes, machine, sizes, models) for i in range(len(config.stages)))
    room, whole = usable(machine), config.policy.bytes_per_weight * model.shapes.parameters
    suggested: list[Change] = []
    if advise and any(stage.peak > room for stage in stages):
        smallest = min(s.work.prompt_tokens + s.work.completion for s in stages)

        def shown(other: RunConfig) -> Sizes:
            return replace(sizes, pixels=min(sizes.pixels, other.policy.max_pixels or sizes.pixels))

        def step(other: RunConfig) -> float:
            planned = (_stage(other, i, model.shapes, machine, shown(other), models) for i in range(len(stages)))
            return max(stage.step_s for stage in planned)

        suggested = changes(
            config,
            lambda other: (_peak(other, model.shapes, machine, shown(other), models), room),
            step,
            smallest,
            sizes.pixels if sizes.images and config.policy.kind == "vlm" else 0,
        )
    return Plan(
        model=config.policy.model,
        found=model,
        parameters=_by_part(model.shapes),
        machine=machine,
        learners=learners,
        engines=engines,
        sizes=sizes,
        stages=stages,
        usable=room,
        engine_fits=_engine_fits(config.compute, machine, whole),
        changes=tuple(suggested),
        offload=None if model.shapes.traced else offload(_clock(config, model.shapes, machine), machine),
        unknown_models=models.unknown,
    )


def check_fits(config: RunConfig, machine: Machine, learners: int = 1) -> str:
    """Check before a model is loaded onto a GPU. Raises UserError if the run can't fit for any prompts; returns a warning if it
    most likely doesn't fit, else "". Models that can't be planned pass. learners: number of learners."""
    config = config.model_copy(update={"compute": config.compute.model_copy(update={"learners": learners})})
    try:
        made = predict(config, machine, online=False)
    except UserError:
        return ""
    worst = max(made.stages, key=lambda stage: stage.certain)
    cure = f"set {made.changes[0].words}" if made.changes and made.changes[0].fits else "use a smaller model or more devices"
    if worst.certain > machine.memory:
        models = " and the verifiers' models" if any(part.name.startswith("verifier") for part in worst.parts) else ""
        raise UserError(
            f"{machine.name} is too small: weights, gradients and optimiser of stages.{worst.number}{models} take "
            f"{gib(worst.certain)}, but it has {gib(machine.memory)}: {cure}; mmrl plan shows the parts"
        )
    if not made.fits:
        return f"this may run out of GPU memory, according to mmrl plan: {cure}"
    return ""


def gib(size: float) -> str:
    """Bytes as text, in MiB or GiB."""
    if size < 2**30:
        return f"{size / 2**20:.0f} MiB" if size >= 10 * 2**20 else f"{size / 2**20:.1f} MiB"
    return f"{size / 2**30:.1f} GiB"


# -- a stage ----------------------------------------------------------------------------------------------------------------


def _devices(config: RunConfig, gpus: int | None) -> tuple[RunConfig, int, int]:
    """(run file for so many devices, number of learners, number of devices that only sample)."""
    compute = config.compute
    apart = compute.engines * compute.tensor_parallel if compute.placement != "colocated" else 0
    learners = compute.learners if gpus is None else (gpus - apart) // compute.gpus_per_learner
    if learners < 1:
        needed = apart + compute.gpus_per_learner
        raise UserError(f"--gpus {gpus}: with compute.engines and tensor_parallel, one learner needs {needed}: give more")
    if learners % compute.sequence_parallel:
        raise UserError(
            f"compute.sequence_parallel = {compute.sequence_parallel} doesn't divide {learners} learners: change one of them"
        )
    sampling = apart + learners * (compute.gpus_per_learner - 1)
    return config.model_copy(update={"compute": compute.model_copy(update={"learners": learners})}), learners, sampling


def _check_rules(config: RunConfig) -> None:
    """Refuse rules of plugins that training refuses, as far as that shows without the tasks' data."""
    registry = plugins.registry()
    for number, stage in enumerate(config.stages):
        if isinstance(stage, RlStage | OffPolicyStage) and stage.rules:
            weights = {entry.label: weights_of(entry, registry.get("tasks", entry.id)) for entry in config.tasks}
            check_plugin_rules(f"stages.{number}", stage, weights, None)


def _engine_fits(compute: ComputeConfig, machine: Machine, whole: int) -> bool:
    """See `Plan.engine_fits`. whole: bytes of the model."""
    share = compute.gpu_memory_utilization * machine.memory
    return compute.sampler == "local" or machine.kind == "cpu" or whole / compute.tensor_parallel < 0.9 * share


def _memory(
    config: RunConfig, stage: Stage, shapes: Shapes, machine: Machine, sizes: Sizes, models: VerifierModels
) -> tuple[Workload, Trained, list[Part]]:
    compute = config.compute
    acts, shapes = sizes.steps > 0, shapes.seeing(sizes.pixels if sizes.images else 0)
    worked = _passes().passes_workload if shapes.traced else vla_workload if acts else workload
    work = worked(config, stage, shapes, sizes, compute.learners)
    if config.policy.lora and config.policy.lora.use_dora and not shapes.traced:
        raise UserError("policy.lora.use_dora: mmrl plan doesn't count the rows that it measures in each pass: leave it out here")
    weights = trained(shapes, config.policy.lora, stage)
    teacher = find_shapes(config.policy, name).shapes.parameters if (name := teacher_of(stage)) else 0
    parts = [*resident(shapes, config, stage, weights, teacher, compute.learners), *models.parts]
    if shapes.traced:
        parts += _passes().passes_memory(config, stage, work, weights, sizes)
    elif work.sampled and acts:
        parts += acting(shapes, config, work)
    elif work.sampled:
        alone = compute.placement == "separate"
        parts += vllm(compute, machine, alone) if compute.sampler == "vllm" else local(shapes, config, work)
    if not shapes.traced:
        choices = int(config.policy.options.get("bins") or 256) if acts else None
        learned = update(shapes, config, work, weights, machine.kind, choices, stage.optimizer)
        again = {part.name for part in learned}
        parts = [*(part for part in parts if part.name not in again), *learned, *routes(shapes, stage, work)]
    parts += [] if acts else kept_sight(config, work, shapes, weights, parts).parts
    if isinstance(stage, RlStage) and sampled_beside(config):
        parts = [replace(part, phases=BOTH) for part in parts]
    return work, weights, parts


def _peak(config: RunConfig, shapes: Shapes, machine: Machine, sizes: Sizes, models: VerifierModels) -> int:
    return max(max(peaks(_memory(config, stage, shapes, machine, sizes, models)[2]).values()) for stage in config.stages)


def _stage(config: RunConfig, number: int, shapes: Shapes, machine: Machine, sizes: Sizes, models: VerifierModels) -> StagePlan:
    stage, compute, shapes = config.stages[number], config.compute, shapes.seeing(sizes.pixels if sizes.images else 0)
    work, weights, parts = _memory(config, stage, shapes, machine, sizes, models)
    clock = (
        _passes().PassesCost(config, stage, shapes, machine, sizes) if shapes.traced else _clock(config, shapes, machine, weights)
    )
    split = compute.learners if compute.weights == "sharded" else 1
    acts = sizes.steps > 0
    sight = NOTHING if acts else kept_sight(config, work, shapes, weights, parts)
    timed = bins_only(work, config.policy, shapes) if acts and not shapes.traced else sight.unseen(work)
    learn = [*sight.looks(work, clock), *update_seconds(config.train, stage, timed, clock, weights, split), *clock.critics(work)]
    passes = sum(part.seconds for part in learn)
    move = transfer_seconds(compute, work, clock, weights, compute.learners, passes)
    timing = acting_seconds if acts else sampling_seconds
    sample, perhaps = timing(config, work, clock, work.sampled), timing(config, work, clock, work.perhaps)
    if compute.placement != "colocated":  # all completions come from the engines, or from them and the learners
        helpers = compute.engines + (compute.learners if compute.placement == "hybrid" else 0)
        sample, perhaps = ([_scaled(part, compute.learners / helpers) for part in of] for of in (sample, perhaps))
    host = host_seconds(config.judge, work, machine)[1 if acts else 0 :]  # pictures of episodes are not read from files
    sampled, rest = sum(part.seconds for part in (*sample, *host)), passes + sum(part.seconds for part in move)
    step = max(sampled, rest) if compute.staleness and compute.placement != "colocated" else sampled + rest
    flops = sum(part.flops for part in (*sample, *learn))
    smallest = Micro(rows=1, length=2, patches=0, targets=1)
    b = config.policy.bytes_per_weight
    kept = [p for p in resident(shapes, config, stage, weights, 0, compute.learners) if "update" in p.phases] + [*models.parts]
    kept += [p for p in vllm(compute, machine, compute.placement == "separate") if p.phases != ("generate",)] * (
        compute.sampler == "vllm"
    )
    return StagePlan(
        number=number,
        kind=stage.kind,
        work=work,
        weights=weights,
        parts=tuple(parts),
        certain=sum(p.bytes for p in kept) + (0 if shapes.traced else activations(shapes, smallest, b, True, weights)),
        seconds=tuple([*sample, *host, *learn, *move] if acts else [*host[:1], *sample, *host[1:], *learn, *move]),
        step_s=step,
        perhaps_s=sum(part.seconds for part in perhaps),
        tokens_per_s=work.tokens * work.asked / work.prompts / step,
        flop_use=flops / step / (clock.rate or 1.0),
    )


def _passes() -> ModuleType:
    """`mmrl.train.plan.acting_passes`, which imports torch."""
    from mmrl.train.plan import acting_passes as found

    return found


def _clock(config: RunConfig, shapes: Shapes, machine: Machine, weights: Trained | None = None) -> CostModel:
    return CostModel(shapes, machine, config.policy.dtype, config.policy.attn_implementation, weights)


def _scaled(part: Seconds, by: float) -> Seconds:
    return Seconds(name=part.name, seconds=part.seconds * by, limit=part.limit, flops=part.flops)


def _by_part(shapes: Shapes) -> dict[str, int]:
    counted: dict[str, int] = {}
    for name, shape in shapes.named():
        part = part_of(name)
        if part == "language" and not shapes.reads_text:  # where names say nothing else
            part = "network"
        counted[part] = counted.get(part, 0) + math.prod(shape)
    return counted
