"""Specs: what a plugin declares. An id, where the code is, and defaults; plain data, nothing is imported to list it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mmrl.api.simulators.types import ActionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """An id and the "module:Name" of what it stands for."""

    id: str
    """`plugin/name`, with `-vN` when a change can move rewards and `@system` for published behaviour."""
    target: str
    """`module:Name`, imported only when the thing is used."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Default keyword arguments of the target; a run file may override them."""
    summary: str = ""
    """One line for `mmrl list`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSpec(Spec):
    """A task: the target is a `mmrl.Task` class, called with the options."""

    verifiers: Mapping[str, float] = field(default_factory=dict)
    """Verifier id -> weight; the reward is the weighted sum."""
    metric: str = ""
    """Verifier id that evaluations report; by default the first of `verifiers`."""

    def __post_init__(self) -> None:
        if not self.metric and self.verifiers:
            object.__setattr__(self, "metric", next(iter(self.verifiers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSpec(Spec):
    """A verifier: the target is a pure function `(case, **options) -> float | Score`, or with `model` a class."""

    low: float = 0.0
    high: float = 1.0
    """The range of values; a gold completion scores `high`."""
    graded: bool = False
    """Values between the bounds occur: evaluations report their mean under the verifier's id, and never call it an accuracy."""
    timeout_s: float = 5.0
    """Seconds that one case may take before it is stopped and counted as failed."""
    images: bool = False
    """The function reads `case.images`; without this they are not sent to it."""
    rollout: bool = False
    """The function reads `case.rollout`."""
    model: bool = False
    """The target is a class that holds a model: it is made once, `target(**options)`, in a process of its own without a limit of
    memory, and called with several cases at once: `(cases) -> [float | Score, ...]`. If it has a static method
    `check(cameras, **options)`, that is called before a run starts, to refuse what can be refused before anything is loaded;
    `cameras`: label of a task that acts -> the names of its simulator's cameras. With `--smoke` its option `model` is `"tiny"`,
    which should stand for a small random one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSpec(Spec):
    """A world that is stepped: the target builds a `mmrl.Simulator`, as `target(num_envs=, device=, **options)`."""

    cameras: tuple[str, ...] = ()
    """Names of the pictures in an observation; the first is the one that a policy with one eye looks through."""
    action: ActionSpec | None = None
    """What an action is; a simulator without one can be listed and not be driven."""
    control_hz: float = 0.0
    """Steps per simulated second, for people and for videos."""
    max_steps: int = 0
    """Steps after which an episode is cut off, where the task doesn't say."""
    parts: tuple[str, ...] = ()
    """The names in `Transition.parts`."""
    capabilities: frozenset[str] = frozenset()
    """Of `CAPABILITIES`."""
    variants: tuple[str, ...] = ()
    """Changes of the world by name, such as `vision.texture`."""
    screens: bool = False
    """The target makes `mmrl.api.simulators.gui.Screens` instead, as `target(**options)`: screens that language worlds are
    played on."""
    doctor: str = ""
    """`module:function`, without arguments, that says what of its packages and drivers is there: {name: {"state": "ok", "note",
    "missing" or "broken", "detail": ..., "cure": ...}}. `mmrl doctor` calls it in a process of its own."""

    def __post_init__(self) -> None:
        if unknown := self.capabilities - CAPABILITIES:
            raise ValueError(f"capabilities {', '.join(sorted(unknown))} are unknown: they are {', '.join(sorted(CAPABILITIES))}")


CAPABILITIES = frozenset(
    (*("partial-reset", "per-env-seed", "snapshot", "batched-gpu", "expert"), *("render-gpu", "render-cpu", "needs-assets"))
)
"""What a simulator may be able to do: reset some environments and not others; start each from a seed of its own; give and take
states; run thousands at once on a GPU; do its tasks itself; render on a GPU, on a CPU; and that it needs files from elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec(Spec):
    """A kind of policy: the target is a class that keeps the protocol `mmrl.api.policies.Policy`, which says how it is called and
    what it is asked before anything is loaded."""

    acts: bool = False
    """It acts in simulators (`mmrl.api.policies.ActingPolicy`); otherwise it writes."""
    tiny: str | None = None
    """The `policy.model` that a smoke run takes in place of a large one; None for policies that are always small enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What a number may be: from `low` to `high`, both of them allowed, where None is no bound."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    """It must be larger than this."""
    off: float | None = None
    """This value is allowed too: it switches the setting off."""


SURROGATE = "mmrl.algorithms.loss:clipped_surrogate"
SURROGATE_BOUNDS: Mapping[str, Bounds] = {
    "clip_low": Bounds(low=0, high=1),
    "clip_high": Bounds(low=0),
    "dual_clip": Bounds(above=1, off=0),
}
"""Of the settings of the loss that an algorithm has by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSpec(Spec):
    """A named composition: advantage (the target) + loss + normalisation + sampling rule; `options` are the settings' defaults.

    See `mmrl.algorithms.signals` for what the target may ask for.
    """

    loss: str = SURROGATE
    """`module:function`; see `mmrl.algorithms.loss` for the signature."""
    normalise: Literal["token", "sequence", "constant"] = "token"
    """Average over all trained tokens; over each rollout and then over rollouts; or divide each rollout's sum by `constant`."""
    constant: float | None = None
    """The divisor of `normalise="constant"`; by default `generate.max_tokens`."""
    stage_defaults: Mapping[str, Any] = field(default_factory=dict)
    """What keys of the `rl` stage are when the run file doesn't say: the sampling rule, the KL penalty."""
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    """Setting -> the numbers that a run file may give it; those of the default loss's settings are added."""
    paper: str = ""
    """Authors, title, section."""

    def __post_init__(self) -> None:
        if self.loss == SURROGATE:
            object.__setattr__(self, "bounds", {**SURROGATE_BOUNDS, **self.bounds})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRuleSpec(Spec):
    """A rule of sampling: the target is a `mmrl.SamplingRule` class, called with the options. A run file names it in
    `[[stages.rules]]`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSpec(Spec):
    """Where curves go: the target builds a `mmrl.Tracker` from the options."""

    requires: tuple[str, ...] = ()
    """Modules that it imports when a run starts; a run file that names it is refused where one is missing."""
    local: bool = False
    """Its curves stay in the run folder, so that a smoke run may have it too."""
