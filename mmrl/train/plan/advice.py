"""Advice: settings that make a run fit, and whether activation offload would be faster than recomputation."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmrl.config.sections import LoraConfig, RunConfig
from mmrl.train.plan.kept import text_layers
from mmrl.train.plan.machines import Machine
from mmrl.train.plan.seconds import COPIED, CostModel

Peak = Callable[[RunConfig], tuple[int, int]]
"""Run file -> (peak bytes, usable bytes)."""
Settings = Mapping[str, object]
"""Key of the run file -> value."""
Try = tuple[dict[str, object], str]
"""(settings, their price in words)."""
LEAST_PIXELS = 448**2
"""Smaller pictures aren't proposed."""
MOST = 5
"""Changes that are proposed."""


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
        """As lines of a run file, or of `--set`: those of a table one by one, so that its other keys stay."""
        given: list[tuple[str, object]] = []
        for key, value in self.settings.items():
            inner = value if isinstance(value, dict) else {}
            given += [(f"{key}.{one}", its) for one, its in inner.items()] or [(key, value)]
        return ", ".join(f"{key} = {_toml(value)}" for key, value in given)


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
    kept = max(size for _, size in text_layers(clock.shapes, clock.b, dense=not clock.attention.by_blocks(tokens)))
    forward = clock.text(1, tokens).seconds(machine) / tokens / clock.shapes.text.layers
    move = kept / (COPIED * machine.host)
    exposed = max(0.0, move - forward) + max(0.0, move - 2 * forward)
    return Offload(bytes=kept, move_s=move, forward_s=forward, exposed_s=exposed, pays=forward - exposed >= 0.1 * 4 * forward)


def changes(config: RunConfig, peak: Peak, step: Callable[[RunConfig], float], smallest: int, pixels: int) -> list[Change]:
    """At most `MOST` changes that make a run fit, the mildest first, each with no more keys than it takes; if none does, the
    three that save most, without keys that save nothing. step: run file -> seconds of a step. smallest: tokens of the shortest
    row, the minimum of a micro-batch. pixels: of a picture, 0 if `policy.max_pixels` doesn't set them."""
    needed, _ = peak(config)
    fitting: list[Change] = []
    others: list[Change] = []
    for settings, cost in _tries(config, smallest, pixels):
        if any(_enough(other.settings, settings) for other in fitting):
            continue
        try:
            changed = with_settings(config, settings)
            need, there = peak(changed)
        except ValueError:  # the schema refuses the combination
            continue
        if need < needed:
            change = Change(settings=settings, bytes=need, fits=need <= there, cost=cost, step_s=step(changed))
            (fitting if change.fits else others).append(change)
            if len(fitting) == MOST:
                break
    saving = [one for number, one in enumerate(others) if not any(_plainer(other, one) for other in others[:number])]
    return fitting or sorted(saving, key=lambda change: change.bytes)[:3]


def _enough(fits: Settings, settings: Settings) -> bool:
    """Whether these settings are no alternative to others that fit: the same keys, or further ones and nothing milder."""
    if fits.keys() == settings.keys():  # milder values are tried first
        return True
    return fits.keys() <= settings.keys() and all(_as_mild(key, value, settings[key]) for key, value in fits.items())


def _plainer(one: Change, other: Change) -> bool:
    """Whether a change saves as much as a later one, with the same or only some of its settings."""
    return one.bytes <= other.bytes and one.settings.items() <= other.settings.items()


def _as_mild(key: str, one: object, other: object) -> bool:
    if isinstance(one, dict):  # adapters over whole weights are milder than over 4 bits
        return not one or one == other
    if isinstance(one, int) and isinstance(other, int):
        return one <= other if key == "compute.learners" else one >= other
    return one == other


def _tries(config: RunConfig, smallest: int, pixels: int) -> Iterator[Try]:
    single: list[Try] = []
    if config.compute.sampler == "vllm" and not config.compute.sleep_mode:
        single.append(({"compute.sleep_mode": True}, "some seconds per step to wake up"))
    tokens = config.train.micro_batch_tokens
    budgets = []
    while tokens // 2 >= smallest:
        tokens //= 2
        budgets.append(tokens)
    rounds: list[Try] = []
    if config.compute.sampler == "local":
        size = config.generate.batch_size
        rounds = [({"generate.batch_size": size // k}, "more rounds of decoding") for k in (2, 4, 8, 16) if size // k]
    small: list[Try] = [({"train.micro_batch_tokens": n}, "more, smaller passes") for n in budgets]
    again: list[Try] = (
        []
        if config.train.gradient_checkpointing
        else [({"train.gradient_checkpointing": True}, "about a third more time per update")]
    )
    single += rounds + small + again
    if not config.train.offload_optimizer and (config.compute.weights == "replicated" or config.compute.learners == 1):
        single.append(({"train.offload_optimizer": True}, "masters and running means go to the device and back for each step"))
    halved: list[Try] = []
    if config.policy.dtype == "float32":
        halved.append(({"policy.dtype": "bfloat16"}, "sampler and learner differ, by 0.025 nats a token at 3B, in float16 less"))
    single += halved
    least = max(LEAST_PIXELS, config.policy.min_pixels or 0)
    smaller: list[Try] = [({"policy.max_pixels": pixels // k}, "smaller pictures") for k in (4, 16, 64) if pixels // k >= least]
    yield from [*single, *smaller]
    few = (halved, rounds[::2], again, small[-1:], smaller)
    several = sorted(_joined(*([({}, ""), *some] for some in few)), key=lambda t: len(t[0]))
    yield from _joined(again, small)
    yield from several
    adapters: list[Try] = [({"policy.lora": {}}, "trains adapters, not the model's weights")]
    four: list[Try] = [({"policy.lora": {"nf4": ["language"]}}, "trains adapters over weights in 4 bits")]
    if config.policy.lora is None:
        yield from _joined(adapters, several)
    if config.policy.lora is None or not config.policy.lora.nf4:
        yield from _joined(four, several)
    for n in (2, 4, 8, 16, 32, 64):
        if n > config.compute.learners:
            more: list[Try] = [({"compute.learners": n, "compute.weights": "sharded"}, f"{n} devices")]
            yield from more
            yield from _joined(more, again)


def _joined(*choices: Sequence[Try]) -> Iterator[Try]:
    """One of each of these changes, together."""
    for chosen in itertools.product(*choices):
        yield {k: v for settings, _ in chosen for k, v in settings.items()}, "; ".join(cost for _, cost in chosen if cost)


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
