"""Quasi-static contact: no momentum; overlapping objects are moved apart, unsupported objects fall.

Pushes treat an object as an upright disc. N environments, K objects, P receptacles, B pushing bodies: two fingers, the palm, the
held object. Sums have few terms, added one after the other, so that their last bit doesn't depend on N.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch

from mmrl.api.simulators.reproducible import length, sin_cos, wrapped
from mmrl_tabletop.scene import CEILING, REACH, TABLE, TIP, Scene, pick
from mmrl_tabletop.things import PLATE_HALF, PLATE_RADIUS, SHAPES

Pair = tuple[torch.Tensor, torch.Tensor]
Places = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

SUBSTEP = 0.02
"""Greatest motion of the gripper between two contact checks, in metres."""
TURN = 0.3
"""Radians of a rotation action of 1."""
TILT = 0.4
"""Greatest roll and pitch, in radians."""
SLACK = 0.004
"""Tolerance of heights in metres for touching."""
MARGIN = 0.02
"""Metres. A finger or a held object that comes down on less than this of an object's edge slips off; on more, it stops."""
FINGER = 0.012
"""Radius of a finger."""
STEADY = 0.75
"""An object stays on another if its centre is within this share of the other's radius."""
GRASP_ALONG, GRASP_BELOW, GRASP_ABOVE = 0.6, 0.7, 0.85
"""In radii of an object: how far beside, below and above the object's centre the gripper can grasp it."""


@dataclass(frozen=True, slots=True)
class Body:
    """Sizes of the objects of a scene, metres, float32 [N, K]."""

    half: torch.Tensor
    """Half the height."""
    contact: torch.Tensor
    """Radius of the disc."""
    width: torch.Tensor
    """Half the width between the fingers."""
    flat: torch.Tensor
    """bool: another object can stand on it."""
    fold: torch.Tensor
    """int64: see `Shape.fold`."""


