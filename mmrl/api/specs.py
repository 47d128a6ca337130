"""Specs: the declarations of a plugin. A spec has an id, the place of the code and defaults. It is plain data, so listing specs
imports no code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.simulators.types import ActionSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """The base class of all specs: an id and the "module:Name" of the code."""

    id: str
    """`plugin/name`, with `-vN` after a change that can change rewards, and `@system` for the behaviour of a published system."""
    target: str
    """`module:Name`, imported on first use."""
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
    """Id of the verifier that evaluations report; by default the first of `verifiers`."""

    def __post_init__(self) -> None:
        if not self.metric and self.verifiers and isinstance(self.verifiers, Mapping):  # the contract refuses another type
            object.__setattr__(self, "metric", next(iter(self.verifiers)))


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifierSpec(Spec):
    """A verifier: the target is a pure function `(case, **options) -> float | Score`, or a class if `model` is set.

    A target may have three attributes. `prepare(**options)` is called once in each worker process, before its first case: what it
    imports and reads counts neither as time nor as memory of a case. `check(cameras, **options)` is called before a run starts
    and raises UserError for options that can't work, without loading anything; `cameras` as for `model`. `bounds(**options)`
    gives (low, high) as they are with these options: figures and checks of gold completions use them, while a value fails only
    outside of `low` and `high` of the spec."""

    low: float = 0.0
    high: float = 1.0
    """Values are from `low` to `high`; a gold completion scores `high`."""
    graded: bool = False
    """Values between the bounds occur, or full marks aren't for a right answer, as those of a format: evaluations report the mean
    under the verifier's id, and don't call it accuracy or success."""
    outcome: bool = False
    """The function judges what came of an episode (`case.outcome`) and not what its last turn says: evaluations call the share
    of episodes that it finds good `success` and not `accuracy`, and take no majority of answers. In a task that acts every
    verifier counts as one."""
    timeout_s: float = 5.0
    """Seconds that one case may take before it is stopped and counted as failed."""
    images: bool = False
    """The function reads `case.images`; otherwise images are not sent to it."""
    rollout: bool = False
    """The function reads `case.rollout`."""
    environment: tuple[str, ...] = ()
    """Names of environment variables that it reads, such as an endpoint's key. Other variables that may be secret aren't given to
    it; see docs/isolation.md."""
    model: bool = False
    """The target is a class that holds a model. It is made once, `target(**options)`, in its own process without a memory limit,
    and called with several cases at once: `(cases) -> [float | Score, ...]`. An optional static method
    `check(cameras, **options)` is called before a run starts and raises UserError for options that can't work, without loading
    the model; `cameras`: label of a task that acts in a simulator -> names of the simulator's cameras. With `--smoke` the option
    `model` is `"tiny"`, which should give a small random model."""
    batch_size: int = 8
    """Largest number of cases in one call of a `model`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatorSpec(Spec):
    """A simulator: the target makes a `mmrl.Simulator`, as `target(num_envs=, device=, **options)`."""

    cameras: tuple[str, ...] = ()
    """Names of the images in an observation; a policy with a single camera uses the first."""
    action: ActionSpec | None = None
    """The action space; a simulator without one can be listed but not used."""
    control_hz: float = 0.0
    """Steps per simulated second, for people and for videos."""
    max_steps: int = 0
    """Steps after which an episode is truncated if the task sets no limit."""
    parts: tuple[str, ...] = ()
    """The names in `Transition.parts`."""
    capabilities: frozenset[str] = frozenset()
    """A subset of `CAPABILITIES`."""
    variants: tuple[str, ...] = ()
    """Names of changed environments that `Simulator.reset` knows, such as `vision.texture`."""
    screens: bool = False
    """The target makes `mmrl.api.simulators.gui.Screens` instead, as `target(**options)`: GUI environments for policies that
    answer with text."""
    doctor: str = ""
    """`module:function` without arguments that checks the simulator's packages and drivers and returns {name: {"state": "ok",
    "note", "missing" or "broken", "detail": ..., "cure": ...}}. `mmrl doctor` calls it in its own process."""


