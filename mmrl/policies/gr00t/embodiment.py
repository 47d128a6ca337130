"""A robot as GR00T N1.7 knows it: which groups of numbers its state and actions have, and how they are normalised.

n calls, K steps of a chunk, C of a whole one, S numbers of a state, A of an action, D of a group. The arithmetic is that of
Isaac-GR00T's `StateActionProcessor` (gr00t/data/state_action/state_action_processor.py), in float32 as LeRobot has it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn.functional import normalize

from mmrl.api.transfer import constant
from mmrl.policies.acting.units import Normalizer

POSE = 9
"""Numbers of a pose: a position, and the first two rows of a rotation matrix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Numbers that belong together, such as the joints of an arm."""

    name: str
    low: torch.Tensor
    """float32 [D], or [C, D] with ends for each step of a chunk: what is normalised to -1."""
    high: torch.Tensor
    """What is normalised to 1."""
    state: slice | None = None
    """The numbers of the state to which those of an action are relative; None for absolute ones."""
    pose: bool = False
    """Relative numbers are a pose in the frame of the state's, and not differences."""
    unbounded: bool = False
    """Normalised by mean and deviation: `low` and `high` are a deviation away from the mean, and -1 and 1 where there is none."""
    angles: bool = False
    """Of a state: the network is shown the sine of each number and then the cosine of each."""

    @property
    def size(self) -> int:
        return self.low.shape[-1]

    def shown(self, numbers: torch.Tensor, clip: bool) -> torch.Tensor:
        """Numbers of a state as the network has them: [..., D], or [..., 2 D] for angles."""
        if self.angles:
            return torch.cat([numbers.sin(), numbers.cos()], -1)
        return self.normalised(numbers, clip and not self.unbounded)

    def normalised(self, numbers: torch.Tensor, clip: bool) -> torch.Tensor:
        """[..., D], or [n, K, D] for ends of each step. A number that never changes is 0."""
        low, high = self._ends(numbers)
        width = high - low
        found = torch.where(width != 0, 2 * (numbers - low) / torch.where(width != 0, width, 1.0) - 1, 0.0)
        return found.clamp(-1, 1) if clip else found

    def physical(self, numbers: torch.Tensor) -> torch.Tensor:
        """The inverse of `normalised`, of numbers cut to [-1, 1] if those are ends."""
        low, high = self._ends(numbers)
        return ((numbers if self.unbounded else numbers.clamp(-1, 1)) + 1) * 0.5 * (high - low) + low

    def _ends(self, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        low, high = self.low.to(numbers.device), self.high.to(numbers.device)
        return (low, high) if low.dim() == 1 else (low[: numbers.shape[-2]], high[: numbers.shape[-2]])

    def absolute(self, relative_nKD: torch.Tensor, state_nS: torch.Tensor) -> torch.Tensor:
        if self.state is None:
            return relative_nKD
        origin = state_nS[:, None, self.state]
        if not self.pose:
            return origin + relative_nKD
        return _pose(_matrix(origin) @ _matrix(relative_nKD)).float()

    def relative(self, absolute_nKD: torch.Tensor, state_nS: torch.Tensor) -> torch.Tensor:
        """The inverse of `absolute`."""
        if self.state is None:
            return absolute_nKD
        origin = state_nS[:, None, self.state]
        if not self.pose:
            return absolute_nKD - origin
        return _pose(torch.linalg.inv(_matrix(origin)) @ _matrix(absolute_nKD)).float()


@dataclass(frozen=True, slots=True, kw_only=True)
class Embodiment:
    name: str
    number: int
    """Which of the head's encoders and decoders are its own."""
    ahead: int
    """Actions that it was trained to foresee, at most C."""
    cameras: tuple[str, ...] = ()
    """Their names in the training data, in their order; empty if unknown."""
    frames: int = 1
    """Pictures of each camera that are read. Only the newest is known, which then stands for those before it too."""
    states: tuple[Group, ...] = ()
    actions: tuple[Group, ...] = ()
    """Empty if no statistics are known: then the policy's numbers are the simulator's."""
    clip: bool = True
    """Normalised numbers are cut to [-1, 1]."""
    blind: bool = False
    """The network is not shown the state."""

    def on(self, device: torch.device) -> Embodiment:
        """With its numbers on a device, where each call would wait for them."""
        states, actions = (
            tuple(replace(group, low=group.low.to(device), high=group.high.to(device)) for group in groups)
            for groups in (self.states, self.actions)
        )
        return replace(self, states=states, actions=actions)

    @property
    def scaled(self) -> bool:
        return bool(self.actions)

    @property
    def state_size(self) -> int:
        return sum(group.size for group in self.states)

    @property
    def shown_size(self) -> int:
        """Numbers of a state as the network has it."""
        return sum(group.size * (1 + group.angles) for group in self.states)

    @property
    def action_size(self) -> int:
        return sum(group.size for group in self.actions)

    def normalised_state(self, state_nS: torch.Tensor) -> torch.Tensor:
        parts = state_nS.split([group.size for group in self.states], -1)
        return torch.cat([group.shown(part, self.clip) for group, part in zip(self.states, parts, strict=True)], -1)

    def physical(self, normalised_nKA: torch.Tensor, state_nS: torch.Tensor) -> torch.Tensor:
        """A chunk as the network has it -> in metres, radians and so on. state_nS: of the robot when it was chosen."""
        parts = normalised_nKA.split([group.size for group in self.actions], -1)
        return torch.cat(
            [group.absolute(group.physical(part), state_nS) for group, part in zip(self.actions, parts, strict=True)], -1
        )

    def normalised(self, physical_nKA: torch.Tensor, state_nS: torch.Tensor) -> torch.Tensor:
        """The inverse of `physical`."""
        parts = physical_nKA.split([group.size for group in self.actions], -1)
        return torch.cat(
            [
                group.normalised(group.relative(part, state_nS), self.clip)
                for group, part in zip(self.actions, parts, strict=True)
            ],
            -1,
        )

    def ends(self) -> Normalizer:
        """The lowest and highest value of each number of an action; those a deviation away from the mean where that is known."""
        lows = [float(x) for group in self.actions for x in group.low.reshape(-1, group.size).amin(0)]
        highs = [float(x) for group in self.actions for x in group.high.reshape(-1, group.size).amax(0)]
        return Normalizer(kind="min-max", first=tuple(lows), second=tuple(highs), mask=(True,) * len(lows))

    def plain(self) -> list[list[Any]]:
        """What an action's numbers mean, as plain data."""
        return [[g.name, g.low.tolist(), g.high.tolist(), str(g.state), g.pose, g.unbounded] for g in self.actions]


def _matrix(pose: torch.Tensor) -> torch.Tensor:
    """[..., 9] -> float64 [..., 4, 4]. The two rows of a rotation are made orthonormal, the third follows from them."""
    pose = pose.double()
    first = normalize(pose[..., 3:6], dim=-1)
    second = pose[..., 6:9]
    second = normalize(second - (first * second).sum(-1, keepdim=True) * first, dim=-1)
    turned = torch.stack([first, second, torch.linalg.cross(first, second)], -2)
    last = constant((0.0, 0.0, 0.0, 1.0), torch.float64, pose.device).expand(*pose.shape[:-1], 1, 4)
    return torch.cat([torch.cat([turned, pose[..., :3, None]], -1), last], -2)


def _pose(matrix: torch.Tensor) -> torch.Tensor:
    """[..., 4, 4] -> [..., 9]."""
    return torch.cat([matrix[..., :3, 3], matrix[..., :2, :3].flatten(-2)], -1)
