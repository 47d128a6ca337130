"""What flows between a simulator, a task and the engine: Observation, Transition, ActionSpec, Simulation, Demonstration.

N environments, n of them chosen, A action dims, H and W pixels, S numbers of state. Tensors are on the simulator's device.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What n environments show: the rows that were asked for, in that order. What was given out is not changed later."""

    images: Mapping[str, torch.Tensor]
    """Camera -> uint8 [n, H, W, 3]; empty for a simulator that doesn't render."""
    state: torch.Tensor | None
    """float32 [n, S]: what is known besides pictures, such as the pose of the arm; None where there is none."""
    instructions: Sequence[str]
    """n texts: what is to be done."""

    def __len__(self) -> int:
        return len(self.instructions)

    def rows(self, rows: torch.Tensor) -> Observation:
        """Some of them. rows: int64 [k], on any device."""
        return Observation(
            images={camera: images[rows.to(images.device)] for camera, images in self.images.items()},
            state=None if self.state is None else self.state[rows.to(self.state.device)],
            instructions=[self.instructions[i] for i in rows.tolist()],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Transition:
    """What a step did in all N environments. Rows of environments that were not active mean nothing."""

    observation: Observation
    """N rows; of an environment whose episode just ended the state that ended it, never that of a next one."""
    reward_N: torch.Tensor
    """float32: the simulator's own reward of this step."""
    terminated_N: torch.Tensor
    """bool: the episode is over by itself, so that nothing more can be earned. Success alone doesn't end an episode."""
    truncated_N: torch.Tensor
    """bool: the simulator itself cut it off. The time limit is the engine's."""
    success_N: torch.Tensor
    """bool: the task is solved in the state that was reached."""
    lost_N: torch.Tensor | None = None
    """bool: the environment broke in this step (its process died or hung); its episode is void, and a reset mends it."""
    parts: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """Name -> float32 [N], 0 to 1: how much of a part of the task holds in that state, such as `grasped`; for rewards by stages
    and for figures. The same names in every step; `success` is always known besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSpec:
    """What the numbers of an action mean. Each is in [-1, 1]; a simulator clips what is beyond and refuses NaN."""

    dims: int
    """A."""
    control_mode: Literal["end-effector-delta", "joint-delta", "joint", "other"] = "other"
    """`end-effector-delta`: x, y, z, then rotations, then the gripper, as differences from the pose of now."""
    gripper: int | None = None
    """Which dim opens (below 0) and closes (above 0) a gripper, if one does."""
    units: tuple[float, ...] = ()
    """A numbers: what 1 of each is, in metres, radians, or what the simulator counts in; a gripper's is not used. Below 0 where
    the simulator turns a number round. Empty: unknown."""

    def __post_init__(self) -> None:
        if self.units and (len(self.units) != self.dims or not all(math.isfinite(u) and u for u in self.units)):
            raise ValueError(f"units = {self.units} must be {self.dims} finite numbers, none of them 0")
        if self.gripper is not None and not 0 <= self.gripper < self.dims:
            raise ValueError(f"gripper = {self.gripper!r} is none of the {self.dims} dims of an action")


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """How a task's episodes are simulated and paid: what `Task.simulation` says."""

    simulator: str
    """Id of the simulator; empty for a task that brings its own demonstrations and has none: it can be imitated, and nothing
    more."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Keyword arguments of the simulator, besides `num_envs` and `device`."""
    max_steps: int | None = None
    """Steps after which an episode is cut off; the simulator's own limit when None."""
    stages: Mapping[str, float] = field(default_factory=lambda: {"success": 1.0})
    """Part -> what it is worth: the potential of a state is their weighted sum. `grasped & success` is the product of two."""
    reward: Literal["stages", "own", "none"] = "stages"
    """`stages`: the potential (of the state that each step reached); `own`: the simulator's; `none`: only verifiers pay."""
    potential_based: bool = True
    """Pay the difference of the potential and not the potential itself (RL4VLA); it is 0 where an episode starts."""
    terminate_on_success: bool = True
    """An episode ends with its first success; otherwise it goes on to its limit, and success may be lost again."""
    time_limit_terminates: bool = False
    """The time limit is part of the task: what isn't done by then has failed, and nothing more is to come. Otherwise an episode
    that reaches it was merely cut off, and a critic's value of its last state still counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """What a task itself shows for imitation: a moment of an episode, or several, T of them, and what was done."""

    instruction: str
    images: Mapping[str, torch.Tensor]
    """Camera -> uint8 [T, H, W, 3]: what was seen before each action, under the names that the simulator's cameras have."""
    state: torch.Tensor | None
    """float32 [T, S], of the same moments."""
    actions_MA: torch.Tensor
    """float32, M >= T: what was done in these moments, and then, for policies that choose chunks, what followed."""
    physical_units: bool = False
    """The numbers of an action are metres, radians and so on, and not the simulator's [-1, 1]: for policies with statistics."""


def split_parts(stage: str) -> list[str]:
    """The parts whose product a key of `Simulation.stages` names."""
    return [name.strip() for name in stage.split("&")]


def potential(stages: Mapping[str, float], parts: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """float32 [N]: what states are worth, see `Simulation.stages`. parts: name -> float32 [N], `success` among them."""
    import torch

    worth = [weight * math.prod(parts[name] for name in split_parts(key)) for key, weight in stages.items()]
    return torch.stack([torch.as_tensor(w) for w in worth]).sum(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryData:
    """What happened in one episode: T calls of the policy, a chunk of K actions each, C choices in an action (tokens, or 1)."""

    instruction: str
    images: Mapping[str, torch.Tensor]
    """Camera -> uint8 [T + 1, H, W, 3]: what was seen before each call, and the state in which the episode was left."""
    state: torch.Tensor | None
    """float32 [T + 1, S], of the same moments."""
    choices: torch.Tensor
    """[T, ...]: what the policy chose, in its own terms; it knows how to say how likely that was."""
    logprobs_TKC: torch.Tensor
    """float32: natural log-probability of each choice when it was made; NaN where nobody sampled, as in a demonstration."""
    valid_TK: torch.Tensor
    """bool: the action was carried out; those of a chunk that follow the end of the episode were not."""
    rewards_TK: torch.Tensor
    """float32: what each action was paid; 0 where it was not carried out."""
    values_TU: torch.Tensor | None = None
    """float32: what a critic said before each call, of each action (U = K) or of the whole (U = 1)."""
    expert_actions_TA: torch.Tensor | None = None
    """float32: what an expert would have done at each call, where one was asked."""
    bootstrap: float = 0.0
    """What it said of the state in which the episode was left; 0 where the episode ended by itself."""
    step_s: float = 0.1
    """Simulated seconds of an action, for videos."""

    @property
    def stub(self) -> TrajectoryData:
        """Without what was seen and chosen: what algorithms count with, on the CPU."""
        import torch

        plain = {
            name: value.cpu()
            for name in ("logprobs_TKC", "valid_TK", "rewards_TK", "values_TU")
            if (value := getattr(self, name)) is not None
        }
        nothing = torch.zeros(len(self.valid_TK), 0)
        return dataclasses.replace(self, images={}, state=None, choices=nothing, expert_actions_TA=None, **plain)

    @property
    def portable(self) -> TrajectoryData:
        """With tensors of its own, in main memory: a part of a tensor would take the whole along to another process."""
        tensors = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if hasattr(getattr(self, f.name), "clone")}
        images = {camera: shown.cpu().clone() for camera, shown in self.images.items()}
        return dataclasses.replace(self, images=images, **{name: tensor.cpu().clone() for name, tensor in tensors.items()})

    @property
    def length(self) -> int:
        """Choices that were carried out."""
        return int(self.valid_TK.sum()) * self.logprobs_TKC.shape[-1]

    @property
    def reward(self) -> float:
        """The sum of all rewards."""
        return float(self.rewards_TK.sum())
