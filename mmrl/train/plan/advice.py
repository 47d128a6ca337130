"""Advice: settings that make a run fit, and whether activation offload would be faster than recomputation."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mmrl.config.sections import LoraConfig, RunConfig
from mmrl.train.plan.machines import Machine
from mmrl.train.plan.memory import text_layer
from mmrl.train.plan.seconds import COPIED, CostModel

Peak = Callable[[RunConfig], tuple[int, int]]
"""Run file -> (peak bytes, usable bytes)."""
LEAST_PIXELS = 448**2
"""Smaller pictures aren't proposed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Settings with which a run needs less memory."""

    settings: dict[str, object]
    """Key of the run file -> value."""
    bytes: int
    """Peak bytes with these settings."""
    fits: bool
    cost: str
    """The price of the change, in words."""
    step_s: float
    """Seconds of a step with these settings, of the stage whose steps are the longest."""

    @property
    def words(self) -> str:
        return ", ".join(f"{key} = {_toml(value)}" for key, value in self.settings.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Offload of a layer's activations to the host, compared with recomputing the layer. All figures are per token and layer."""

    bytes: int
    """Bytes that a layer keeps."""
    move_s: float
    """Seconds of a copy in one direction."""
    forward_s: float
    """Seconds of the forward pass."""
    exposed_s: float
    """Seconds of both copies that don't overlap with the forward pass and the backward pass, which takes twice as long."""
    pays: bool
    """Whether it would shorten an update with checkpointing, which takes four forward passes, by at least a tenth."""


def offload(clock: CostModel, machine: Machine) -> Offload | None:
    """Estimate activation offload; None on a CPU."""
    if machine.kind == "cpu":
        return None
    tokens = 4096
    kept = text_layer(clock.shapes, clock.b, dense=not clock.attention.by_blocks(tokens))
    forward = clock.text(1, tokens).seconds(machine) / tokens / clock.shapes.text.layers
    move = kept / (COPIED * machine.host)
    exposed = max(0.0, move - forward) + max(0.0, move - 2 * forward)
    return Offload(bytes=kept, move_s=move, forward_s=forward, exposed_s=exposed, pays=forward - exposed >= 0.1 * 4 * forward)


def changes(config: RunConfig, peak: Peak, step: Callable[[RunConfig], float], smallest: int, pixels: int) -> list[Change]:
    """At most five changes that make a run fit, the cheapest first, each of one or two keys; if none does, the three that save
    most. step: run file -> seconds of a step. smallest: tokens of the shortest row, the minimum of a micro-batch. pixels: of a
    picture, 0 if `policy.max_pixels` doesn't set them."""
    needed, _ = peak(config)
    tried = []
    for settings, cost in _tries(config, smallest, pixels):
        try:
            changed = with_settings(config, settings)
            need, there = peak(changed)
        except ValueError:  # the schema refuses the combination
            continue
        if need < needed:
            tried.append(Change(settings=settings, bytes=need, fits=need <= there, cost=cost, step_s=step(changed)))
    fitting: list[Change] = []
    for change in tried:
        more = any(other.settings.items() <= change.settings.items() for other in fitting)
        harder = any(set(other.settings) == set(change.settings) for other in fitting)  # a milder value of the same keys fits
        if change.fits and not more and not harder:
            fitting.append(change)
    return fitting[:5] or sorted(tried, key=lambda change: change.bytes)[:3]


def _tries(config: RunConfig, smallest: int, pixels: int) -> Iterator[tuple[dict[str, object], str]]:
    single: list[tuple[dict[str, object], str]] = []
    if config.compute.sampler == "vllm" and not config.compute.sleep_mode:
        single.append(({"compute.sleep_mode": True}, "some seconds per step to wake up"))
    tokens = config.train.micro_batch_tokens
    budgets = []
    while tokens // 2 >= smallest:
        tokens //= 2
        budgets.append(tokens)
    if config.compute.sampler == "local":
        size = config.generate.batch_size
        single += [({"generate.batch_size": size // k}, "more rounds of decoding") for k in (2, 4, 8, 16) if size // k]
    small: list[tuple[dict[str, object], str]] = [({"train.micro_batch_tokens": n}, "more, smaller passes") for n in budgets]
    again: list[tuple[dict[str, object], str]] = (
        []
        if config.train.gradient_checkpointing
        else [({"train.gradient_checkpointing": True}, "about a third more time per update")]
    )
    single += small + again
    if not config.train.offload_optimizer and (config.compute.weights == "replicated" or config.compute.learners == 1):
        single.append(({"train.offload_optimizer": True}, "masters and running means go to the device and back for each step"))
    if config.policy.dtype == "float32":
        single.append(({"policy.dtype": "bfloat16"}, "sampler and learner differ, by 0.025 nats a token at 3B, in float16 less"))
    least = max(LEAST_PIXELS, config.policy.min_pixels or 0)
    smaller: list[tuple[dict[str, object], str]] = [
        ({"policy.max_pixels": pixels // k}, "smaller pictures") for k in (4, 16, 64) if pixels // k >= least
    ]
    yield from [*single, *smaller]
    yield from (({**a, **b}, f"{x}; {y}") for a, x in again for b, y in small)
    if config.policy.lora is None:
        yield {"policy.lora": {}}, "trains adapters, not the model's weights"
        yield from (({"policy.lora": {}, **a}, f"trains adapters; {x}") for a, x in [*again, *small[-1:], *smaller])
    if config.policy.lora is None or not config.policy.lora.nf4:
        four: dict[str, object] = {"policy.lora": {"nf4": ["language"]}}
        yield four, "trains adapters over weights in 4 bits"
        yield from (({**four, **a}, f"trains adapters over weights in 4 bits; {x}") for a, x in [*again, *smaller])
    for n in (2, 4, 8, 16, 32, 64):
        if n > config.compute.learners:
            more: dict[str, object] = {"compute.learners": n, "compute.weights": "sharded"}
            yield more, f"{n} devices"
            yield from (({**more, **a}, f"{n} devices; {x}") for a, x in again)


def with_settings(config: RunConfig, settings: dict[str, object]) -> RunConfig:
    """The run file with other settings."""
    found = config
    for key, value in settings.items():
        section, _, name = key.partition(".")
        part = getattr(found, section)
        given = _adapters(config, value) if isinstance(value, dict) else value
        found = found.model_copy(update={section: part.model_copy(update={name: given})})
    return found


def _adapters(config: RunConfig, changed: dict[str, object]) -> LoraConfig:
    """The run file's adapters, or the usual ones, with some settings changed."""
    return LoraConfig.model_validate({**(config.policy.lora or LoraConfig()).model_dump(exclude_unset=True), **changed})


def _toml(value: object) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_toml(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def to_json(changes: Sequence[Change]) -> list[dict[str, object]]:
    """The changes as plain data for JSON."""
    return [{"settings": c.settings, "bytes": c.bytes, "step_s": c.step_s, "fits": c.fits, "cost": c.cost} for c in changes]