class Contact:
    """The constants of shapes on a device, and the physics of a step."""

    def __init__(self, radius: float, step: float, device: torch.device) -> None:
        """radius: of the objects, metres. step: greatest motion of the gripper along an axis, metres."""

        def column(values: list[float]) -> torch.Tensor:
            return torch.tensor(values, device=device)

        self.radius = radius
        self._substeps = math.ceil(step / SUBSTEP - 1e-9)
        self.open = radius + 0.03
        """Distance of an open finger from the gripper's point."""
        self.palm = 1.7 * radius
        """Height of the palm above the gripper's point."""
        self._half_S = column([s.half[2] * radius for s in SHAPES])
        self._contact_S = column([s.contact * radius for s in SHAPES])
        self._width_S = column([s.half[0] * radius for s in SHAPES])
        self._flat_S = torch.tensor([s.flat for s in SHAPES], device=device)
        self._fold_S = torch.tensor([s.fold for s in SHAPES], device=device)
        self._plate_top_R = column([2 * h for h in PLATE_HALF])

    def body(self, scene: Scene) -> Body:
        """The sizes of a scene's objects."""
        shape = scene.shape
        return Body(self._half_S[shape], self._contact_S[shape], self._width_S[shape], self._flat_S[shape], self._fold_S[shape])

    def plate_tops(self, scene: Scene) -> torch.Tensor:
        """[N, P]: heights of the receptacles, metres."""
        return self._plate_top_R[scene.plate_kind]

    def gap(self, scene: Scene) -> torch.Tensor:
        """[N]: distance of each finger from the gripper's point."""
        width_N = pick(self.body(scene).width, scene.held) + FINGER
        closed_N = torch.where(scene.held >= 0, width_N, width_N * 0 + 0.016)
        return torch.where(scene.closed, closed_N, closed_N * 0 + self.open)

    def move(self, scene: Scene, move_N3: torch.Tensor, turn_N3: torch.Tensor, close_N: torch.Tensor) -> Scene:
        """The next state: the gripper moves (metres) and rotates (radians of roll, pitch, yaw), then closes or opens."""
        size = self.body(scene)
        tops_NP = self.plate_tops(scene)
        angles_N3 = scene.gripper[:, 3:] + turn_N3
        tilt_N2 = angles_N3[:, :2].clamp(-TILT, TILT)
        yaw_N = wrapped(angles_N3[:, 2])
        axis = sin_cos(yaw_N)
        scene = replace(scene)
        xy, z, turned = self._push(scene, size, tops_NP, move_N3 / self._substeps, axis)
        turned = self._carried_yaw(scene, yaw_N, turned)
        scene = self._close(scene, size, axis, yaw_N, xy, z, turned, close_N)
        xy, z, support = _settled(scene, size, tops_NP)
        there = scene.present & (xy.abs() <= TABLE).all(0) | _is_held(scene)
        return replace(
            scene,
            gripper=torch.cat([scene.gripper[:, :3], tilt_N2, yaw_N[:, None]], 1),
            objects=torch.stack([xy[0], xy[1], z, scene.objects[..., 3]], -1),
            support=support,
            present=there,
        )

    def _push(self, scene: Scene, size: Body, tops_NP: torch.Tensor, move_N3: torch.Tensor, axis: Pair) -> Places:
        """The gripper moves, stops on objects below it and pushes objects aside. The scene's gripper is replaced.

        Returns x and y [2, N, K], z and yaw [N, K] of the objects.
        """
        sin, cos = axis
        xy, z, turned = _places(scene)
        gap, (beside, above, _) = self.gap(scene), scene.grasp.unbind(1)
        held_NK, is_held = _is_held(scene), scene.held >= 0
        free = (scene.present & ~held_NK)[:, None]
        half, contact = pick(size.half, scene.held), pick(size.contact, scene.held)
        flat, none = torch.zeros_like(gap), torch.full_like(gap, -9.0)
        offset = torch.stack(
            [
                torch.stack([-gap * cos, gap * cos, flat, -beside * sin], 1),
                torch.stack([-gap * sin, gap * sin, flat, beside * cos], 1),
            ]
        )
        radius = torch.stack([flat + FINGER, flat + FINGER, flat + 0.5 * self.radius, torch.where(is_held, contact, none)], 1)
        low = torch.stack([flat - TIP, flat - TIP, flat + self.palm, above - half], 1)
        high = torch.stack([flat + self.palm, flat + self.palm, flat + self.palm + 0.05, above + half], 1)
        meeting = radius[:, :, None] + size.contact[:, None]
        plates = scene.plates.permute(2, 0, 1)
        near_plate = PLATE_RADIUS + 0.5 * contact[:, None]
        rests, below = scene.support >= 0, scene.support.clamp(min=0).expand(2, -1, -1)
        pairs = _pairs(scene, size, held_NK)

        at, height = scene.gripper[:, :2].T, scene.gripper[:, 2]
        for _ in range(self._substeps):
            before = height
            at = (at + move_N3[:, :2].T).clamp(-REACH, REACH)
            height = (height + move_N3[:, 2]).clamp(TIP, CEILING)
            bodies = at[:, :, None] + offset
            away = xy[:, :, None] - bodies[..., None]
            distance = length(*away)
            overlap = meeting - distance
            top, bottom = (z + size.half)[:, None], (z - size.half)[:, None]
            over = (before[:, None] + low)[:, :, None] >= top - SLACK
            stop = over & free & (overlap > MARGIN)
            floor = torch.where(stop, top - low[:, :, None], -9.0).amax((1, 2))
            on_plate = scene.plate_present & (length(*(bodies[:, :, 3:] - plates)) < near_plate)
            ground = torch.where(on_plate, tops_NP, 0.0).amax(1) - (above - half)
            height = torch.maximum(torch.maximum(height, floor), torch.where(is_held, ground, none))

            lowest, highest = (height[:, None] + low)[:, :, None], (height[:, None] + high)[:, :, None]
            meets = (lowest < top - SLACK) & (highest > bottom + SLACK) & free
            shift = _sum(away * (overlap.clamp(min=0) * meets / distance.clamp(min=1e-6)), 2)
            carried = shift.gather(2, below) * rests  # an object moves with its support, unless pushed further
            shift = torch.where(length(*carried) > length(*shift), carried, shift)
            xy = torch.where(held_NK, bodies[:, :, 3:], xy + shift)
            z = torch.where(held_NK, (height + above)[:, None], z)
            xy = _apart(xy, z, pairs)
        scene.gripper = torch.cat([at.T, height[:, None], scene.gripper[:, 3:]], 1)
        return xy, z, turned

    def _carried_yaw(self, scene: Scene, yaw_N: torch.Tensor, turned_NK: torch.Tensor) -> torch.Tensor:
        return torch.where(_is_held(scene), wrapped(yaw_N + scene.grasp[:, 2])[:, None], turned_NK)

    def _close(
        self,
        scene: Scene,
        size: Body,
        axis: Pair,
        yaw: torch.Tensor,
        xy: torch.Tensor,
        z: torch.Tensor,
        turned: torch.Tensor,
        close_N: torch.Tensor,
    ) -> Scene:
        """The jaw closes on an object between the fingers, or releases it."""
        (sin, cos), (x, y, height) = axis, scene.gripper[:, :3].unbind(1)
        away_x, away_y, up = xy[0] - x[:, None], xy[1] - y[:, None], z - height[:, None]
        across = away_x * cos[:, None] + away_y * sin[:, None]
        along = away_y * cos[:, None] - away_x * sin[:, None]
        R = self.radius
        inside = (across.abs() < self.open) & (along.abs() < GRASP_ALONG * R) & scene.present
        inside = inside & (-up < GRASP_ABOVE * R) & (up < GRASP_BELOW * R)
        nearest = torch.where(inside, across * across + along * along + up * up, 9.0).argmin(1)
        grasped = close_N & ~scene.closed & inside.any(1)
        held = torch.where(close_N, torch.where(grasped, nearest, scene.held), -1)
        fold = pick(size.fold, nearest)
        relative = pick(turned, nearest) - yaw
        aligned = torch.where(fold > 0, relative - wrapped(relative, 2 * math.pi / fold.clamp(min=1)), wrapped(relative))
        grasp = torch.stack([pick(along, nearest), pick(up, nearest), aligned], 1)
        grasp = torch.where(grasped[:, None], grasp, scene.grasp)
        scene = replace(scene, held=held, grasp=grasp, closed=close_N)
        held_NK, beside = _is_held(scene), grasp[:, 0]
        centred = torch.stack([x - beside * sin, y + beside * cos])[:, :, None]
        xy = torch.where(held_NK, centred, xy)
        scene.objects = torch.stack([xy[0], xy[1], z, self._carried_yaw(scene, yaw, turned)], -1)
        return scene


