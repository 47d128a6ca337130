"""The solids of a scene: objects, receptacles, and the parts of the robot, in this order. M solids in each of N environments."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmrl.api.simulators.reproducible import root, sin_cos
from mmrl_tabletop.physics import FINGER, Contact
from mmrl_tabletop.scene import TIP, Scene
from mmrl_tabletop.things import BALL, BOX, CYLINDER, NAMES, PLATE_HALF, PLATE_KINDS, PLATE_RADIUS, SHAPES

SHOULDER = (0.0, 0.80, 0.34)
"""Position of the arm's base."""
SHADELESS = 3
"""The robot's last parts cast no shadow: wrist, joint and arm."""
TRAY_WIDTH = 0.88
"""A square or a hexagon looks as large as a disc if the distance of its sides is this share of the disc's radius."""


@dataclass(frozen=True, slots=True)
class Solids:
    """The solids to render."""

    kind: torch.Tensor
    """int64 [N, M]."""
    colour: torch.Tensor
    """int64 [N, M], of `COLOURS`."""
    present: torch.Tensor
    """bool [N, M]."""
    centre: torch.Tensor
    """float32 [3, N, M]."""
    axes: torch.Tensor
    """float32 [3, 3, N, M]: the solid's three axes; x, y, z of each."""
    half: torch.Tensor
    """float32 [3, N, M]: half the size along the axes; for round solids the first two are the radius."""


class Model:
    """Makes the solids of a scene."""

    def __init__(self, contact: Contact, device: torch.device) -> None:
        self._contact = contact

        def tensor(values: object) -> torch.Tensor:
            return torch.tensor(values, device=device)

        self._half_3S = tensor([s.half for s in SHAPES]).T * contact.radius
        self._kind_S = tensor([s.kind for s in SHAPES])
        widths = [PLATE_RADIUS * (1 if kind == CYLINDER else TRAY_WIDTH) for kind in PLATE_KINDS]
        self._plate_half_3R = tensor([widths, widths, PLATE_HALF])
        self._plate_kind_R = tensor(PLATE_KINDS)
        long = (contact.palm + TIP) / 2
        up = (long - TIP, long - TIP, contact.palm + 0.02, contact.palm + 0.07, contact.palm + 0.115)
        self._up_G = tensor(up)
        self._side_G = tensor((-1.0, 1.0, 0.0, 0.0, 0.0))
        finger = (FINGER, 0.022, long)
        sizes = (finger, finger, (contact.open + FINGER, 0.03, 0.02), (0.03, 0.03, 0.04), (0.04, 0.04, 0.04), (0.024, 0.024, 0.0))
        self._size_3G = tensor(sizes).T[:, None]
        self._is_arm_G = tensor((0.0, 0.0, 0.0, 0.0, 0.0, 1.0))
        self._kind_G = tensor((BOX, BOX, BOX, CYLINDER, BALL, CYLINDER))
        self._colour_G = tensor([NAMES.index(name) for name in ("finger", "finger", "open", "arm", "joint", "arm")])
        self._is_palm_G = tensor((False, False, True, False, False, False))
        self._eye_33 = torch.eye(3, device=device)[:, :, None, None]
        self._shoulder_3 = tensor(SHOULDER)[:, None]

    def __call__(self, scene: Scene) -> Solids:
        """All visible solids except the table."""
        n, K = scene.shape.shape
        P, G = scene.plates.shape[1], len(self._kind_G)
        turned = _rotation(scene.gripper[:, 3:])
        point = scene.gripper[:, :3].T[:, :, None]
        held_NK = torch.arange(K, device=scene.held.device) == scene.held[:, None]
        sin, cos = sin_cos(torch.where(held_NK, scene.grasp[:, 2:3], scene.objects[..., 3]))
        zero = torch.zeros_like(sin)
        upright = torch.stack([cos, sin, zero, -sin, cos, zero, zero, zero, zero + 1]).view(3, 3, n, K)
        axes_K = torch.where(held_NK, _in_world(turned, upright), upright)
        carried = torch.stack([zero[:, 0], scene.grasp[:, 0], scene.grasp[:, 1]])[:, :, None]
        centre_K = torch.where(held_NK, point + _in_world(turned, carried[None])[0], scene.objects[..., :3].permute(2, 0, 1))

        gap = self._contact.gap(scene)[:, None]
        aside = gap * self._side_G
        parts = torch.stack([aside, torch.zeros_like(aside), self._up_G + 0 * aside])
        centre_G = point + _in_world(turned, parts[None])[0]
        joint = centre_G[:, :, 4]
        link = self._shoulder_3 - joint
        long = _norm(link)
        along = link / long
        level = torch.stack([along[1], -along[0], zero[:, 0]])
        level = level / _norm(level)
        arm = torch.stack([level, _cross(along, level), along])[..., None]
        centre_G = torch.cat([centre_G, (joint + link / 2)[..., None]], 2)
        axes_G = torch.cat([turned.expand(3, 3, n, G - 1), arm], 3)
        half_G = self._size_3G + torch.stack([0 * long, 0 * long, long / 2])[..., None] * self._is_arm_G
        closed = self._is_palm_G & scene.closed[:, None]
        colour_G = torch.where(closed, NAMES.index("closed"), self._colour_G)

        half_P = self._plate_half_3R[:, scene.plate_kind]
        centre_P = torch.cat([scene.plates.permute(2, 0, 1), half_P[2:]])
        robot = torch.ones_like(closed)
        return Solids(
            torch.cat([self._kind_S[scene.shape], self._plate_kind_R[scene.plate_kind], self._kind_G.expand(n, G)], 1),
            torch.cat([scene.colour, scene.plate_colour, colour_G], 1),
            torch.cat([scene.present, scene.plate_present, robot], 1),
            torch.cat([centre_K, centre_P, centre_G], 2),
            torch.cat([axes_K, self._eye_33.expand(3, 3, n, P), axes_G], 3),
            torch.cat([self._half_3S[:, scene.shape], half_P, half_G], 2),
        )


def _rotation(angles_N3: torch.Tensor) -> torch.Tensor:
    """[3, 3, N, 1]: the gripper's axes, x, y, z of each, after a roll about x, a pitch about y and a yaw about z."""
    (sr, sp, sy), (cr, cp, cy) = (v.unbind(1) for v in sin_cos(angles_N3))
    rows = (
        *(cy * cp, sy * cp, -sp),
        *(cy * sp * sr - sy * cr, sy * sp * sr + cy * cr, cp * sr),
        *(cy * sp * cr + sy * sr, sy * sp * cr - cy * sr, cp * cr),
    )
    return torch.stack(rows).view(3, 3, -1, 1)


def _in_world(axes: torch.Tensor, vectors: torch.Tensor) -> torch.Tensor:
    """[V, 3, N, M]: vectors given along these axes, in world coordinates."""
    return axes[0] * vectors[:, 0:1] + axes[1] * vectors[:, 1:2] + axes[2] * vectors[:, 2:3]


def _cross(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.stack([a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]])


def _norm(v: torch.Tensor) -> torch.Tensor:
    square = v * v
    return root(square[0] + square[1] + square[2])
