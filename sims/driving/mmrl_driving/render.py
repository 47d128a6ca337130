"""Pictures: rays from a camera on the car meet the ground, or other cars, which are boxes. n environments, S x S pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from mmrl.api.simulators.reproducible import sin_cos
from mmrl_driving.motion import HEIGHT, LENGTH, WIDTH
from mmrl_driving.routes import is_marked, is_road
from mmrl_driving.scene import Scene

GRASS, ASPHALT, MARK, SKY = (96, 132, 74), (86, 88, 94), (236, 236, 232), (158, 190, 222)
OWN, OTHERS = (70, 200, 110), ((52, 92, 208), (212, 60, 56), (228, 172, 40), (150, 84, 190))
"""Colours of the driven car and, in turn, of the others."""
WINDOW = 44.0
"""Metres that the camera from above sees along each side; the car is a quarter of them above the lower edge."""
EYE, DOWN, VIEW = (0.6, 0.0, 1.7), 0.16, 80.0
"""The front camera's place on the car, metres; its tilt, radians; its field of view, degrees."""
DARK = 0.3
"""Brightness at night beyond the headlights."""
SIDE_SHADE, END_SHADE = 0.62, 0.8
CHUNK = {"cpu": 2**18, "cuda": 2**24}
"""Pixels that are computed at once."""


class Renderer:
    """Renders the cameras at one size. Rays are the same for every environment, in the car's coordinates: ahead, left, up."""

    def __init__(self, task: str, names: tuple[str, ...], size: int, device: torch.device) -> None:
        """size: side of the pictures in pixels."""
        self.task, self.names, self.size, self.device = task, names, size, device
        self._rays = {name: _rays(name, size, device) for name in names}
        self._colours = torch.tensor(OTHERS, device=device, dtype=torch.float32)

    def __call__(self, scene: Scene) -> dict[str, torch.Tensor]:
        """Camera -> uint8 [n, size, size, 3]."""
        n = len(scene.seed)
        if not n:
            return {name: torch.zeros(0, self.size, self.size, 3, dtype=torch.uint8, device=self.device) for name in self.names}
        count = max(1, CHUNK.get(self.device.type, CHUNK["cpu"]) // self.size**2)
        pieces = [scene.rows(ids) for ids in torch.arange(n, device=self.device).split(count)]
        return {name: torch.cat([self._picture(name, piece) for piece in pieces]) for name in self.names}

    def _picture(self, name: str, scene: Scene) -> torch.Tensor:
        origin, ray = self._rays[name]
        x, y, direction, _ = (v[:, None, None] for v in scene.car.unbind(1))
        sin, cos = sin_cos(direction)
        ground = ray[2] < -1e-4
        depth = torch.where(ground, -origin[2] / torch.where(ground, ray[2], -1.0), math.inf)
        far = torch.where(ground, depth, 0.0)
        ahead, left = origin[0] + far * ray[0], origin[1] + far * ray[1]
        gx, gy = x + ahead * cos - left * sin, y + ahead * sin + left * cos
        road = is_road(self.task, gx, gy)
        shown = _where(road & is_marked(self.task, gx, gy), MARK, _where(road, ASPHALT, _colour(GRASS, gx)))
        shown = _where(ground, shown, SKY)
        depth = depth.expand_as(gx)
        if name == "top":
            own = (ahead.abs() < LENGTH / 2) & (left.abs() < WIDTH / 2)
            shown = _where(own, OWN, shown)
        for m in range(scene.others.shape[1]):
            depth, shown = self._box(m, scene, (sin, cos), origin, ray, depth, shown)
        lit = (ahead > 0) & (ahead < 22) & (left.abs() < 2 + 0.3 * ahead) & ground
        light = torch.where(scene.night[:, None, None] & ~lit, DARK, 1.0)
        return (torch.stack(shown, -1) * light[..., None]).round().clamp(0, 255).to(torch.uint8)

    def _box(
        self,
        m: int,
        scene: Scene,
        turned: tuple[torch.Tensor, torch.Tensor],
        origin: tuple[torch.Tensor, ...],
        ray: tuple[torch.Tensor, ...],
        depth: torch.Tensor,
        shown: tuple[torch.Tensor, ...],
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
        """Draws the m-th other car: a ray meets a box between its last entry into, and its first exit from, three slabs."""
        sin, cos = turned
        x, y, direction = (scene.others[:, m, i][:, None, None] for i in range(3))
        its_sin, its_cos = sin_cos(direction)
        c, s = cos * its_cos + sin * its_sin, sin * its_cos - cos * its_sin  # the camera's axes as seen from the box
        dx, dy = scene.car[:, 0][:, None, None] - x, scene.car[:, 1][:, None, None] - y
        from_x, from_y = dx * its_cos + dy * its_sin, dy * its_cos - dx * its_sin
        start = (from_x + origin[0] * c - origin[1] * s, from_y + origin[0] * s + origin[1] * c, origin[2] - HEIGHT / 2)
        way = (ray[0] * c - ray[1] * s, ray[0] * s + ray[1] * c, ray[2])
        entries, exits = [], []
        for o, d, half in zip(start, way, (LENGTH / 2, WIDTH / 2, HEIGHT / 2), strict=True):
            d = torch.where(d.abs() < 1e-6, 1e-6, d)
            a, b = (-half - o) / d, (half - o) / d
            entries.append(torch.minimum(a, b))
            exits.append(torch.maximum(a, b))
        enter = torch.maximum(torch.maximum(entries[0], entries[1]), entries[2])
        leave = torch.minimum(torch.minimum(exits[0], exits[1]), exits[2])
        met = (enter < leave) & (enter > 0) & (enter < depth) & scene.present[:, m, None, None]
        shade = torch.where(enter == entries[2], 1.0, torch.where(enter == entries[0], END_SHADE, SIDE_SHADE))
        own = self._colours[m % len(OTHERS)]
        shown = tuple(torch.where(met, own[i] * shade, shown[i]) for i in range(3))
        return torch.where(met, enter, depth), shown


def _rays(name: str, size: int, device: torch.device) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """(origins, rays) of a camera, ahead, left and up, each [S, S]. A ray isn't normalised."""
    pixel = (torch.arange(size, device=device) + 0.5) * (2 / size) - 1
    down, right = pixel[:, None].expand(size, size), pixel[None].expand(size, size)
    flat = torch.zeros_like(down)
    if name == "top":
        half = WINDOW / 2
        return (-down * half + half / 2, -right * half, flat + 30), (flat, flat, flat - 1)
    tangent = math.tan(math.radians(VIEW) / 2)
    up = -down * tangent
    sin, cos = math.sin(DOWN), math.cos(DOWN)
    origin = tuple(flat + value for value in EYE)
    return origin, (cos + up * sin, -right * tangent, up * cos - sin)


def _colour(rgb: tuple[int, int, int], like: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return tuple(torch.full_like(like, value) for value in rgb)


def _where(yes: torch.Tensor, one: Sequence[Any], other: Sequence[Any]) -> tuple[torch.Tensor, ...]:
    """Of three channels each: numbers or tensors."""
    return tuple(torch.where(yes, a, b).float() for a, b in zip(one, other, strict=True))
