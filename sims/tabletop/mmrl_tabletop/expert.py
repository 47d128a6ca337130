"""A scripted expert: its action is a function of the current state, so it can label any state that a policy reaches.

All tensors are [N]: positions in metres, or bool.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmrl.api.simulators.noise import uniform
from mmrl.api.simulators.reproducible import length, root, wrapped
from mmrl_tabletop.physics import FINGER, TURN, Contact
from mmrl_tabletop.scene import TIP, Scene
from mmrl_tabletop.settings import Settings
from mmrl_tabletop.tasks import Judgement

SLOP = 71
"""Stream of random numbers of a seed."""
CLEAR = 0.03
"""Metres between a moving gripper or object and the objects below it."""
ALIGNED = 0.012
"""Greatest horizontal distance in metres at which the gripper goes down on a target."""
CLOSE_ON = 0.025
"""The jaw closes when the gripper will be within this many metres of the target's centre."""
LET_GO = {"put-on": 0.03, "stack": 0.02}
"""Greatest horizontal distance from the goal, in metres, at which the target is put down."""
BEHIND = 0.022
"""Metres between the gripper and the object before a push."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The gripper's target position, at any distance, and whether it should be closed."""

    x: torch.Tensor
    y: torch.Tensor
    z: torch.Tensor
    close: torch.Tensor

    def where(self, yes: torch.Tensor, other: Wish) -> Wish:
        """This wish where `yes`, the other elsewhere."""
        mine, theirs = (self.x, self.y, self.z, self.close), (other.x, other.y, other.z, other.close)
        return Wish(*(torch.where(yes, a, b) for a, b in zip(mine, theirs, strict=True)))


def act(scene: Scene, judgement: Judgement, settings: Settings, contact: Contact) -> torch.Tensor:
    """float32 [N, A] in [-1, 1]. With slop, the gripper closes too early and its motion is noisy."""
    x, y, z = scene.gripper[:, :3].unbind(1)
    never = torch.zeros_like(scene.closed)
    away = Wish(x, y, z + settings.step, never)
    match settings.task:
        case "push":
            wish = _push(scene, settings, contact)
        case "reach":
            wish = _over(scene, settings, contact)
        case "pick":
            wish = Wish(x, y, z + settings.step, ~never).where(scene.held == 0, _fetch(scene, settings, contact))
        case _:
            wish = _deliver(scene, settings, contact).where(scene.held == 0, _fetch(scene, settings, contact))
            wish = away.where(judgement.success_N, wish)
    wish = away.where(scene.held > 0, wish)  # it holds the wrong object
    moves = torch.stack([wish.x - x, wish.y - y, wish.z - z], 1) / settings.step
    turns = -wrapped(scene.gripper[:, 3:]) / TURN
    if settings.expert_slop:
        shaken = uniform(scene.seed, SLOP, scene.steps, shape=(3,)) * 2 - 1
        moves = moves + 0.6 * settings.expert_slop * shaken
    grip = torch.where(wish.close, 1.0, -1.0)[:, None]
    return torch.cat((moves, grip) if settings.dims == 4 else (moves, turns, grip), 1).clamp(-1, 1)


def _over(scene: Scene, settings: Settings, contact: Contact) -> Wish:
    """Above the target; down on it, with the target between the fingers, when straight above."""
    x, y, z = scene.gripper[:, :3].unbind(1)
    tx, ty, tz, _ = scene.objects[:, 0].unbind(1)
    half = contact.body(scene).half[:, 0]
    beside = length(tx - x, ty - y)
    if settings.task == "reach":
        down, clear = tz + half + CLEAR, tz + half + TIP + 0.012 + CLEAR
    else:
        down, clear = (tz - 0.1 * half).clamp(min=TIP), tz + half + TIP + 0.012
    aligned = beside < ALIGNED * (1 + 3 * settings.expert_slop)
    safe = torch.where(beside < 0.2, _tallest(scene, contact) + TIP + 0.01, clear)
    low = (z < safe - CLEAR) & ~aligned  # low and beside the target: up first
    travel = torch.where(low, safe, torch.maximum(clear, torch.minimum(z, safe)))
    return Wish(
        torch.where(low, x, tx), torch.where(low, y, ty), torch.where(aligned, down, travel), torch.zeros_like(scene.closed)
    )