def _settled(scene: Scene, size: Body, tops_NP: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x and y, z, supporting object): objects that aren't held fall onto the table, a receptacle or an object, then overlapping
    ones move apart."""
    xy, z, _ = _places(scene)
    held_NK = _is_held(scene)
    z, _ = _fallen(scene, size, tops_NP, xy, z, held_NK)
    pairs = _pairs(scene, size, held_NK)
    for _ in range(3):
        xy = _apart(xy, z, pairs)
    z, support = _fallen(scene, size, tops_NP, xy, z, held_NK)
    return xy, z, support


def _fallen(
    scene: Scene, size: Body, tops_NP: torch.Tensor, xy: torch.Tensor, z: torch.Tensor, held_NK: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """(height, supporting object) of every object. [N, K, K]: the first object on the second."""
    top = z + size.half
    can = (size.flat & scene.present & ~held_NK)[:, None]
    near = length(*(xy[..., None] - xy[:, :, None])) < STEADY * size.contact[:, None]
    below = top[:, None] <= (z - size.half)[:, :, None] + SLACK
    height, which = torch.where(can & near & below & ~_itself(z), top[:, None], -9.0).max(2)
    on_plate = length(*(xy[..., None] - scene.plates.permute(2, 0, 1)[:, :, None])) < PLATE_RADIUS
    ground = torch.where(on_plate & scene.plate_present[:, None], tops_NP[:, None], 0.0).amax(2)
    stands = (height > ground) & ~held_NK
    rest = torch.where(held_NK, z, torch.maximum(height, ground) + size.half)
    return rest, torch.where(stands, which, -1)


def _pairs(scene: Scene, size: Body, held_NK: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Inputs of `_apart` for each pair of objects, [N, K, K]: least distance, least difference of heights, the first's share of
    the motion."""
    there = scene.present[:, :, None] & scene.present[:, None] & ~_itself(held_NK)
    share = torch.where(held_NK[:, :, None], 0.0, torch.where(held_NK[:, None], 1.0, 0.5))
    distance = size.contact[:, :, None] + size.contact[:, None]
    return distance, size.half[:, :, None] + size.half[:, None] - SLACK, share * there


def _apart(xy: torch.Tensor, z: torch.Tensor, pairs: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Moves overlapping objects apart, each by half, or one alone if the other is held."""
    least, heights, share = pairs
    number = torch.arange(z.shape[1], device=z.device)
    away = xy[..., None] - xy[:, :, None] + 1e-5 * (number[:, None] - number)  # a direction for objects at the same place, too
    distance = length(*away)
    level = (z[:, :, None] - z[:, None]).abs() < heights
    unit = (least - distance).clamp(min=0) * level * share / distance.clamp(min=1e-6)
    return xy + _sum(away * unit, 3)


def _places(scene: Scene) -> Places:
    x, y, z, turned = scene.objects.unbind(-1)
    return torch.stack([x, y]), z, turned


def _is_held(scene: Scene) -> torch.Tensor:
    """bool [N, K]."""
    return torch.arange(scene.shape.shape[1], device=scene.held.device) == scene.held[:, None]


def _itself(values_NK: torch.Tensor) -> torch.Tensor:
    return torch.eye(values_NK.shape[1], dtype=torch.bool, device=values_NK.device)


def _sum(values: torch.Tensor, dim: int) -> torch.Tensor:
    """The sum from first to last."""
    total, *rest = values.unbind(dim)
    for value in rest:
        total = total + value
    return total
