"""Intersections of rays with solids. P solids, each with a window of H x W pixels; values that are equal along a row or a column
are broadcast.

A ray is o + t d in the solid's coordinates. The result is a key, int32: its upper bits are the depth t, its lower twelve the
colour and brightness, so the smallest key of a pixel is the visible one. Conditions are written as sums and clamps, not as
`torch.where`, which is many times slower on a CPU.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from mmrl_tabletop.things import BALL, BOX, CONE, CYLINDER, PRISM

LEVELS = 128
"""Number of brightness levels of a colour."""
CODE_BITS = 12
DEPTH = 2**17
"""Depth levels per metre, up to 4 metres."""
FAR = 2**19 - 1
"""The depth of a ray that hits nothing."""
BACKGROUND = ((FAR - 1) << CODE_BITS) | 4095
SHADOW = ((FAR - 1) << CODE_BITS) | 4094
MISSED = FAR << CODE_BITS
"""Keys of the table and of the table in shadow; a ray that misses has at least MISSED."""
NEAR = 0.02
AMBIENT = 0.38
COSINE, SINE = 0.5, 0.8660254
"""Of 60 degrees."""

Three = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


@dataclass(frozen=True, slots=True)
class Rays:
    """P bundles of rays, in the coordinates of their solids."""

    o: Three
    """float32, broadcasting to [P, H, W]."""
    d: Three
    half: Three
    """Half the size of the solid, [P, 1, 1]."""
    light: Three
    """Direction to the light, [P, 1, 1]."""
    code: torch.Tensor
    """int32 [P, 1, 1]: its colour times LEVELS."""
    shaded: bool = True
    """Whether faces differ in brightness; for shadows only the hit matters."""
    rim: bool = False
    """Whether it is a receptacle, which has a brighter rim."""


def keys(kind: int, rays: Rays) -> torch.Tensor:
    """int32 [P, H, W]."""
    return {BOX: _box, PRISM: _prism, BALL: _ball, CYLINDER: _cylinder, CONE: _cone}[kind](rays)


def brightness(cosine: torch.Tensor) -> torch.Tensor:
    """Level of 0 to 127, int32, of a face whose normal has this cosine with the light; includes ambient light."""
    return ((AMBIENT + (1 - AMBIENT) * cosine.clamp(0, 1)) * (LEVELS - 1)).int()


def _box(r: Rays) -> torch.Tensor:
    slabs = [(r.o[i], r.d[i], r.half[i], r.light[i]) for i in range(3)]
    return _slabs(slabs, r)


def _prism(r: Rays) -> torch.Tensor:
    """Six sides and a flat top: half[0] is the distance of its sides from the middle."""

    def along(v: Three, cos: float, sin: float) -> torch.Tensor:
        return v[0] * cos + v[1] * sin

    sides = [(1.0, 0.0), (COSINE, SINE), (-COSINE, SINE)]
    slabs = [(along(r.o, c, s), along(r.d, c, s), r.half[0], along(r.light, c, s)) for c, s in sides]
    return _slabs([*slabs, (r.o[2], r.d[2], r.half[2], r.light[2])], r)


def _slabs(slabs: Sequence[tuple[torch.Tensor, ...]], r: Rays) -> torch.Tensor:
    """The intersection of all slabs |o + t d| < half; the visible face is that of the slab entered last."""
    entered, left = [], []
    for o, d, half, light in slabs:
        first, last = _between(o, d, half)
        face = r.code  # only the slab's side towards the camera is visible
        if r.shaded:
            face = face + brightness(light * torch.where(o > 0, 1.0, -1.0))
        entered.append(_key(first, face))
        left.append(last)
    return _unless_left(functools.reduce(torch.maximum, entered), functools.reduce(torch.minimum, left))


def _ball(r: Rays) -> torch.Tensor:
    a, b, c = _dot(r.d, r.d), _dot(r.o, r.d), _dot(r.o, r.o) - r.half[2] * r.half[2]
    inside = b * b - a * c
    t = (-b - inside.clamp(min=0).sqrt()) / a
    missed = (inside * -1e12).clamp(min=0)
    behind = ((NEAR - t) * 1e12).clamp(min=0)
    face = r.code
    if r.shaded:
        face = face + brightness((_dot(r.o, r.light) + t * _dot(r.d, r.light)) / r.half[2])
    return _key(t + missed + behind, face)


def _cylinder(r: Rays) -> torch.Tensor:
    radius = r.half[0]
    (ox, oy, oz), (dx, dy, dz) = r.o, r.d
    a = dx * dx + dy * dy + 1e-12
    b = ox * dx + oy * dy
    inside = b * b - a * (ox * ox + oy * oy - radius * radius)
    root = inside.clamp(min=0).sqrt()
    first, last = (-b - root) / a, (-b + root) / a
    cap, out = _between(oz, dz, r.half[2])
    side = top = r.code
    if r.shaded:
        x, y = ox + first * dx, oy + first * dy
        side = side + brightness((x * r.light[0] + y * r.light[1]) / radius)
        top = top + brightness(r.light[2] * torch.where(oz > 0, 1.0, -1.0))
    if r.rim:
        px, py = ox + cap * dx, oy + cap * dy
        edge = (((px * px + py * py) / (radius * radius) - 0.62) * 60).clamp(0, 1)
        top = top - 22 + (edge * 30).int()
    key = torch.maximum(_key(first, side), _key(cap, top))
    missed = (inside * 1e12).clamp(max=0)
    return _unless_left(key, torch.minimum(last, out) + missed)


def _cone(r: Rays) -> torch.Tensor:
    """A cone with its tip up: the nearest of both hits of the side, and the base."""
    (ox, oy, oz), (dx, dy, dz) = r.o, r.d
    high = 2 * r.half[2]
    slope = r.half[0] / high
    below = r.half[2] - oz  # how far below the tip the ray starts
    a = dx * dx + dy * dy - slope * slope * dz * dz
    b = ox * dx + oy * dy + slope * slope * below * dz
    c = ox * ox + oy * oy - slope * slope * below * below
    inside = b * b - a * c
    root = inside.clamp(min=0).sqrt()
    a = a + torch.where(a.abs() < 1e-9, 1e-9, 0.0)
    missed = (inside * -1e12).clamp(min=0)
    norm = (1 + slope * slope).sqrt()
    found = []
    for t in ((-b - root) / a, (-b + root) / a):
        depth = below - t * dz
        outside = ((-depth).clamp(min=0) + (depth - high).clamp(min=0) + (NEAR - t).clamp(min=0)) * 1e12
        x, y = ox + t * dx, oy + t * dy
        wide = (slope * depth).abs().clamp(min=1e-6)
        cosine = ((x * r.light[0] + y * r.light[1]) / wide + slope * r.light[2]) / norm
        found.append(_key(t + outside + missed, brightness(cosine) + r.code))
    t = (-r.half[2] - oz) * _inverse(dz)
    x, y = ox + t * dx, oy + t * dy
    outside = ((x * x + y * y - r.half[0] * r.half[0]).clamp(min=0) + (NEAR - t).clamp(min=0)) * 1e12
    found.append(_key(t + outside, brightness(-r.light[2]) + r.code))
    return functools.reduce(torch.minimum, found)


def _between(o: torch.Tensor, d: torch.Tensor, half: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Values of t where a ray enters and leaves a slab."""
    inverse = _inverse(d)
    one, two = (-half - o) * inverse, (half - o) * inverse
    return torch.minimum(one, two), torch.maximum(one, two)


def _inverse(d: torch.Tensor) -> torch.Tensor:
    return (d + 1e-9).reciprocal()


def _dot(a: Three, b: Three) -> torch.Tensor:
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


def _depth(t: torch.Tensor, low: float) -> torch.Tensor:
    return (t * DEPTH).clamp(low * DEPTH, FAR).int()


def _key(t: torch.Tensor, code: torch.Tensor) -> torch.Tensor:
    return (_depth(t, NEAR) << CODE_BITS) + code


def _unless_left(key: torch.Tensor, leave: torch.Tensor) -> torch.Tensor:
    """The key, or at least MISSED where a ray leaves before it enters."""
    gone = (_depth(leave, 0.0) - (key >> CODE_BITS)) >> 31  # -1 where it does
    return key | (gone & MISSED)