def _fetch(scene: Scene, settings: Settings, contact: Contact) -> Wish:
    """Over the target, down, then close."""
    wish, slop, step = _over(scene, settings, contact), settings.expert_slop, settings.step
    tx, ty, tz, _ = scene.objects[:, 0].unbind(1)
    ends = zip(scene.gripper[:, :3].unbind(1), (wish.x, wish.y, wish.z), strict=True)
    x, y, z = (_after(now, to, step) for now, to in ends)
    off = (tx - x) * (tx - x) + (ty - y) * (ty - y) + (tz - z) * (tz - z)
    near = (root(off) < CLOSE_ON + 0.05 * slop) & (z < tz + 0.5 * contact.body(scene).half[:, 0] + 0.03 * slop)
    return Wish(wish.x, wish.y, wish.z, near & ~scene.closed)


def _deliver(scene: Scene, settings: Settings, contact: Contact) -> Wish:
    """Up, over the goal, down, then release."""
    size, step, near = contact.body(scene), settings.step, LET_GO[settings.task]
    x, y, z = scene.gripper[:, :3].unbind(1)
    tx, ty, tz, _ = scene.objects[:, 0].unbind(1)
    half = size.half[:, 0]
    if settings.task == "stack":
        gx, gy, top = scene.objects[:, 1, 0], scene.objects[:, 1, 1], scene.objects[:, 1, 2] + size.half[:, 1]
    else:
        (gx, gy), top = scene.plates[:, 0].unbind(1), contact.plate_tops(scene)[:, 0]
    rest, carry = top + half + 0.004, _tallest(scene, contact, but=0) + CLEAR + half
    dx, dy = gx - tx, gy - ty
    over = length(dx, dy) < near
    free = over | (tz > carry - 0.02)
    to_x, to_y = torch.where(free, x + dx, x), torch.where(free, y + dy, y)
    to_z = z - tz + torch.where(over, rest, carry)
    off = length(x + dx - _after(x, to_x, step), y + dy - _after(y, to_y, step))
    low = _after(z, to_z, step) - z + tz < rest + CLEAR
    return Wish(to_x, to_y, to_z, ~(over & low & (off < near)))


def _push(scene: Scene, settings: Settings, contact: Contact) -> Wish:
    """With a closed gripper: up, over the place behind the target (as seen from the mark), down; then push."""
    size, step = contact.body(scene), settings.step
    x, y, z = scene.gripper[:, :3].unbind(1)
    tx, ty, tz, _ = scene.objects[:, 0].unbind(1)
    gx, gy = scene.plates[:, 0].unbind(1)
    distance = length(gx - tx, gy - ty)
    ux, uy = (gx - tx) / distance.clamp(min=1e-6), (gy - ty) / distance.clamp(min=1e-6)
    touch = size.contact[:, 0] + FINGER + 0.016
    low, safe = (tz - 0.3 * size.half[:, 0]).clamp(min=TIP), _tallest(scene, contact) + TIP + 0.02
    back_x, back_y = tx - (touch + BEHIND) * ux, ty - (touch + BEHIND) * uy
    along, across = (x - tx) * ux + (y - ty) * uy, (y - ty) * ux - (x - tx) * uy
    pushing = (along < 0.03 - touch) & (across.abs() < 0.02) & (z < tz + 0.5 * size.half[:, 0])
    way_x, way_y = gx - ux * touch - x, gy - uy * touch - y
    share = step / torch.maximum(way_x.abs(), way_y.abs()).clamp(min=step)  # in a straight line, with a limit per axis
    there, high = length(back_x - x, back_y - y) < 0.015, z > safe - 0.02
    closed = scene.held < 0
    go = Wish(torch.where(high, back_x, x), torch.where(high, back_y, y), safe, closed)
    go = Wish(back_x, back_y, low, closed).where(there, go)
    go = Wish(x + way_x * share, y + way_y * share, low, closed).where(pushing, go)
    return Wish(x, y, z, closed).where(distance < 0.02, go)


def _tallest(scene: Scene, contact: Contact, but: int = -1) -> torch.Tensor:
    """The height of the highest object, except the one at place `but`."""
    other = torch.arange(scene.shape.shape[1], device=scene.shape.device) != but
    return torch.where(scene.present & other, scene.objects[..., 2] + contact.body(scene).half, 0.0).amax(1)


def _after(now: torch.Tensor, to: torch.Tensor, step: float) -> torch.Tensor:
    """A coordinate after a step."""
    return now + (to - now).clamp(-step, step)
