"""Composed scenes: shapes and small photographs on a piece of a photograph, so that every box is known exactly.

A split and a number seed all random draws, and photographs are cut as `mmrl.api.tasks.image_sources` cuts them for that split:
scenes are the same on every machine, and no pixel of one split is in another.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrl import UserError
from mmrl.api.tasks.image_sources import random_crop

if TYPE_CHECKING:
    from PIL.Image import Image

COLOURS = {
    "red": (214, 39, 40),
    "green": (34, 150, 60),
    "blue": (40, 90, 220),
    "yellow": (250, 205, 30),
    "white": (250, 250, 250),
    "black": (12, 12, 12),
}
SHAPES = {
    "oval": (),
    "rectangle": ((0, 0), (1, 0), (1, 1), (0, 1)),
    "triangle": ((0.5, 0), (1, 1), (0, 1)),
    "diamond": ((0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)),
    "arch": ((0, 0), (1, 0), (1, 1), (0.7, 1), (0.7, 0.35), (0.3, 0.35), (0.3, 1), (0, 1)),
}
"""Name -> corners in the unit square, each side of which it touches; an oval has none."""
TILES = {"brick": "brick", "star": "hubble_deep_field", "tissue": "ihc", "coin": "coins", "eye": "retina"}
"""Name of a small photograph -> the photograph from which it is cut."""
BACKGROUNDS = ("astronaut", "chelsea", "china", "coffee", "flower", "grass", "gravel", "motorcycle_left", "rocket")
FINE = 4
"""Shapes are drawn this many times larger and then reduced."""
GAP = 2
"""Pixels between two things, at least."""
TRIES = 200

Kind = tuple[str, str]
"""(colour, shape), or (name of a photograph, "tile")."""
KINDS: tuple[Kind, ...] = (*((c, s) for c in COLOURS for s in SHAPES), *((name, "tile") for name in TILES))


@dataclass(frozen=True, slots=True)
class Thing:
    """One object of a scene."""

    kind: Kind
    box: tuple[int, int, int, int]
    """(x1, y1, x2, y2) in pixels: it covers x1 to x2 - 1, and touches all four sides."""

    @property
    def label(self) -> str:
        return " ".join(self.kind)

    @property
    def centre(self) -> tuple[float, float]:
        return (self.box[0] + self.box[2]) / 2, (self.box[1] + self.box[3]) / 2

    @property
    def area(self) -> int:
        return (self.box[2] - self.box[0]) * (self.box[3] - self.box[1])


def arrange(draw: random.Random, kinds: Sequence[Kind], size: int, grid: int) -> list[Thing]:
    """Things of these kinds, none of which touches another, with corners on a grid of `grid` pixels in a square of `size`.

    Raises UserError when they do not fit.
    """
    steps = size // grid
    longest = min(steps / (1.5 + len(kinds) ** 0.5), 0.25 * steps)
    while round(longest) >= 1 and round(longest) * grid >= 6:
        for _ in range(8):
            boxes = _boxes(draw, len(kinds), steps, grid, longest)
            if boxes:
                return [Thing(kind, box) for kind, box in zip(kinds, boxes, strict=True)]
        longest *= 0.8
    raise UserError(
        f"{len(kinds)} objects do not fit into {size} pixels on a grid of {grid}: lower objects or grid, or raise size"
    )


def _boxes(draw: random.Random, number: int, steps: int, grid: int, longest: float) -> list[tuple[int, int, int, int]]:
    """`number` boxes that don't touch each other; empty if they don't fit."""
    gap = -(-GAP // grid)
    found: list[tuple[int, int, int, int]] = []
    for _ in range(TRIES):
        if len(found) == number:
            break
        width, height = (max(1, round(longest * draw.uniform(0.6, 1.0)), -(-6 // grid)) for _ in range(2))
        x, y = draw.randint(0, steps - width), draw.randint(0, steps - height)
        one = (x, y, x + width, y + height)
        if all(one[0] >= o[2] + gap or o[0] >= one[2] + gap or one[1] >= o[3] + gap or o[1] >= one[3] + gap for o in found):
            found.append(one)
    return [tuple(v * grid for v in box) for box in found] if len(found) == number else []  # type: ignore[misc]


def paint(draw: random.Random, split: str, things: Sequence[Thing], size: int) -> Image:
    """The scene as an RGB picture. The photograph behind is pale, so that colours tell the things from it."""
    from PIL import Image

    behind = random_crop(split, draw, size, size, BACKGROUNDS)
    picture = Image.blend(behind, Image.new("RGB", behind.size, (128, 128, 128)), 0.55)
    for thing in things:
        name, shape = thing.kind
        width, height = thing.box[2] - thing.box[0], thing.box[3] - thing.box[1]
        if shape == "tile":
            framed = Image.new("RGB", (width, height), "white")
            framed.paste(random_crop(split, draw, width - 2, height - 2, (TILES[name],)), (1, 1))
            picture.paste(framed, thing.box[:2])
        else:
            picture.paste(COLOURS[name], thing.box, mask(shape, width, height))
    return picture


def mask(shape: str, width: int, height: int) -> Image:
    """The coverage of a box by a shape, 0 to 255, as a picture of one channel."""
    from PIL import Image, ImageDraw

    fine = Image.new("L", (width * FINE, height * FINE))
    pen = ImageDraw.Draw(fine)
    if corners := SHAPES[shape]:
        pen.polygon([(x * (width * FINE - 1), y * (height * FINE - 1)) for x, y in corners], fill=255)
    else:
        pen.ellipse((0, 0, width * FINE - 1, height * FINE - 1), fill=255)
    return fine.resize((width, height), Image.Resampling.BOX)


# -- what is said of them ---------------------------------------------------------------------------------------------------

PLACES: dict[str, Callable[[Thing], float]] = {
    "leftmost": lambda t: -t.centre[0],
    "rightmost": lambda t: t.centre[0],
    "topmost": lambda t: -t.centre[1],
    "lowest": lambda t: t.centre[1],
}


def expression(draw: random.Random, target: Thing, things: Sequence[Thing], size: int) -> str | None:
    """A description that fits the target and nothing else in the scene: `the red oval`, or `the leftmost red oval` if there are
    several. None if the target isn't clearly ahead of the others in any direction."""
    rivals = [t for t in things if t.label == target.label and t is not target]
    if not rivals:
        return f"the {target.label}"
    words = [word for word, place in PLACES.items() if place(target) >= max(map(place, rivals)) + size / 10]
    if target.area >= 1.4 * max(t.area for t in rivals):
        words.append("largest")
    if 1.4 * target.area <= min(t.area for t in rivals):
        words.append("smallest")
    return f"the {draw.choice(words)} {target.label}" if words else None


def similar_to(draw: random.Random, kind: Kind, how: float) -> Kind:
    """Another kind of object; with probability `how` one that shares colour, shape or both with `kind`, so that they are easily
    confused."""
    if draw.random() >= how:
        return draw.choice([k for k in KINDS if k[0] != kind[0] and k[1] != kind[1]])
    same = draw.choice(("colour", "shape", "both"))
    alike = [k for k in KINDS if k != kind and k[0 if same == "colour" else 1] == kind[0 if same == "colour" else 1]]
    return kind if same == "both" or not alike else draw.choice(alike)
