"""What to change where a run doesn't fit, and whether activations are better moved to the host than computed again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from mmrl.config.sections import LoraConfig, RunConfig
from mmrl.train.plan.machines import Machine
from mmrl.train.plan.memory import text_layer
from mmrl.train.plan.seconds import CostModel

COPIED = 0.8
"""Share of the link to the host that copies from pinned memory reach: some 26 of 32 GB/s, 52 of 64."""
Peak = Callable[[RunConfig], tuple[int, int]]
"""A run file -> (bytes it would need at most, bytes there are)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Settings that would need less memory."""

    settings: dict[str, object]
    """Key of the run file -> value."""
    bytes: int
    """Needed with it."""
    fits: bool
    cost: str
    """What it costs."""

    @property
    def words(self) -> str:
        return ", ".join(f"{key} = {_toml(value)}" for key, value in self.settings.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Moving what a layer keeps of a token to the host and back, against computing the layer again."""

    bytes: int
    """That a layer keeps of a token."""
    move_s: float
    """Seconds for a token and layer, in one direction."""
    forward_s: float
    """Seconds of its forward pass."""
    exposed_s: float
    """Of moving out beside the forward pass and in beside the backward pass, which takes twice as long: what isn't hidden."""
    pays: bool
    """It would shorten an update with checkpointing, which is four forward passes long, by a tenth at least."""

    @property
    def words(self) -> str:
        ratio = self.exposed_s / self.forward_s
        verdict = "would pay" if self.pays else "would not pay"
        return (
            f"activation offload, which mmrl hasn't, {verdict}: moving {self.bytes:,} bytes a token and layer to the host and "
            f"back, beside what is computed, takes {ratio:.1f} times as long as computing the layer again"
        )


def offload(clock: CostModel, machine: Machine) -> Offload | None:
    """None on a CPU, which has nowhere to move them."""
    if machine.kind == "cpu":
        return None
    kept, tokens = text_layer(clock.shapes, clock.b), 4096
    forward = clock.text(1, tokens).seconds(machine) / tokens / clock.shapes.text.layers
    move = kept / (COPIED * machine.host)
    exposed = max(0.0, move - forward) + max(0.0, move - 2 * forward)
    return Offload(bytes=kept, move_s=move, forward_s=forward, exposed_s=exposed, pays=forward - exposed >= 0.1 * 4 * forward)


def changes(config: RunConfig, peak: Peak, smallest: int) -> list[Change]:
    """What would make a run fit that doesn't, one key or two at a time, the cheapest first; at most five. Where nothing does,
    what helps most. smallest: tokens of the shortest row, the least that a micro-batch has."""
    needed, _ = peak(config)
    tried = []
    for settings, cost in _tries(config, smallest):
        try:
            need, there = peak(with_settings(config, settings))
        except ValueError:  # a combination that the schema refuses
            continue
        if need < needed:
            tried.append(Change(settings=settings, bytes=need, fits=need <= there, cost=cost))
    fitting: list[Change] = []
    for change in tried:
        more = any(other.settings.items() <= change.settings.items() for other in fitting)
        harder = any(set(other.settings) == set(change.settings) for other in fitting)  # the mildest value is enough
        if change.fits and not more and not harder:
            fitting.append(change)
    return fitting[:5] or sorted(tried, key=lambda change: change.bytes)[:3]


def _tries(config: RunConfig, smallest: int) -> Iterator[tuple[dict[str, object], str]]:
    single: list[tuple[dict[str, object], str]] = []
    if config.compute.sampler == "vllm" and not config.compute.sleep_mode:
        single.append(({"compute.sleep_mode": True}, "some seconds a step to wake up"))
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
        else [({"train.gradient_checkpointing": True}, "about a third more time of the update")]
    )
    single += small + again
    if config.policy.dtype == "float32":
        single.append(({"policy.dtype": "bfloat16"}, "a gap between sampler and learner of some 1e-3 nats"))
    yield from single
    yield from (({**a, **b}, f"{x}; {y}") for a, x in again for b, y in small)
    if config.policy.lora is None:
        yield {"policy.lora": {}}, "adapters are trained, not the model's weights"
        yield from (({"policy.lora": {}, **a}, f"adapters are trained; {x}") for a, x in [*again, *small[-1:]])
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
        given = LoraConfig() if key == "policy.lora" else value
        found = found.model_copy(update={section: part.model_copy(update={name: given})})
    return found


def _toml(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return f'"{value}"' if isinstance(value, str) else str(value)


def to_json(changes: Sequence[Change]) -> list[dict[str, object]]:
    """As JSON has them."""
    return [{"settings": c.settings, "bytes": c.bytes, "fits": c.fits, "cost": c.cost} for c in changes]
