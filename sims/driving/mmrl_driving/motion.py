"""How cars move, and when they touch. N environments, M other cars. Metres, radians, seconds.

The driven car is a kinematic bicycle with its point in the middle between the axles (Kong et al., Kinematic and Dynamic Vehicle
Models for Autonomous Driving Control Design, 2015), as in highway-env. What is steered is the curvature of its way.
"""

from __future__ import annotations

import torch

from mmrl.api.simulators.reproducible import root, sin_cos, wrapped
from mmrl_driving.scene import Scene

LENGTH, WIDTH, HEIGHT = 4.5, 2.0, 1.5
"""Of every car."""
BASE = 2.8
"""Between the axles."""
TIGHT, GRIP = 0.23, 7.0
"""Greatest curvature, 1/m, and the greatest acceleration to a side, m/s^2, that steering asks for."""
SPEED_UP, SLOW_DOWN = 3.0, 6.0
"""Accelerations of an action of 1 and of -1, m/s^2."""
STEP, SUBSTEPS = 0.2, 4
"""Seconds of an action, and steps of motion in it."""
FOLLOW, HEADWAY = 6.0, 1.2
"""Other cars brake if something is ahead of them by less than so many metres, plus so many seconds of their way."""


def steered(car_N4: torch.Tensor, steering_N: torch.Tensor, pedal_N: torch.Tensor, fastest: float) -> torch.Tensor:
    """The car after an action. steering_N: -1 to 1, of the tightest turn at this speed, left above 0. pedal_N: -1 to 1."""
    x, y, direction, speed = car_N4.unbind(1)
    push = torch.where(pedal_N > 0, pedal_N * SPEED_UP, pedal_N * SLOW_DOWN)
    dt = STEP / SUBSTEPS
    for _ in range(SUBSTEPS):
        curvature = steering_N * (GRIP / (speed * speed).clamp(min=1e-6)).clamp(max=TIGHT)
        x, y, direction = bicycle(x, y, direction, speed, curvature * (BASE / 2), dt)
        speed = (speed + push * dt).clamp(0, fastest)
    return torch.stack([x, y, direction, speed], 1)


def bicycle(
    x: torch.Tensor, y: torch.Tensor, direction: torch.Tensor, speed: torch.Tensor, sin_slip: torch.Tensor, dt: float
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(x, y, direction) after dt seconds. sin_slip: sine of the angle between the car and its way, half the wheelbase times the
    curvature."""
    cos_slip = root(1 - sin_slip * sin_slip)
    sin, cos = sin_cos(direction)
    way_x, way_y = cos * cos_slip - sin * sin_slip, sin * cos_slip + cos * sin_slip
    return x + speed * way_x * dt, y + speed * way_y * dt, wrapped(direction + speed * sin_slip * (2 / BASE) * dt)


def driven_on(scene: Scene) -> torch.Tensor:
    """[N, M, 5]: the other cars after an action's time. Each keeps its lane and its speed, and brakes for what is ahead of it."""
    x, y, direction, speed, usual = scene.others.unbind(2)
    sin, cos = sin_cos(direction)
    for _ in range(SUBSTEPS):
        xs, ys = torch.cat([x, scene.car[:, :1]], 1), torch.cat([y, scene.car[:, 1:2]], 1)
        dx, dy = xs[:, None] - x[..., None], ys[:, None] - y[..., None]
        ahead, aside = dx * cos[..., None] + dy * sin[..., None], dy * cos[..., None] - dx * sin[..., None]
        there = torch.cat([scene.present, torch.ones_like(scene.present[:, :1])], 1)[:, None]
        near = (ahead > 0.5) & (ahead < FOLLOW + HEADWAY * speed[..., None]) & (aside.abs() < WIDTH) & there
        dt = STEP / SUBSTEPS
        speed = torch.where(near.any(2), speed - SLOW_DOWN * dt, torch.minimum(speed + 2.0 * dt, usual)).clamp(min=0)
        x, y = x + speed * cos * dt, y + speed * sin * dt
    return torch.stack([x, y, direction, speed, usual], 2)


def collided(scene: Scene) -> torch.Tensor:
    """bool [N]: the car touches another; two rectangles overlap unless one of their four axes separates them."""
    sin, cos = (v[:, None] for v in sin_cos(scene.car[:, 2]))
    its_sin, its_cos = sin_cos(scene.others[..., 2])
    dx, dy = scene.others[..., 0] - scene.car[:, :1], scene.others[..., 1] - scene.car[:, 1:2]
    same, across = (cos * its_cos + sin * its_sin).abs(), (cos * its_sin - sin * its_cos).abs()
    reach = {LENGTH: (LENGTH + LENGTH * same + WIDTH * across) / 2, WIDTH: (WIDTH + WIDTH * same + LENGTH * across) / 2}
    apart = torch.zeros_like(scene.present)
    for s, c in ((sin, cos), (its_sin, its_cos)):
        apart = apart | ((dx * c + dy * s).abs() > reach[LENGTH]) | ((dy * c - dx * s).abs() > reach[WIDTH])
    return (scene.present & ~apart).any(1)
