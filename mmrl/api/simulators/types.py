"""Data types of simulators: Observation, Transition, ActionSpec, Simulation, Demonstration, TrajectoryData.

N environments, n of them chosen, A action dims, H and W pixels, S state dims. Tensors are on the simulator's device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Literal

from mmrl.api.transfer import upload, upload_one

if TYPE_CHECKING:
    import torch

    from mmrl.api.media.content import State


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """The observations of n environments, in the order of the indices that were given. Later steps don't change it."""

    images: Mapping[str, torch.Tensor]
    """Camera -> uint8 [n, H, W, 3]; empty for a simulator that doesn't render."""
    state: torch.Tensor | None
    """float32 [n, S]: proprioception and the like, such as the pose of the arm; None without any."""
    instructions: Sequence[str]
    """n texts: the goal of each episode, or what it asks for now, as it may change within an episode."""

    def __len__(self) -> int:
        return len(self.instructions)

    @property
    def device(self) -> torch.device:
        """Where its tensors are; on the host, if it has none."""
        import torch

        tensors = [*self.images.values(), *([] if self.state is None else [self.state])]
        return tensors[0].device if tensors else torch.device("cpu")

    def on(self, device: torch.device | str) -> Observation:
        """The same on this device."""
        state = {} if self.state is None else {"state": self.state}
        there = upload({f"camera {camera}": rows for camera, rows in self.images.items()} | state, device)
        images = {camera: there[f"camera {camera}"] for camera in self.images}
        return Observation(images=images, state=there.get("state"), instructions=self.instructions)

    def rows(self, rows: torch.Tensor) -> Observation:
        """The observations of some environments. rows: int64 [k]; on the host, nothing waits for a device."""
        there = upload_one(rows, self.device)
        return Observation(
            images={camera: images[there] for camera, images in self.images.items()},
            state=None if self.state is None else self.state[there],
            instructions=[self.instructions[i] for i in rows.tolist()],
        )

    def not_finite(self) -> str:
        """In words, the first number of a state that is not finite; empty if all are. It waits for the device."""
        odd = [] if self.state is None else (~self.state.isfinite()).nonzero().tolist()
        return f"number {odd[0][1]} of its state is {self.state[tuple(odd[0])].item()}" if odd and self.state is not None else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """The result of a step in all N environments. Rows of inactive environments are undefined."""

    observation: Observation
    """N rows. If an episode just ended, its last state, never the first state of the next episode."""
    reward_N: torch.Tensor
    """float32: the simulator's own reward of this step."""
    terminated_N: torch.Tensor
    """bool: the episode ended by itself, so no further reward is possible. Success alone doesn't end an episode."""
    truncated_N: torch.Tensor
    """bool: the simulator itself truncated the episode. The time limit isn't the simulator's task: mmrl applies it."""
    success_N: torch.Tensor
    """bool: the task is solved in the state after this step."""
    lost_N: torch.Tensor | None = None
    """bool: the environment failed in this step (its process died or hung). Its episode is void, and a reset repairs it."""
    interventions_NA: torch.Tensor | None = None
    """float32: the actions that another carried out in place of those that were given, such as a person who took over, in
    [-1, 1]; rows of NaN where nobody did. None: nobody ever does."""
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Name -> float32 [N], 0 to 1: progress on a part of the task in the state after this step, such as `grasped`; for staged
    rewards and metrics. The names are the same in every step; `success` is always available too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """The action space. Each number is in [-1, 1]; a simulator clips larger values and refuses NaN."""

    dims: int
    """A."""
    control_mode: Literal["end-effector-delta", "joint-delta", "joint", "other"] = "other"
    """`end-effector-delta`: x, y, z, then rotations, then the gripper, as differences from the current pose."""
    gripper: int | None = None
    """Index of the dim that opens (below 0) and closes (above 0) a gripper, if there is one."""
    units: tuple[float, ...] = ()
    """A numbers: the size of 1 in each dim, in metres, radians or the simulator's unit; that of a gripper is not used. Negative
    if the simulator inverts the dim. Empty: unknown."""
    offsets: tuple[float, ...] = ()
    """A numbers: what 0 stands for in each dim, in the same units, such as the middle of a range. Empty: 0 stands for 0."""

    def __post_init__(self) -> None:
        if self.units and (len(self.units) != self.dims or not all(math.isfinite(u) and u for u in self.units)):
            raise ValueError(f"units = {self.units} must be {self.dims} finite numbers, none of them 0")
        if self.offsets and (len(self.offsets) != len(self.units) or not all(map(math.isfinite, self.offsets))):
            raise ValueError(f"offsets = {self.offsets} must be as many finite numbers as there are units, {len(self.units)}")
        if self.gripper is not None and not 0 <= self.gripper < self.dims:
            raise ValueError(f"gripper = {self.gripper!r} must be an index of the {self.dims} dims of an action, from 0")


