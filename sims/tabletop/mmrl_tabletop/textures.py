"""Pictures of tables and textures to blend in, computed by formulas, without files.

Each is a function of a place on the table (u and v, 0 to 1 from edge to edge) and returns red, green and blue.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from mmrl.api.simulators.noise import uniform

Texture = torch.Tensor
Draw = Callable[[torch.Tensor, torch.Tensor, int], Texture]
Colour = tuple[float, float, float]


def table(number: int, u: torch.Tensor, v: torch.Tensor) -> Texture:
    """Picture `number`; the `TRAINING_TEXTURES` come first, then the `UNSEEN_TEXTURES`: float32 [..., 3]."""
    return _TABLES[number](u, v, number)


def overlay(number: int, u: torch.Tensor, v: torch.Tensor) -> Texture:
    """Texture `number` of `OVERLAYS`: float32 [..., 3]."""
    return _OVERLAYS[number](u, v, 100 + number)


def lattice(seed: int, u: torch.Tensor, v: torch.Tensor, columns: int, rows: int) -> torch.Tensor:
    """Smooth noise of 0 to 1 with about `columns` and `rows` bumps along u and v."""
    device = u.device
    grid = uniform(torch.tensor([seed], device=device), 7, shape=(rows + 1, columns + 1))[0].flatten()
    x, y = (u.clamp(0, 1) * columns).clamp(max=columns - 1e-3), (v.clamp(0, 1) * rows).clamp(max=rows - 1e-3)
    i, j = x.floor(), y.floor()
    fx, fy = (3 - 2 * (x - i)) * (x - i) ** 2, (3 - 2 * (y - j)) * (y - j) ** 2
    at = (j * (columns + 1) + i).long()
    a, b = grid[at], grid[at + 1]
    c, d = grid[at + columns + 1], grid[at + columns + 2]
    return (a * (1 - fx) + b * fx) * (1 - fy) + (c * (1 - fx) + d * fx) * fy


def _mixed(first: Colour, second: Colour, share: torch.Tensor) -> Texture:
    one, two = (torch.tensor(c, device=share.device) for c in (first, second))
    return one + (two - one) * share[..., None]


def _grain(seed: int, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return 0.6 * lattice(seed, u, v, 5, 40) + 0.4 * lattice(seed + 50, u, v, 12, 160)


def _wood(first: Colour, second: Colour, boards: int) -> Draw:
    def draw(u: torch.Tensor, v: torch.Tensor, seed: int) -> Texture:
        board = (v * boards).floor()
        tone = lattice(seed + 9, board / boards, 0 * v, boards, 1) if boards > 1 else 0 * v
        seam = ((v * boards - board - 0.5).abs() > 0.485) * 1.0 if boards > 1 else 0 * v
        shifted = (u + board * 0.37) % 1.0
        return _mixed(first, second, (0.75 * _grain(seed, shifted, v) + 0.3 * tone + 0.5 * seam).clamp(0, 1))

    return draw


def _cloth(first: Colour, second: Colour) -> Draw:
    def draw(u: torch.Tensor, v: torch.Tensor, seed: int) -> Texture:
        weave = 0.5 + 0.25 * (torch.sin(u * 2 * math.pi * 60) + torch.sin(v * 2 * math.pi * 60))
        return _mixed(first, second, (0.5 * weave + 0.5 * lattice(seed, u, v, 9, 9)).clamp(0, 1))

    return draw


def _stone(first: Colour, second: Colour) -> Draw:
    def draw(u: torch.Tensor, v: torch.Tensor, seed: int) -> Texture:
        cloud = 0.6 * lattice(seed, u, v, 6, 6) + 0.4 * lattice(seed + 50, u, v, 30, 30)
        vein = 1 - (torch.sin(6 * u + 4 * v + 5 * cloud).abs() * 5).clamp(0, 1)
        return _mixed(first, second, (0.5 * cloud + 0.5 * vein).clamp(0, 1))

    return draw


def _plain(first: Colour, second: Colour) -> Draw:
    return lambda u, v, seed: _mixed(first, second, lattice(seed, u, v, 4, 4))


def _checks(first: Colour, second: Colour, count: int) -> Draw:
    return lambda u, v, seed: _mixed(first, second, ((u * count).floor() + (v * count).floor()) % 2)


def _stripes(first: Colour, second: Colour, count: int) -> Draw:
    return lambda u, v, seed: _mixed(first, second, ((u + 0.6 * v) * count).floor() % 2)


def _dots(first: Colour, second: Colour, count: int) -> Draw:
    def draw(u: torch.Tensor, v: torch.Tensor, seed: int) -> Texture:
        x, y = (u * count) % 1 - 0.5, (v * count) % 1 - 0.5
        return _mixed(first, second, ((0.32 - (x * x + y * y).sqrt()) * 20).clamp(0, 1))

    return draw


def _speckles(count: int) -> Draw:
    def draw(u: torch.Tensor, v: torch.Tensor, seed: int) -> Texture:
        return torch.stack([lattice(seed + 17 * i, u, v, count, count) for i in range(3)], -1)

    return draw


_TABLES = (
    _wood((0.80, 0.67, 0.50), (0.62, 0.48, 0.33), 5),
    _plain((0.70, 0.69, 0.66), (0.66, 0.65, 0.62)),
    _wood((0.56, 0.42, 0.31), (0.40, 0.29, 0.21), 4),
    _cloth((0.64, 0.66, 0.62), (0.52, 0.55, 0.52)),
    _stone((0.74, 0.73, 0.71), (0.60, 0.60, 0.60)),
    _wood((0.86, 0.79, 0.68), (0.74, 0.65, 0.53), 1),
    _checks((0.82, 0.80, 0.74), (0.50, 0.56, 0.58), 8),
    _stripes((0.70, 0.60, 0.64), (0.46, 0.44, 0.56), 9),
    _dots((0.44, 0.52, 0.46), (0.80, 0.82, 0.72), 8),
    _stone((0.30, 0.32, 0.36), (0.58, 0.60, 0.62)),
    _speckles(14),
)
_OVERLAYS = (
    _checks((0.9, 0.9, 0.2), (0.2, 0.2, 0.6), 10),
    _stripes((0.9, 0.4, 0.3), (0.2, 0.6, 0.6), 12),
    _dots((0.25, 0.25, 0.3), (0.95, 0.7, 0.5), 9),
    _speckles(24),
    _speckles(64),
    _stone((0.2, 0.4, 0.3), (0.9, 0.85, 0.8)),
)
