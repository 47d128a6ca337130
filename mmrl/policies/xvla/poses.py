"""A robot's numbers and those of X-VLA's network: places and turns of hands, and grippers.

A turn is six numbers, the first two columns of its matrix (Zhou et al., On the Continuity of Rotation Representations, arXiv
1812.07035), or three, its axis times its angle. A numbers of a robot's action, D of the network's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch.nn.functional import pad

from mmrl.policies.xvla.spaces import HANDS, Space

Order = Literal["columns", "rows"]
EPS = 1e-6
"""Is added to lengths, as in X-VLA's and LeRobot's code."""


def six_of_matrix(matrix: torch.Tensor, order: Order) -> torch.Tensor:
    """[..., 3, 3] -> [..., 6]."""
    columns = matrix[..., :2]
    return (columns.mT if order == "columns" else columns).flatten(-2)


def matrix_of_six(six: torch.Tensor, order: Order) -> torch.Tensor:
    """[..., 6] -> [..., 3, 3]: a rotation, whatever the numbers are."""
    first, second = six.unflatten(-1, (2, 3)).unbind(-2) if order == "columns" else six.unflatten(-1, (3, 2)).unbind(-1)
    first = first / (first.norm(dim=-1, keepdim=True) + EPS)
    second = second - (first * second).sum(-1, keepdim=True) * first
    second = second / (second.norm(dim=-1, keepdim=True) + EPS)
    return torch.stack([first, second, torch.linalg.cross(first, second)], -1)


def matrix_of_turn(turn: torch.Tensor) -> torch.Tensor:
    """Axis times angle [..., 3] -> [..., 3, 3] (Rodrigues' formula, as a matrix exponential)."""
    x, y, z = turn.unbind(-1)
    nothing = torch.zeros_like(x)
    crossed = torch.stack([nothing, -z, y, z, nothing, -x, -y, x, nothing], -1).unflatten(-1, (3, 3))
    return torch.linalg.matrix_exp(crossed)


def turn_of_matrix(matrix: torch.Tensor) -> torch.Tensor:
    """[..., 3, 3] -> axis times angle [..., 3], the angle in [0, pi]."""
    m = matrix
    trace = m.diagonal(dim1=-2, dim2=-1)
    x, y, z = trace.unbind(-1)
    # four times a quaternion's parts times each of them in turn: the row of the largest part is exact
    rows = torch.stack(
        [
            torch.stack(
                [1 + x + y + z, m[..., 2, 1] - m[..., 1, 2], m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] - m[..., 0, 1]], -1
            ),
            torch.stack(
                [m[..., 2, 1] - m[..., 1, 2], 1 + x - y - z, m[..., 1, 0] + m[..., 0, 1], m[..., 0, 2] + m[..., 2, 0]], -1
            ),
            torch.stack(
                [m[..., 0, 2] - m[..., 2, 0], m[..., 1, 0] + m[..., 0, 1], 1 - x + y - z, m[..., 2, 1] + m[..., 1, 2]], -1
            ),
            torch.stack(
                [m[..., 1, 0] - m[..., 0, 1], m[..., 0, 2] + m[..., 2, 0], m[..., 2, 1] + m[..., 1, 2], 1 - x - y + z], -1
            ),
        ],
        -2,
    )
    largest = rows.diagonal(dim1=-2, dim2=-1).argmax(-1)
    quaternion = rows.gather(-2, largest[..., None, None].expand(*rows.shape[:-2], 1, 4))[..., 0, :]
    quaternion = quaternion / quaternion.norm(dim=-1, keepdim=True)
    quaternion = torch.where(quaternion[..., :1] < 0, -quaternion, quaternion)
    axis = quaternion[..., 1:]
    length = axis.norm(dim=-1, keepdim=True)
    angle = 2 * torch.atan2(length, quaternion[..., :1])
    return torch.where(length > 0, axis / length.clamp_min(torch.finfo(axis.dtype).tiny) * angle, 2 * axis)


@dataclass(frozen=True, slots=True, kw_only=True)
class Robot:
    """How a robot's numbers become those of a space, and back."""

    space: Space
    dims: int
    """A."""
    order: Order = "columns"
    scaled: bool = False
    """Grippers of -1 and 1, as a simulator has them, are 0 and 1 of the network's."""

    @property
    def hands(self) -> int:
        """How many have their turns as axis times angle; 0 where numbers are the network's own."""
        return self.dims // 7 if self.space.mode in HANDS and self.dims in (7, 14) else 0

    @property
    def used(self) -> int:
        """Of the network's numbers, the first ones that make an action."""
        return 10 * self.hands or self.dims

    @property
    def gripper_numbers(self) -> list[int]:
        """Indices of grippers in a robot's action."""
        return [7 * i + 6 for i in range(self.hands)] or [i for i in self.space.grippers if i < self.dims]

    def carried_out(self, numbers: torch.Tensor) -> torch.Tensor:
        """The network's [..., used] -> the robot's [..., A]."""
        found = numbers
        if self.hands:
            hands = numbers.unflatten(-1, (self.hands, 10))
            turns = turn_of_matrix(matrix_of_six(hands[..., 3:9].double(), self.order)).to(numbers.dtype)
            found = torch.cat([hands[..., :3], turns, hands[..., 9:]], -1).flatten(-2)
        if self.scaled and self.space.coins:
            found = found.clone()
            found[..., self.gripper_numbers] = 2 * found[..., self.gripper_numbers] - 1
        return found

    def demonstrated(self, actions: torch.Tensor) -> torch.Tensor:
        """The inverse of `carried_out`, with zeros for all that the robot doesn't have: [..., A] -> [..., D]."""
        found = actions
        if self.scaled and self.space.coins:
            found = found.clone()
            found[..., self.gripper_numbers] = (found[..., self.gripper_numbers] + 1) / 2
        if self.hands:
            hands = found.unflatten(-1, (self.hands, 7))
            found = torch.cat([hands[..., :3], self._six(hands[..., 3:6]), hands[..., 6:]], -1).flatten(-2)
        return pad(found, (0, self.space.size - found.shape[-1]))

    def state(self, state_nS: torch.Tensor, size: int) -> torch.Tensor:
        """[n, size]: a robot's state as the network has it. Where hands have their turns as axis times angle, so has the state,
        in equal shares of it; what it says beside places and turns is left out, as in X-VLA's evaluation of LIBERO."""
        found = state_nS
        if self.hands and state_nS.shape[-1]:
            shares = state_nS.unflatten(-1, (self.hands, -1))
            found = torch.cat([shares[..., :3], self._six(shares[..., 3:6]), torch.zeros_like(shares[..., :1])], -1).flatten(-2)
        return pad(found, (0, size - found.shape[-1]))

    def _six(self, turns: torch.Tensor) -> torch.Tensor:
        return six_of_matrix(matrix_of_turn(turns.double()), self.order).to(turns.dtype)
