"""Where a route goes: a straight line, or a quarter of a circle between two. n environments, K points of each. Metres,
radians."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mmrl.api.simulators.reproducible import angle_of, length, sin_cos

LANE = 3.5
"""Width of a lane."""
CORNER = 8.0
"""The crossing's square: it reaches so far from the middle along x and y."""


@dataclass(frozen=True, slots=True)
class Place:
    """Points as seen from a route."""

    along: torch.Tensor
    """Way along the route; 0 at the crossing's southern edge, or where y is 0 on the motorway."""
    left: torch.Tensor
    """Distance from the route's middle, positive to the left of it."""
    direction: torch.Tensor
    """Of the route there."""


class Routes:
    """The routes of n environments, by its number and the task."""

    def __init__(self, task: str, route_n: torch.Tensor) -> None:
        straight_n = torch.zeros_like(route_n, dtype=torch.float32)
        if task == "motorway":
            self.x, self.turn, self.south = (route_n - 1) * LANE, straight_n, 0.0
        else:
            self.x, self.turn, self.south = straight_n + LANE / 2, 1.0 - route_n.float(), -CORNER
        self.radius = CORNER + self.turn * LANE / 2
        """Of the turn; without a turn it isn't used."""
        self.middle = self.x - self.turn * self.radius
        """x of the turn's centre."""
        self.arc = self.radius * (math.pi / 2)

    def locate(self, x: torch.Tensor, y: torch.Tensor) -> Place:
        """Points [n] as seen from their routes."""
        along, left = y - self.south, self.x - x
        ahead = torch.full_like(x, math.pi / 2)
        out = -self.turn * x - CORNER  # beyond the crossing's edge, on the arm that the turn leads to
        dx, dy = x - self.middle, y - self.south
        swept = angle_of(self.turn * dx, dy)
        exit_y = self.south + self.radius
        turning, gone = (self.turn != 0) & (along >= 0), out > 0
        arc_along, arc_left = self.radius * swept, self.turn * (self.radius - length(dx, dy))
        along = torch.where(turning, torch.where(gone, self.arc + out, arc_along), along)
        left = torch.where(turning, torch.where(gone, self.turn * (exit_y - y), arc_left), left)
        turned = torch.where(turning, torch.where(gone, math.pi / 2, swept), 0.0)
        return Place(along, left, ahead + self.turn * turned)

    def points(self, along_nK: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(x, y, direction) [n, K] of points on the routes."""
        turn, radius, arc, x = (v[:, None] for v in (self.turn, self.radius, self.arc, self.x))
        straight = (turn == 0) | (along_nK < 0)
        swept = (along_nK / radius).clamp(0, math.pi / 2)
        sin, cos = sin_cos(swept)
        out = (along_nK - arc).clamp(min=0)
        px = torch.where(straight, x + 0 * along_nK, x - turn * radius + turn * radius * cos - turn * out)
        py = torch.where(straight, self.south + along_nK, self.south + radius * sin)
        return px, py, math.pi / 2 + torch.where(straight, 0.0, turn * swept)


def is_road(task: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """bool: asphalt, of points of any shape."""
    wide, high = x.abs(), y.abs()
    if task == "motorway":
        return wide < 1.5 * LANE + 0.5
    dx, dy = CORNER - wide, CORNER - high
    rounded = (dx > 0) & (dy > 0) & (dx * dx + dy * dy > (CORNER - LANE) * (CORNER - LANE))
    return (wide < LANE) | (high < LANE) | rounded


def is_marked(task: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """bool: a white mark on the road."""
    wide = x.abs()
    if task == "motorway":
        return _line(wide - 1.5 * LANE) | (_line(wide - 0.5 * LANE) & _dash(y))
    return _arm(x, y) | _arm(-y, x)


def _arm(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Marks of a road along y outside of the crossing: its middle, and a line where cars stop, which come from the right of
    it."""
    outside = y.abs() > CORNER
    right = torch.where(y < 0, x, -x)
    stop = (y.abs() < CORNER + 0.6) & (right > 0) & (right < LANE)
    return outside & ((_line(x) & _dash(y)) | stop)


def _line(distance: torch.Tensor) -> torch.Tensor:
    return distance.abs() < 0.15


def _dash(along: torch.Tensor) -> torch.Tensor:
    """Four metres of mark, four without."""
    return (along * 0.125 - (along * 0.125).floor()) < 0.5
