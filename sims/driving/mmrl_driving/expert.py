"""A scripted driver: it steers to a point ahead of it on its way, and takes the quickest of a few speeds that the next seconds
allow, if the others go on as they are. Its action is a function of the current state. N environments, M other cars, T moments.
"""

from __future__ import annotations


import torch

from mmrl.api.simulators.reproducible import root, sin_cos
from mmrl_driving.judging import located
from mmrl_driving.motion import GRIP, LENGTH, SLOW_DOWN, SPEED_UP, TIGHT, WIDTH
from mmrl_driving.routes import LANE, Routes
from mmrl_driving.scene import Scene
from mmrl_driving.settings import Settings

HORIZON, MOMENT = 4.0, 0.25
"""Seconds that it looks ahead, and between two moments of them."""
PEDALS = (1.0, 0.0, -0.3, -1.0)
"""What it tries, the quickest first."""
ROOM = 0.9
"""Metres that it leaves free around a car."""
TURN_SPEED = 5.5
"""In a turn, m/s."""
SIDEWAYS = 2.0
"""Seconds in which it is on its way again."""


def act(scene: Scene, settings: Settings) -> torch.Tensor:
    """float32 [N, 2], in [-1, 1]: steering and pedal."""
    routes, place = located(scene, settings)
    ways = (place.left, torch.zeros_like(place.left)) if settings.task == "motorway" else (place.left,)
    aims = [(Routes(settings.task, scene.route), place.along, place.left)]
    if settings.task == "motorway":  # it may stay in the lane in which it is
        lane = (scene.car[:, 0] / LANE + 0.5).floor().clamp(-1, 1).long() + 1
        own = Routes(settings.task, lane)
        aims.append((own, place.along, own.locate(scene.car[:, 0], scene.car[:, 1]).left))
    assert len(aims) == len(ways)
    speed = scene.car[:, 3]
    wanted = _wanted(scene, settings, routes, place.along)
    quick = ((wanted - speed) / 0.4).clamp(-SLOW_DOWN, SPEED_UP)
    quick = torch.where(quick > 0, quick / SPEED_UP, quick / SLOW_DOWN)
    steering, pedal = torch.zeros_like(speed), torch.full_like(speed, -1.0)
    inside = (place.along > 0) & (settings.task == "crossing")
    pedal = torch.where(inside, quick, pedal)  # where nothing is free, it leaves the crossing
    found = torch.zeros_like(inside)
    for number, (way, along, left) in enumerate(aims):
        turn = _pursuit(scene, way, along)
        for choice in PEDALS:
            tried = torch.minimum(quick, torch.full_like(quick, choice))
            free = ~found & ~_meets(scene, way, along, left, tried, wanted)
            steering, pedal = torch.where(free, turn, steering), torch.where(free, tried, pedal)
            found = found | free
        if number == 0:
            steering = torch.where(found, steering, turn)
    return torch.stack([steering, pedal], 1).clamp(-1, 1)


def _wanted(scene: Scene, settings: Settings, routes: Routes, along: torch.Tensor) -> torch.Tensor:
    """The speed without others, m/s: slower before a turn and in it."""
    target = torch.full_like(along, settings.course.target)
    if settings.task == "motorway":
        return target
    before = root((TURN_SPEED * TURN_SPEED + 3.0 * (-along).clamp(min=0)).clamp(min=0))
    turning = (routes.turn != 0) & (along < routes.arc)
    return torch.where(turning, torch.minimum(target, before), target)


def _pursuit(scene: Scene, routes: Routes, along: torch.Tensor) -> torch.Tensor:
    """Steering to the point of the route that is ahead by a second's way or so (pure pursuit)."""
    x, y, direction, speed = scene.car.unbind(1)
    reach = torch.maximum(2.5 + 0.25 * speed, 1.2 * speed * (speed > 10))
    px, py, _ = (v[:, 0] for v in routes.points((along + reach)[:, None]))
    sin, cos = sin_cos(direction)
    dx, dy = px - x, py - y
    aside = dy * cos - dx * sin
    curvature = 2 * aside / (dx * dx + dy * dy).clamp(min=1.0)
    return (curvature / (GRIP / (speed * speed).clamp(min=1e-6)).clamp(max=TIGHT)).clamp(-1, 1)


def _meets(
    scene: Scene,
    routes: Routes,
    along: torch.Tensor,
    left: torch.Tensor,
    pedal: torch.Tensor,
    wanted: torch.Tensor,
) -> torch.Tensor:
    """bool [N]: with this pedal the car would come too near to another one."""
    speed = scene.car[:, 3]
    push = torch.where(pedal > 0, pedal * SPEED_UP, pedal * SLOW_DOWN)
    x, y, direction, fast, _ = scene.others.unbind(2)
    its_sin, its_cos = sin_cos(direction)
    meets = torch.zeros_like(scene.failed)
    for moment in range(1, int(HORIZON / MOMENT) + 1):
        limit = torch.maximum(wanted, speed)
        along = along + speed * MOMENT
        speed = (speed + push * MOMENT).clamp(min=0)
        speed = torch.minimum(speed, limit)
        t = moment * MOMENT
        px, py, heading = (v[:, 0] for v in routes.points(along[:, None]))
        sin, cos = sin_cos(heading)
        off = left * max(0.0, 1 - t / SIDEWAYS)
        px, py = px - off * sin, py + off * cos
        dx, dy = x + fast * its_cos * t - px[:, None], y + fast * its_sin * t - py[:, None]
        same = (cos[:, None] * its_cos + sin[:, None] * its_sin).abs()
        across = (cos[:, None] * its_sin - sin[:, None] * its_cos).abs()
        ahead, aside = dx * cos[:, None] + dy * sin[:, None], dy * cos[:, None] - dx * sin[:, None]
        long = (LENGTH + LENGTH * same + WIDTH * across) / 2 + ROOM + 0.15 * speed[:, None]
        wide = (WIDTH + WIDTH * same + LENGTH * across) / 2 + ROOM * (0.5 + across)
        meets = meets | ((ahead.abs() < long) & (aside.abs() < wide) & scene.present).any(1)
    return meets


