"""Success and parts of a task in a state."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from mmrl.api.simulators.reproducible import length
from mmrl_tabletop.physics import Contact
from mmrl_tabletop.scene import Scene
from mmrl_tabletop.settings import Settings
from mmrl_tabletop.things import ON_PLATE, PLATE_RADIUS

REACHED = 0.06
"""Greatest distance of the gripper's point from the target's axis, and above its top, metres."""
LIFTED, PICKED = 0.04, 0.1
"""Height of the target above its place on the table, metres: for `lifted`, and for success in `pick`."""
HELD = 5
"""Steps in a row (RL4VLA's consecutive grasp)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Judgement of N states."""

    parts: dict[str, torch.Tensor]
    """Name -> float32 [N], 0 or 1."""
    success_N: torch.Tensor
    """bool."""
    lost_N: torch.Tensor
    """bool: an object that the instruction names fell off the table."""
    potential_N: torch.Tensor
    """float32: 0.1 for a grasp, 0.1 for `held`, 1 for success, as in RL4VLA's reward."""


def judge(scene: Scene, settings: Settings, contact: Contact) -> Judgement:
    """The judgement of each state."""
    size = contact.body(scene)
    target = scene.objects[:, 0]
    dx, dy = scene.gripper[:, 0] - target[:, 0], scene.gripper[:, 1] - target[:, 1]
    there = scene.present[:, 0]
    near = length(dx, dy) < REACHED
    reached = near & (scene.gripper[:, 2] < target[:, 2] + size.half[:, 0] + REACHED) & there
    grasped = scene.held == 0
    height = target[:, 2] - size.half[:, 0]
    held = scene.held_steps >= HELD
    at_rest = there & ~grasped
    placed = torch.zeros_like(grasped)
    if settings.has_goal:
        gx, gy = target[:, 0] - scene.plates[:, 0, 0], target[:, 1] - scene.plates[:, 0, 1]
        over = length(gx, gy) < ON_PLATE * PLATE_RADIUS
        placed = at_rest & over & (scene.support[:, 0] < 0)
    elif settings.task == "stack":
        placed = at_rest & (scene.support[:, 0] == 1)
    success = {"reach": reached, "pick": grasped & (height > PICKED)}.get(settings.task, placed)
    parts = {"reached": reached, "grasped": grasped, "lifted": grasped & (height > LIFTED), "held": held, "placed": placed}
    return Judgement(
        parts={name: value.float() for name, value in parts.items()},
        success_N=success,
        lost_N=~scene.present[:, : settings.named].all(1),
        potential_N=0.1 * grasped.float() + 0.1 * held.float() + success.float(),
    )