def units_of_bounds(bounds: Sequence[Sequence[float]] | None) -> dict[str, tuple[float, ...]]:
    """`units` and `offsets` of an `ActionSpec` that spreads -1 to 1 over the bounds of an environment's own numbers: half of each
    range, and its middle. bounds: the lowest numbers and the highest ones; None, or an empty range, gives none."""
    if bounds is None or any(low >= high for low, high in zip(*bounds, strict=True)):
        return {}
    low, high = bounds
    units = tuple((most - least) / 2 for least, most in zip(low, high, strict=True))
    return {"units": units, "offsets": tuple((most + least) / 2 for least, most in zip(low, high, strict=True))}


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """How a task's episodes are simulated and rewarded: the value of `Task.simulation`."""

    simulator: str
    """Id of the simulator; empty for a task that has only its own demonstrations and can't be simulated."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the simulator, besides `num_envs` and `device`."""
    max_steps: int | None = None
    """Steps after which an episode is cut off; None: the simulator's own limit."""
    stages: Mapping[str, float] = field(default_factory=lambda: {"success": 1.0})
    """Part -> weight: the potential of a state is the weighted sum of its parts. `grasped & success` is the product of two."""
    reward: Literal["stages", "own", "none"] = "stages"
    """`stages`: the potential of the state after each step; `own`: the simulator's reward; `none`: only verifiers reward."""
    potential_based: bool = True
    """Reward the difference of the potential instead of the potential itself (RL4VLA); the potential is 0 at the start."""
    terminate_on_success: bool = True
    """An episode ends with its first success; otherwise it goes on to its limit, and success may be lost again."""
    time_limit_terminates: bool = False
    """The time limit is part of the task: reaching it terminates the episode, without bootstrapping unless the stage says
    `critic.bootstrap = "always"`. Otherwise it truncates the episode, and the critic's value of the last state is used for
    bootstrapping."""
    sees_success: Callable[[Observation], torch.Tensor] | None = None
    """bool [n]: which of n >= 1 observations, each of the state after a step, show success. There, the episode terminates. It is
    also a part, `seen_success`, for `stages` and metrics; `success` is what the simulator says, as without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """A task's own demonstration for imitation: T consecutive observations of an episode, and the actions."""

    instruction: str
    images: Mapping[str, torch.Tensor]
    """Camera -> uint8 [T, H, W, 3]: the images before each action, with the names of the simulator's cameras."""
    state: torch.Tensor | None
    """float32 [T, S], at the same times as `images`."""
    actions_MA: torch.Tensor
    """float32, M >= T: the action after each observation and, for policies that act in chunks, the actions that followed."""
    physical_units: bool = False
    """Actions are in metres, radians and so on, not in the simulator's [-1, 1]; for policies with statistics."""
    instructions: tuple[str, ...] = ()
    """T texts, at the same times as `images`, of an episode whose instruction changes; `instruction` is then the first.
    Empty: it is the same all the time."""
    rewards_T: torch.Tensor | None = None
    """float32: what each of the first T actions was paid, of a whole episode; see `Task.recorded_episodes`."""
    terminated: bool = False
    """Nothing would have followed the T-th action, of a whole episode."""


def split_parts(stage: str) -> list[str]:
    """The names of the parts in a key of `Simulation.stages`, such as `grasped & success`."""
    return [name.strip() for name in stage.split("&")]