CAPABILITIES = frozenset(
    (*("partial-reset", "per-env-seed", "snapshot", "batched-gpu", "expert"), *("render-gpu", "render-cpu", "needs-assets"))
)
"""Capabilities of a simulator, in order: reset only some environments; a seed for each environment; save and restore states;
thousands of environments at once on a GPU; an expert policy; render on a GPU; render on a CPU; needs files that are downloaded
separately."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySpec(Spec):
    """A kind of policy: the target is a class that implements the protocol `mmrl.api.policies.Policy`. The protocol describes how
    the class is called, and the checks before anything is loaded."""

    acts: bool = False
    """It acts in simulators (`mmrl.api.policies.ActingPolicy`); otherwise it generates text."""
    rates: bool = False
    """It is a reward model (`mmrl.policies.reward_model.RewardModel`): it rates completions and writes none."""
    trainable: bool = True
    """False: it is only evaluated, and `mmrl train` refuses it."""
    tiny: str | None = None
    """The `policy.model` that a smoke run uses in place of a large model; None for policies that are always small enough."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilySpec(Spec):
    """A family of vision-language models: what can't be found out by trying a model. The target is a function
    `(hidden, layers) -> (model, processor)` that makes a small one with random weights for `tiny:MODEL_TYPE`. Its module
    registers classes that transformers doesn't have, and is imported before a model of this family is loaded."""

    model_type: str
    """As in a checkpoint's config.json."""
    coordinate_format: CoordinateFormat | None = None
    """The numbers in which the family writes points and boxes; None if it isn't known, or is no scale of x and y."""
    source: str = ""
    """Where the coordinate format is said."""
    placeholders: tuple[str, ...] = ()
    """Tokens that stand for pictures and are never sampled, if neither the config nor their names say so."""
    beside_each_other: tuple[str, ...] = ()
    """Arguments of the model in which pictures lie beside each other along the last axis, and not the first."""
    completion_type: int = 0
    """Value of `token_type_ids` and the like for tokens that the model has sampled."""
    has_turns: bool = True
    """A conversation may go on after an answer."""
    shares_prompt: bool = True
    """False: don't try whether a group may share its prompt, and compute each completion with its own copy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The allowed range of a number: from `low` to `high`, both included; None means no bound. An algorithm's spec has those of
    its settings; any other target has an option's in its annotation, as in `size: Annotated[int, Bounds(low=1, high=4096)] =
    64`."""

    low: float | None = None
    high: float | None = None
    above: float | None = None
    """The number must be larger than this."""
    off: float | None = None
    """A value outside the range that is allowed too: it switches the setting off."""

    def allows(self, value: float) -> bool:
        """Whether a number is in the range, or switches the setting off. NaN is in no range."""
        over = (self.low is None or value >= self.low) and (self.above is None or value > self.above)
        return value == self.off or (over and (self.high is None or value <= self.high))

    def __str__(self) -> str:
        """The range in words, such as "from 0 to 1" or "above 0"."""
        most = "" if self.high is None else f"{self.high:g}"
        if self.above is not None:
            text = f"above {self.above:g}" + (f" and at most {most}" if most else "")
        elif self.low is not None:
            text = f"from {self.low:g} to {most}" if most else f"at least {self.low:g}"
        else:
            text = f"at most {most}" if most else "any"
        return text if self.off is None else f"{text}, or {self.off:g} to switch it off"


SURROGATE = "mmrl.algorithms.loss:clipped_surrogate"
SURROGATE_BOUNDS: Mapping[str, Bounds] = {
    "clip_low": Bounds(low=0, high=1),
    "clip_high": Bounds(low=0),
    "dual_clip": Bounds(above=1, off=0),
}
"""Bounds of the settings of the default loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlgorithmSpec(Spec):
    """An algorithm: an advantage (the target), a loss, a normalisation and defaults of the stage; `options` are the defaults of
    its settings.

    `mmrl.algorithms.signals` lists the arguments that the target may take.
    """

    loss: str = SURROGATE
    """`module:function`; see `mmrl.algorithms.loss` for the signature."""
    normalise: Literal["token", "sequence", "constant"] = "token"
    """Average over all trained tokens; over each rollout and then over rollouts; or divide each rollout's sum by `constant`."""
    constant: float | None = None
    """The divisor of `normalise="constant"`; by default `generate.max_tokens`."""
    stage_defaults: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of keys of the `rl` stage for this algorithm, such as sampling rules and the KL penalty."""
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    """Setting -> its allowed range in a run file; the bounds of the default loss are added."""
    paper: str = ""
    """Authors, title, section."""

    def __post_init__(self) -> None:
        if self.loss == SURROGATE and isinstance(self.bounds, Mapping):  # the contract refuses another type
            object.__setattr__(self, "bounds", {**SURROGATE_BOUNDS, **self.bounds})


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingRuleSpec(Spec):
    """A sampling rule: the target is a `mmrl.SamplingRule` class, called with the options. A run file names the rule in
    `[[stages.rules]]`."""

    smoke: Mapping[str, Any] = field(default_factory=dict)
    """Options that a smoke run sets to these values, so that the rule does all that it does within two steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageSpec(Spec):
    """A kind of stage: the target is a class that runs its steps, a `mmrl.api.stages.SampledSteps`, called as
    `target(run, stage, **options)`. A run file gives the id as the stage's `kind`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmSpec(Spec):
    """An alarm: the target is a function `(history, **options) -> AlarmReading | None`, called after each step with the stage's
    `MetricHistory`. `summary` is the alarm's title in reports.

    It is on in runs with a task of its plugin, and in runs whose `[limits.alarms]` names it.
    """

    warn: float | None = None
    """A reading that reaches this gives a warning, once per stage; at least 0."""
    stop: float | None = None
    """A reading that reaches this stops the run; at least 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrackerSpec(Spec):
    """A tracker, which logs metrics: the target makes a `mmrl.Tracker` from the options."""

    requires: tuple[str, ...] = ()
    """Modules that it imports when a run starts; if one is missing, a run file with this tracker is refused."""
    local: bool = False
    """It writes only to the run folder, so smoke runs use it too."""
