"""A scripted expert: what it does next is a function of the state, so that it can label any state that a policy reaches."""

from __future__ import annotations

import math

import torch

from mmrl_mjx.models import CUBE, HANDLE
from mmrl_mjx.tasks import Judgement, Scene, distance, is_grasped

OVER = 0.1
"""Metres above a cube at which the gripper travels."""
ALIGNED = 0.01
"""Greatest horizontal distance at which the gripper goes down."""
ABOVE, BEHIND = 0.37, 0.275
"""Heights of the gripper above a handle, and behind it."""
AHEAD = (math.cos(0.3), math.sin(0.3))
"""Of the angle by which the gripper pulls ahead of the door."""


def act(name: str, scene: Scene, judgement: Judgement, commands_N6: torch.Tensor, units: torch.Tensor) -> torch.Tensor:
    """float32 [N, A] in [-1, 1]. name: of the task. commands_N6: where the gripper is told to be. units: [A - 1], metres and
    radians of an action of 1."""
    hand = commands_N6[:, :3]
    if name == "reach":
        wish, close = scene.things[:, 0], torch.zeros_like(scene.closed)
    elif name == "pick":
        wish, close = _fetch(scene, hand)
    elif name == "stack":
        wish, close = _deliver(scene, judgement, hand)
    else:
        wish, close = _pull(scene)
    way = torch.cat([wish - hand, -commands_N6[:, 3:]], 1)[:, : len(units)] / units
    return torch.cat([way.clamp(-1, 1), torch.where(close, 1.0, -1.0)[:, None]], 1)


def _fetch(scene: Scene, hand: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Over the named cube, down, close, up: where the gripper should be [N, 3], and whether closed [N]. hand: where it is told to
    be."""
    cube, grip = scene.things[:, 0], scene.grip
    aside = distance(cube[:, :2], grip[:, :2])
    above = cube + cube.new_tensor((0.0, 0.0, OVER))
    low = (grip[:, 2] < cube[:, 2] + 0.7 * OVER) & (aside > 2 * ALIGNED)  # beside the cube: up first
    over = torch.where(low[:, None], torch.cat([grip[:, :2], above[:, 2:]], 1), above)
    wish = torch.where((aside < ALIGNED)[:, None], cube, over)
    held = is_grasped(scene)
    close = held | (distance(cube, grip) < 0.6 * CUBE)
    wish = torch.where(close[:, None], hand, wish)
    return torch.where(held[:, None], hand + hand.new_tensor((0.0, 0.0, 0.05)), wish), close


def _deliver(scene: Scene, judgement: Judgement, hand: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Up, over the other cube, down, let go, up."""
    cube, below, grip = scene.things[:, 0], scene.things[:, 1], scene.grip
    fetch, close = _fetch(scene, hand)
    held = is_grasped(scene)
    aside = distance(cube[:, :2], below[:, :2])
    over = aside < 0.4 * CUBE
    rest = below[:, 2] + 2 * CUBE + 0.002
    high = below[:, 2] + 2 * CUBE + 0.06
    up = cube[:, 2] > high - 0.03
    to = torch.where((up | over)[:, None], below[:, :2], cube[:, :2])
    wish = torch.cat([to, torch.where(over, rest, high)[:, None]], 1) + (grip - cube)
    down = over & (cube[:, 2] < rest + 0.004)
    on_top = (aside < 0.6 * CUBE) & ((cube[:, 2] - rest).abs() < 0.3 * CUBE) & ~held
    leave = hand + hand.new_tensor((0.0, 0.0, 0.03))
    wish = torch.where(held[:, None], wish, fetch)
    wish = torch.where(on_top[:, None] | judgement.success_N[:, None], leave, wish)
    return wish, torch.where(held, ~down, close & ~on_top)


def _pull(scene: Scene) -> tuple[torch.Tensor, torch.Tensor]:
    """With a closed gripper: up, over the place between the door and its handle, down, and along the handle's arc."""
    grip, hinge = scene.grip, scene.hinges[:, 0]
    deep, along = HANDLE
    x, y, _ = (scene.things[:, 0] - hinge).unbind(1)
    cos, sin = (deep * x + along * y) / (deep * deep + along * along), (deep * y - along * x) / (deep * deep + along * along)

    def there(cos: torch.Tensor, sin: torch.Tensor, z: float) -> torch.Tensor:
        """Behind the handle of a door that stands at this angle."""
        out = deep / 2
        return torch.stack([hinge[:, 0] + out * cos - along * sin, hinge[:, 1] + out * sin + along * cos, grip[:, 2] * 0 + z], 1)

    high, low = there(cos, sin, ABOVE), there(cos, sin, BEHIND)
    over = distance(grip[:, :2], low[:, :2]) < ALIGNED
    up = torch.cat([grip[:, :2], high[:, 2:]], 1)
    wish = torch.where((grip[:, 2] > ABOVE - 0.02)[:, None], high, up)
    wish = torch.where(over[:, None], low, wish)
    aside = (grip - hinge)[:, :2].unbind(1)
    out, far = cos * aside[0] + sin * aside[1], cos * aside[1] - sin * aside[0]
    hooked = (out > deep) & (out < 0) & ((far - along).abs() < 0.03) & (grip[:, 2] < BEHIND + 0.015)
    ahead = there(cos * AHEAD[0] - sin * AHEAD[1], sin * AHEAD[0] + cos * AHEAD[1], BEHIND)
    return torch.where(hooked[:, None], ahead, wish), torch.ones_like(scene.closed)
