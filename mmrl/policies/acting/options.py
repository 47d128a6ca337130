"""Options of policies that act: each is declared once, in a dataclass, with its type, its range and its meaning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal

from mmrl.api.annotations import check_types
from mmrl.api.errors import UserError
from mmrl.api.specs import Bounds

NONE = "none"
"""Value of `statistics`: don't use those that come with the model."""

Actions = Annotated[int, Bounds(low=1, high=256)]
"""A number of actions, or of the numbers of one."""
Width = Annotated[int, Bounds(low=0, high=100_000)]
"""A number of numbers or of tokens; 0 for none."""
Layer = Annotated[int, Bounds(low=1, high=100_000)]
"""Width of a layer."""
Side = Annotated[int, Bounds(low=1, high=4096)]
"""Side of a picture in pixels."""
Crop = Annotated[float, Bounds(low=0.1, high=1)]
"""A share of a picture's area."""
Spread = Annotated[float, Bounds(above=0, high=10)]
"""Standard deviation of an action's number."""
Correction = Annotated[float, Bounds(low=0, high=2)]
"""Share of [-1, 1], an action's range, by which one of its numbers may differ."""
Steps = Annotated[int, Bounds(low=1, high=256)]
"""Steps of a flow from noise to actions."""


@dataclass(frozen=True, kw_only=True)
class PolicyOptions:
    """Base of the options of a kind of policy, which names its dataclass as `options_class`. Making one raises UserError for a
    value of another type or outside its range; a subclass refuses in `__post_init__` what doesn't go together."""

    def __post_init__(self) -> None:
        check_types("policy.options.", type(self), vars(self))


@dataclass(frozen=True, kw_only=True)
class StatisticsOptions(PolicyOptions):
    """Options of policies whose numbers may be normalised."""

    statistics: str | Mapping[str, Any] = ""
    """What the policy's numbers mean: a file with statistics of the data, or a folder with one. Empty: those that come with a
    published checkpoint, which `none` leaves aside."""
    statistics_key: str = ""
    """Name of the data set, where the file has several."""
    statistics_kind: Literal["", "quantiles", "min-max", "mean-std"] = ""
    """What the file's numbers are, where it has several kinds."""
    gripper: Literal["", "open-high", "close-high", "open-positive", "close-positive"] = ""
    """What the data's numbers of a gripper mean: 1 and 0 are open and closed (`open-high`, as OpenVLA's) or closed and open
    (`close-high`), or 1 and -1 are (`open-positive`, `close-positive`)."""


@dataclass(frozen=True, kw_only=True)
class NoiseOptions(PolicyOptions):
    """Options of policies that act by flow matching: the noise of their steps, see `flow.Chains`."""

    noise_level: Annotated[float, Bounds(above=0, high=100)] = 0.5  # without noise no action has a likelihood
    """Noise of the steps: sigma(t) = noise_level sqrt(t / (1 - t))."""
    noisy: Literal["all", "one", "learned"] = "all"
    """`all`: all steps are noisy and trained; `one`: a single step, drawn for each environment and call, so that an update with 4
    steps computes a quarter; `learned`: all steps, by noise whose size a network says."""
    noise_range: Sequence[Annotated[float, Bounds(above=0, high=100)]] = (0.08, 0.16)
    """Least and largest standard deviation of learned noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.noise_range) != 2 or self.noise_range[0] > self.noise_range[1]:
            raise UserError(f"policy.options.noise_range = {self.noise_range!r:.60} must be two numbers, the smaller first")


@dataclass(frozen=True, kw_only=True)
class CameraOptions(PolicyOptions):
    """Options of policies that look through several cameras."""

    cameras: Sequence[str] = ()
    """The simulator's cameras that are looked through, in this order. Empty: those of the checkpoint's names, or where it names
    none all in the simulator's order."""


@dataclass(frozen=True, kw_only=True)
class PromptOptions(PolicyOptions):
    """Options of policies whose instruction is set in a text."""

    prompt: str = "{instruction}"
    """The text, with {instruction} in it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if "{instruction}" not in self.prompt:
            raise UserError(
                f"policy.options.prompt = {self.prompt!r} must contain {{instruction}}, which the task's instruction replaces"
            )


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions(PolicyOptions):
    """Options of policies whose checkpoint says what an unset one is."""

    def completed(self, **said: int) -> dict[str, int]:
        """Each of these options, or what the checkpoint says where it is unset. Raises UserError for a checkpoint that says what
        no option may."""
        asked = vars(self)
        found: dict[str, Any] = {name: asked[name] if asked[name] is not None else value for name, value in said.items()}
        replace(self, **found)
        return found


MOST = {"chunk": "actions are predicted", "dims": "numbers an action has at most", "state": "numbers a state has at most"}


def check_sizes(kind: str, sizes: Mapping[str, tuple[int, int]]) -> None:
    """Raise UserError for sizes that a network can't have. kind: its name in errors. sizes: option -> (its value, the most)."""
    for name, (value, most) in sizes.items():
        if value > most:
            raise UserError(f"policy.options.{name} = {value} is too many for this {kind}: {most} {MOST[name]}")
