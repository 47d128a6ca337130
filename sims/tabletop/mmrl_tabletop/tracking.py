"""A reward by the pose of the named object relative to a demonstration's (Lum et al., Crossing the Human-Robot Embodiment Gap
with Sim-to-Real RL using One Human Demonstration, section 4; `compute_reward_jit` and `compute_keypoint_positions` in
human2sim2robot/sim_training of tylerlum/human2sim2robot @c468b75).

The demonstration is the expert's, from the same start. Only the path of the object is used, and the state from which the hand
touches it; its actions aren't. n or N environments, M moments. Metres, radians.
"""

from __future__ import annotations

import dataclasses

import torch

from mmrl.api.simulators.reproducible import root, sin_cos
from mmrl_tabletop import expert
from mmrl_tabletop.physics import TURN, Contact
from mmrl_tabletop.scene import Scene
from mmrl_tabletop.settings import Settings
from mmrl_tabletop.tasks import judge

SCALE = 10.0
"""The reward is exp(-SCALE * error): 0.3 for an error of 12 cm."""
CLOSE = 0.3
"""Greatest distance of the gripper from the object with a reward."""
APART = 0.2
"""Error above which the reference waits, and the reward is a tenth."""
WAITING = 0.1
KEYPOINTS = ((0.2, 0.0, 0.0), (0.0, 0.2, 0.0), (0.0, 0.0, 0.2))
"""Points that belong to an object, as seen from it."""
MOVED = 0.002
"""Metres by which the object has moved when the demonstration has touched it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Tracked:
    """How N objects follow their references."""

    reward_N: torch.Tensor
    """float32, 0 to 1."""
    phase_N: torch.Tensor
    """int64: the moment of the reference that the next step is compared with."""


def demonstrated(scene: Scene, settings: Settings, contact: Contact) -> Scene:
    """The scene just before the expert first moves the named object, with the path of the object from there as its reference."""
    count = settings.horizon
    states, begin = [scene], torch.zeros_like(scene.steps)
    for step in range(count):
        now = states[-1]
        action = expert.act(now, judge(now, settings, contact), settings, contact)
        turn = action[:, 3:6] * TURN if settings.dims == 7 else torch.zeros_like(now.gripper[:, 3:])
        after = contact.move(now, action[:, :3] * settings.step, turn, action[:, -1] > 0)
        after.held_steps = torch.where(after.held == 0, after.held_steps + 1, 0)
        away = after.objects[:, 0, :3] - scene.objects[:, 0, :3]
        dx, dy, dz = (away * away).unbind(1)
        still = (root(dx + dy + dz) < MOVED) & (after.held != 0)
        begin = torch.where(still & (begin == step), begin + 1, begin)
        states.append(after)
    chosen = scene
    for moment, state in enumerate(states[1:], 1):
        chosen = chosen.merged(begin == moment, state)
    path = torch.stack([state.objects[:, 0] for state in states], 1)
    later = (begin[:, None] + torch.arange(count + 1, device=begin.device)).clamp(max=count)
    reference = path.gather(1, later[..., None].expand(-1, -1, 4))
    fresh = {"steps": scene.steps, "held_steps": scene.held_steps, "potential": scene.potential}
    return dataclasses.replace(chosen, **fresh, reference=reference, phase=torch.ones_like(scene.steps))


def track(scene: Scene) -> Tracked:
    """The reward of each state, and the next moment of the reference."""
    last = scene.reference.shape[1] - 1
    goal = scene.reference.gather(1, scene.phase.clamp(max=last)[:, None, None].expand(-1, 1, 4))[:, 0]
    error = keypoint_error(scene.objects[:, 0], goal)
    away = scene.gripper[:, :3] - scene.objects[:, 0, :3]
    dx, dy, dz = (away * away).unbind(1)
    apart = error > APART
    paid = tracking_reward(error, root(dx + dy + dz), apart)
    return Tracked(paid, torch.where(apart, scene.phase, (scene.phase + 1).clamp(max=last)))


def keypoint_error(pose_N4: torch.Tensor, goal_N4: torch.Tensor) -> torch.Tensor:
    """float32 [N]: the mean distance of the object's keypoints from where they should be. Poses are x, y, z and the turn about
    the upright axis."""
    total = torch.zeros_like(pose_N4[:, 0])
    places = []
    for pose in (pose_N4, goal_N4):
        sin, cos = sin_cos(pose[:, 3])
        places.append([(pose[:, 0] + a * cos - b * sin, pose[:, 1] + a * sin + b * cos, pose[:, 2] + c) for a, b, c in KEYPOINTS])
    for mine, wanted in zip(*places, strict=True):
        dx, dy, dz = (m - w for m, w in zip(mine, wanted, strict=True))
        total = total + root(dx * dx + dy * dy + dz * dz)
    return total / len(KEYPOINTS)


def tracking_reward(error_N: torch.Tensor, distance_N: torch.Tensor, apart_N: torch.Tensor) -> torch.Tensor:
    """float32 [N]. error_N: of the keypoints. distance_N: of the gripper from the object. apart_N: bool, the reference waits."""
    near = (error_N.double() * -SCALE).exp().float()  # of float64, so that its bits are the same in every batch
    paid = torch.where(distance_N < CLOSE, near, 0.0)
    return torch.where(apart_N, WAITING * paid, paid)