def potential(stages: Mapping[str, float], parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """float32 [N]: the potential of N states, see `Simulation.stages`. parts: name -> float32 [N], including `success`."""
    import torch

    worth = [weight * math.prod(parts[name] for name in split_parts(key)) for key, weight in stages.items()]
    return torch.stack([torch.as_tensor(w) for w in worth]).sum(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryData:
    """The steps of one episode: T calls of the policy, a chunk of K actions each, C choices in an action (tokens, or 1)."""

    instruction: str
    images: Mapping[str, torch.Tensor]
    """Camera -> uint8 [T + 1, H, W, 3]: the images before each call, and those of the last state."""
    state: torch.Tensor | None
    """float32 [T + 1, S], at the same times as `images`."""
    choices: torch.Tensor
    """[T, ...]: the policy's samples in its own format, from which it can compute their log-probabilities again."""
    logprobs_TKC: torch.Tensor
    """float32: natural log-probability of each choice when it was sampled; NaN if it was not sampled, as in a demonstration."""
    valid_TK: torch.Tensor
    """bool: the action was carried out; the actions of a chunk after the end of the episode, or of its instruction, were not."""
    rewards_TK: torch.Tensor
    """float32: the reward of each action; 0 for actions that were not carried out."""
    values_TU: torch.Tensor | None = None
    """float32: the critic's value before each call, of each action (U = K) or of the whole call (U = 1)."""
    expert_actions_TA: torch.Tensor | None = None
    """float32: the expert's action at each call, if it was computed."""
    actions_TKA: torch.Tensor | None = None
    """float32: the actions as they were carried out, of an episode that was played; a simulator clips them to [-1, 1]."""
    corrected_TK: torch.Tensor | None = None
    """bool: an expert or a person carried out this action in the policy's place, so `choices` are not what was done."""
    tokens_T: torch.Tensor | None = None
    """int64: number of tokens of each call, of a policy whose tokens say a whole chunk, such as FAST's. `logprobs_TKC` is then
    [T, 1, C], and what is behind a call's last token means nothing. None: each action has C choices of its own."""
    states: tuple[State, ...] = ()
    """The state before each call, if it was asked for; see `Rollout.states`."""
    bootstrap: float = 0.0
    """The critic's value of the last state; 0 if the episode isn't bootstrapped (stage key `critic.bootstrap`)."""
    step_s: float = 0.1
    """Simulated seconds per action, for videos."""
    instructions: tuple[str, ...] = ()
    """T + 1 texts, at the same times as `images`, of an episode whose instruction changes; `instruction` is then the first.
    Empty: it is the same all the time."""

    @property
    def told(self) -> Sequence[str]:
        """T + 1 texts: the instruction before each call, and that of the last state."""
        return self.instructions or [self.instruction] * (len(self.valid_TK) + 1)

    @property
    def stretches(self) -> list[tuple[str, int, int]]:
        """(instruction, its first call, the call after its last) of each part of the episode, in order. What a part's last call
        led to is the moment with the last number: there, the next part begins."""
        found, begin = [], 0
        for text, calls in groupby(self.told[:-1]):
            end = begin + sum(1 for _ in calls)
            found.append((text, begin, end))
            begin = end
        return found

    @property
    def script(self) -> str:
        """What was asked for, for people: the instruction, or, where it changes, a line for each with the second of simulated
        time at which it began."""
        if len(parts := self.stretches) < 2:
            return self.instruction
        ends = [0, *accumulate(self.valid_TK.sum(1).tolist())]
        return "\n".join(f"{self.step_s * ends[begin]:.2f} s: {text}" for text, begin, _ in parts)

    def retold(self, change: Callable[[str], str]) -> TrajectoryData:
        """A copy with its instructions changed."""
        return dataclasses.replace(self, instruction=change(self.instruction), instructions=tuple(map(change, self.instructions)))

    @property
    def stub(self) -> TrajectoryData:
        """A copy on the CPU without images, state and choices: only the data that algorithms compute with."""
        import torch

        plain = {
            name: value.cpu()
            for name in ("logprobs_TKC", "valid_TK", "rewards_TK", "values_TU", "corrected_TK", "tokens_T")
            if (value := getattr(self, name)) is not None
        }
        nothing = torch.zeros(len(self.valid_TK), 0)
        return dataclasses.replace(
            self, images={}, state=None, choices=nothing, expert_actions_TA=None, actions_TKA=None, **plain
        )

    @property
    def portable(self) -> TrajectoryData:
        """A copy with its own tensors in main memory: pickling a view of a tensor would send the whole tensor."""
        tensors = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if hasattr(getattr(self, f.name), "clone")}
        images = {camera: shown.cpu().clone() for camera, shown in self.images.items()}
        return dataclasses.replace(self, images=images, **{name: tensor.cpu().clone() for name, tensor in tensors.items()})

    @property
    def corrected_T(self) -> torch.Tensor | None:
        """bool: another acted in the policy's place, in all of the call's actions or some."""
        return None if self.corrected_TK is None else self.corrected_TK.any(1)

    @property
    def length(self) -> int:
        """Number of choices that were carried out."""
        return int(self.valid_TK.sum()) * self.logprobs_TKC.shape[-1] if self.tokens_T is None else int(self.tokens_T.sum())

    @property
    def reward(self) -> float:
        """The sum of all rewards."""
        return float(self.rewards_TK.sum())
