"""The start of an episode, from its seed, as in training or in a variant of it."""

from __future__ import annotations

import math

import torch

from mmrl.api.simulators.noise import uniform
from mmrl_driving.judging import located
from mmrl_driving.language import HELD_OUT, TRAINED
from mmrl_driving.routes import CORNER, LANE
from mmrl_driving.scene import HISTORY, Scene
from mmrl_driving.settings import Settings

ROUTE, START, CARS, WORDS = range(1, 5)
"""Streams of random numbers of a seed."""


def spawn(settings: Settings, seed_n: torch.Tensor, variant: str | None) -> Scene:
    """The first states of n episodes. seed_n: int64."""
    n, device, course = len(seed_n), seed_n.device, settings.course
    which_n, lane_n = uniform(seed_n, ROUTE, shape=(2,)).unbind(1)
    route, lane = (which_n * 3).long(), (lane_n * 3).long()
    side, back, tilt, speed = uniform(seed_n, START, shape=(4,)).unbind(1)
    if settings.task == "crossing":
        x, y = LANE / 2 + 0.6 * (side - 0.5), -CORNER - 12 - 12 * back
        speed = (0.4 + 0.6 * speed) * course.target
    else:
        x, y = (lane - 1) * LANE + 0.6 * (side - 0.5), torch.zeros_like(side)
        speed = (0.7 + 0.3 * speed) * course.target
    direction = math.pi / 2 + 0.06 * (tilt - 0.5)
    nothing = torch.zeros_like(x)
    cars = settings.places if variant == "execution.dense-traffic" else settings.traffic
    words = uniform(seed_n, WORDS)
    first, count = (TRAINED, HELD_OUT) if variant == "semantic.instruction" else (0, settings.templates)
    scene = Scene(
        seed=seed_n,
        steps=torch.zeros_like(seed_n),
        car=torch.stack([x, y, direction, speed], 1),
        steering=nothing,
        others=_crossing(settings, seed_n) if settings.task == "crossing" else _motorway(settings, seed_n),
        present=(torch.arange(settings.places, device=device) < cars).expand(n, -1),
        route=route,
        first=nothing,
        aside=torch.zeros(n, HISTORY, device=device),
        failed=torch.zeros(n, dtype=torch.bool, device=device),
        reward=nothing,
        template=first + (words * count).long(),
        night=torch.full((n,), variant == "vision.night", device=device),
    )
    scene.first = located(scene, settings)[1].along
    return scene


def _crossing(settings: Settings, seed_n: torch.Tensor) -> torch.Tensor:
    """[n, M, 5]: cars from the left, from the right, from ahead, and one in front; in a second round each behind the first."""
    far, speed = uniform(seed_n, CARS, shape=(2, settings.places)).unbind(1)
    place = torch.arange(settings.places, device=seed_n.device)
    lane, round_ = place % 4, place // 4
    speed = 4 + 4 * speed[:, lane]  # those of one lane are equally fast
    gap = CORNER + 4 + 36 * far[:, lane] + round_ * 22
    half = LANE / 2
    x = torch.where(lane == 0, -gap, torch.where(lane == 1, gap, torch.where(lane == 2, -half, half)))
    ahead = -CORNER - 4 + 6 * far[:, lane] + round_ * 14
    y = torch.where(lane == 0, -half, torch.where(lane == 1, half, torch.where(lane == 2, gap, ahead)))
    direction = torch.tensor([0.0, math.pi, -math.pi / 2, math.pi / 2], device=seed_n.device)[lane].expand_as(x)
    return torch.stack([x, y, direction, speed, speed], 2)


def _motorway(settings: Settings, seed_n: torch.Tensor) -> torch.Tensor:
    """[n, M, 5]: slower cars ahead, lane by lane; those of one lane are equally fast."""
    far, speed = uniform(seed_n, CARS, shape=(2, settings.places)).unbind(1)
    place = torch.arange(settings.places, device=seed_n.device)
    lane, round_ = place % 3, place // 3
    speed = 14 + 6 * speed[:, lane]
    x = ((lane - 1) * LANE).expand_as(far)
    y = 20 + 30 * far[:, lane] + round_ * 45
    return torch.stack([x, y, torch.full_like(x, math.pi / 2), speed, speed], 2)
