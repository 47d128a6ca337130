"""Camera poses. A ray goes through the middle of a square pixel and is not normalised: depth is measured along the camera's
axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mmrl.api.simulators.reproducible import sin_cos
from mmrl_tabletop.scene import Scene


@dataclass(frozen=True, slots=True)
class View:
    """The camera of n environments, or one for all (n = 1)."""

    at: torch.Tensor
    """float32 [3, n]: position x, y, z."""
    frame: torch.Tensor
    """float32 [3, 3, n]: the camera's axis, right and up directions; x, y, z of each."""
    tangent: float
    """Tangent of half the field of view."""


FIXED = {"front": ((0.0, -1.45, 1.95), (0.0, 0.075, 0.07), 21.4), "top": ((0.0, 0.0, 1.45), (0.0, 0.0, 0.0), 38.0)}
"""Camera -> (its position, the point it looks at, field of view in degrees)."""
WRIST_BACK, WRIST_HIGH, WRIST_TILT, WRIST_VIEW = 0.11, 0.16, 0.42, 75.0
"""The wrist camera: metres behind and above the gripper's point, forward tilt in radians, field of view in degrees."""


def fixed(camera: str, device: torch.device) -> View:
    """The front or the top camera."""
    at, to, degrees = FIXED[camera]
    f = [b - a for a, b in zip(at, to, strict=True)]
    length = math.sqrt(sum(c * c for c in f))
    f = [c / length for c in f]
    r = [1.0, 0.0, 0.0]
    u = [r[1] * f[2] - r[2] * f[1], r[2] * f[0] - r[0] * f[2], r[0] * f[1] - r[1] * f[0]]

    return View(
        torch.tensor(at, device=device)[:, None],
        torch.tensor([f, r, u], device=device)[..., None],
        math.tan(math.radians(degrees) / 2),
    )


def wrist(scene: Scene) -> View:
    """The camera on the gripper, which rotates with it and looks down between the fingers."""
    x, y, z = scene.gripper[:, :3].unbind(1)
    sin, cos = sin_cos(scene.gripper[:, 5])
    s, c = math.sin(WRIST_TILT), math.cos(WRIST_TILT)
    flat = torch.zeros_like(x)
    rows = (*(-s * sin, s * cos, flat - c), *(cos, sin, flat), *(-c * sin, c * cos, flat + s))
    return View(
        torch.stack([x + WRIST_BACK * sin, y - WRIST_BACK * cos, z + WRIST_HIGH]),
        torch.stack(rows).view(3, 3, -1),
        math.tan(math.radians(WRIST_VIEW) / 2),
    )
