"""Success, parts and reward of a state.

The reward is the one that VLM-RL is compared with and corrected by (Huang et al., VLM-RL, section 4; `reward_fn5` in
carla_env/rewards.py of zihaosheng/VLM-RL).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from mmrl.api.simulators.reproducible import root, wrapped
from mmrl_driving.motion import collided
from mmrl_driving.routes import LANE, Place, Routes
from mmrl_driving.scene import HISTORY, Scene
from mmrl_driving.settings import Course, Settings

PENALTY = -10.0
"""Of a failure."""
CROOKED = math.radians(90)
"""Angle to the route at which `aligned` is 0."""
IN_LANE = 1.0
"""Greatest distance from the middle of the named lane in which a motorway ends well, metres."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Judgement of N states."""

    parts: dict[str, torch.Tensor]
    """Name -> float32 [N], 0 to 1."""
    success_N: torch.Tensor
    """bool."""
    failed_N: torch.Tensor
    """bool."""
    reward_N: torch.Tensor
    """float32."""


def judge(scene: Scene, settings: Settings, place: Place) -> Judgement:
    """The judgement of each state. place: of the car, as seen from its route."""
    course = settings.course
    centred, aligned, stable = kept(course, place.left.abs(), wrapped(scene.car[:, 2] - place.direction), swing(scene))
    gone = place.along - scene.first
    failed = scene.failed | collided(scene) | off(settings, scene, place)
    there = gone >= course.length
    if settings.task == "motorway":
        there = there & (place.left.abs() < IN_LANE)
    paid = pace(course, scene.car[:, 3]) * centred * aligned * stable
    parts = {
        "progress": (gone / course.length).clamp(0, 1),
        "centred": centred,
        "aligned": aligned,
        "stable": stable,
        "unharmed": (~failed).float(),
    }
    return Judgement(parts=parts, success_N=there & ~failed, failed_N=failed, reward_N=torch.where(failed, PENALTY, paid))


def pace(course: Course, speed: torch.Tensor) -> torch.Tensor:
    """The reward of speed: 1 from `slow` to `target`, falling to 0 at standstill and at `fast`, and below 0 beyond."""
    over = 1 - (speed - course.target) / (course.fast - course.target)
    return torch.where(speed < course.slow, speed / course.slow, torch.where(speed > course.target, over, 1.0))


def kept(
    course: Course, distance: torch.Tensor, angle: torch.Tensor, swing: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """How well the car keeps its way, 0 to 1 each: near the middle, along the road, without swinging."""
    centred = (1 - distance / course.wide).clamp(min=0)
    aligned = (1 - (angle / CROOKED).abs()).clamp(min=0)
    return centred, aligned, (1 - swing / course.swing).clamp(min=0)


def swing(scene: Scene) -> torch.Tensor:
    """float32 [N]: the standard deviation of the remembered distances; 0 before the first step."""
    count = scene.steps.clamp(1, HISTORY)
    number = torch.arange(HISTORY, device=count.device)
    mean = _sum(scene.aside) / count
    away = torch.where(number < count[:, None], scene.aside - mean[:, None], 0.0)
    return root(_sum(away * away) / count)


def off(settings: Settings, scene: Scene, place: Place) -> torch.Tensor:
    """bool [N]: off the route at a crossing, off the road on the motorway."""
    if settings.task == "motorway":
        return scene.car[:, 0].abs() > 1.5 * LANE
    return place.left.abs() > settings.course.wide


def located(scene: Scene, settings: Settings) -> tuple[Routes, Place]:
    """The routes of the environments, and where their cars are on them."""
    routes = Routes(settings.task, scene.route)
    return routes, routes.locate(scene.car[:, 0], scene.car[:, 1])


def _sum(values_NK: torch.Tensor) -> torch.Tensor:
    """The sum from first to last, whose bits are the same in every batch."""
    total, *rest = values_NK.unbind(1)
    for value in rest:
        total = total + value
    return total
