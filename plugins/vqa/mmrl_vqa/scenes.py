"""Scenes of coloured shapes over a piece of a photograph, drawn by code."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from mmrl.api.tasks.image_sources import PHOTOGRAPHS, random_crop

if TYPE_CHECKING:
    from PIL.Image import Image

COLOURS = {
    "red": (214, 39, 40),
    "green": (44, 150, 60),
    "blue": (40, 80, 210),
    "yellow": (245, 205, 40),
    "purple": (145, 60, 175),
}
SHAPES = ("circle", "square", "triangle", "star")
REACH = {"circle": (1.0, 1.0, 1.0), "square": (0.8, 0.8, 0.8), "triangle": (0.87, 1.0, 0.5), "star": (0.95, 1.0, 0.81)}
"""Extent of a shape to the sides, up and down, as shares of its radius."""
GROUNDS = tuple(name for name in PHOTOGRAPHS if name not in ("coins", "retina"))
"""Photographs without discs."""
MOST = 8
"""Maximum of things in a scene."""
SHARP = 4
"""Things are drawn this many times larger, then reduced, for smooth edges."""


class Thing(NamedTuple):
    """One shape of a scene; x, y, r in shares of the picture's side, 0 to 1."""

    shape: str
    colour: str
    x: float
    y: float
    r: float
    """Radius of the circle around it."""

    @property
    def name(self) -> str:
        return f"{self.colour} {self.shape}"

    def box(self, size: int) -> tuple[int, int, int, int]:
        """(x1, y1, x2, y2) in pixels of a picture of `size` pixels a side."""
        wide, up, down = (reach * self.r for reach in REACH[self.shape])
        x1, y1, x2, y2 = (round(v * size) for v in (self.x - wide, self.y - up, self.x + wide, self.y + down))
        return max(x1, 0), max(y1, 0), min(x2, size), min(y2, size)


def scatter(draw: random.Random, kinds: Sequence[tuple[str, str]]) -> list[Thing]:
    """Things of these (shape, colour) at random positions, none touching another; many things are smaller."""
    large = 0.15 if len(kinds) <= 4 else 0.12
    while True:
        placed: list[Thing] = []
        for shape, colour in kinds:
            for _ in range(60):
                r = draw.uniform(0.75, 1.0) * large
                x, y = draw.uniform(r + 0.02, 0.98 - r), draw.uniform(r + 0.02, 0.98 - r)
                if all(math.hypot(x - t.x, y - t.y) > r + t.r + 0.02 for t in placed):
                    placed.append(Thing(shape, colour, x, y, r))
                    break
        if len(placed) == len(kinds):
            return placed
        large *= 0.9


def picture(split: str, draw: random.Random, things: Sequence[Thing], size: int) -> Image:
    """The scene, RGB, `size` pixels a side, over a pale grey piece of a photograph of the split."""
    from PIL import Image as images
    from PIL import ImageDraw

    ground = random_crop(split, draw, size, size, GROUNDS).convert("L").convert("RGB")
    ground = images.blend(ground, images.new("RGB", ground.size, (205, 205, 205)), 0.55)
    big = size * SHARP
    layer, mask = images.new("RGB", (big, big)), images.new("L", (big, big))
    on_layer, on_mask = ImageDraw.Draw(layer), ImageDraw.Draw(mask)
    for thing in things:
        for rim, colour in ((0.0, (25, 25, 25)), (0.1, COLOURS[thing.colour])):
            OUTLINES[thing.shape](on_layer, thing.x * big, thing.y * big, thing.r * (1 - rim) * big, colour)
        OUTLINES[thing.shape](on_mask, thing.x * big, thing.y * big, thing.r * big, 255)
    ground.paste(layer.resize((size, size), images.Resampling.BOX), (0, 0), mask.resize((size, size), images.Resampling.BOX))
    return ground


def _circle(on: object, x: float, y: float, r: float, fill: object) -> None:
    on.ellipse((round(x - r), round(y - r), round(x + r), round(y + r)), fill=fill)  # type: ignore[attr-defined]


def _square(on: object, x: float, y: float, r: float, fill: object) -> None:
    half = r * 0.8
    on.rectangle((round(x - half), round(y - half), round(x + half), round(y + half)), fill=fill)  # type: ignore[attr-defined]


def _polygon(on: object, x: float, y: float, radii: Sequence[float], fill: object) -> None:
    """Corners at equal angles from the top, each at its distance from the middle."""
    turns = [2 * math.pi * i / len(radii) for i in range(len(radii))]
    points = [(round(x + r * math.sin(a)), round(y - r * math.cos(a))) for r, a in zip(radii, turns, strict=True)]
    on.polygon(points, fill=fill)  # type: ignore[attr-defined]


def _triangle(on: object, x: float, y: float, r: float, fill: object) -> None:
    _polygon(on, x, y, [r] * 3, fill)


def _star(on: object, x: float, y: float, r: float, fill: object) -> None:
    _polygon(on, x, y, [r, r * 0.45] * 5, fill)


OUTLINES: dict[str, Callable[[object, float, float, float, object], None]] = {
    "circle": _circle,
    "square": _square,
    "triangle": _triangle,
    "star": _star,
}
