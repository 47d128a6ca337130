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
    speed = scene.car[:, 3]
    wanted = _wanted(scene, settings, routes, place.along)
    quick = ((wanted - speed) / 0.4).clamp(-SLOW_DOWN, SPEED_UP)
    quick = torch.where(quick > 0, quick / SPEED_UP, quick / SLOW_DOWN)
    ways = [(routes, place.left)]
    if settings.task == "motorway":  # it may also stay in the lane in which it is
        own = Routes(settings.task, (scene.car[:, 0] / LANE + 0.5).floor().clamp(-1, 1).long() + 1)
        ways.append((own, own.locate(scene.car[:, 0], scene.car[:, 1]).left))
    inside = (place.along > 0) & (settings.task == "crossing")
    steering, pedal = _pursuit(scene, routes, place.along), torch.where(inside, quick, -1.0)  # where nothing is free
    found = torch.zeros_like(inside)
    tries_NP = torch.minimum(quick[:, None], torch.tensor(PEDALS, device=quick.device))
    for way, left in ways:
        turn, meets_NP = _pursuit(scene, way, place.along), _meets(scene, way, place.along, left, tries_NP, wanted)
        for p in range(len(PEDALS)):
            free = ~found & ~meets_NP[:, p]
            steering, pedal = torch.where(free, turn, steering), torch.where(free, tries_NP[:, p], pedal)
            found = found | free
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
    scene: Scene, routes: Routes, along: torch.Tensor, left: torch.Tensor, pedals_NP: torch.Tensor, wanted: torch.Tensor
) -> torch.Tensor:
    """bool [N, P]: with this pedal the car would come too near to another one."""
    n, count = pedals_NP.shape
    push = torch.where(pedals_NP > 0, pedals_NP * SPEED_UP, pedals_NP * SLOW_DOWN)
    now, speed = along[:, None], scene.car[:, 3:4]
    limit = torch.maximum(wanted[:, None], speed)
    gone, fast = [], []
    for _ in range(int(HORIZON / MOMENT)):
        now = now + speed * MOMENT
        speed = torch.minimum((speed + push * MOMENT).clamp(min=0), limit)
        gone.append(now.expand(n, count))
        fast.append(speed)
    t = (torch.arange(len(gone), device=along.device) + 1) * MOMENT
    px, py, heading = (v.view(n, count, -1, 1) for v in routes.points(torch.stack(gone, 2).flatten(1)))
    sin, cos = sin_cos(heading)
    off = (left[:, None] * (1 - t / SIDEWAYS).clamp(min=0))[:, None, :, None]
    x, y, direction, its_speed, _ = (v[:, None, None] for v in scene.others.unbind(2))
    its_sin, its_cos = sin_cos(direction)
    way = its_speed * t[:, None]
    dx, dy = x + way * its_cos - px + off * sin, y + way * its_sin - py - off * cos
    same, across = (cos * its_cos + sin * its_sin).abs(), (cos * its_sin - sin * its_cos).abs()
    ahead, aside = dx * cos + dy * sin, dy * cos - dx * sin
    long = (LENGTH + LENGTH * same + WIDTH * across) / 2 + ROOM + 0.15 * torch.stack(fast, 2)[..., None]
    wide = (WIDTH + WIDTH * same + LENGTH * across) / 2 + ROOM * (0.5 + across)
    near = (ahead.abs() < long) & (aside.abs() < wide) & scene.present[:, None, None]
    return near.flatten(2).any(2)
