"""Elements of generated clips: colours, shapes, backgrounds, letters. Arrays are [height, width, 3] or [height, width]."""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

COLOURS = {
    "red": (220, 40, 40),
    "green": (30, 165, 60),
    "blue": (45, 80, 230),
    "yellow": (245, 215, 35),
    "purple": (160, 50, 200),
    "white": (250, 250, 250),
    "black": (10, 10, 10),
}
"""Colours that differ enough from each other, and from every background, to be distinguishable after encoding."""
SHAPES = {
    "circle": (),
    "square": ((0, 0), (1, 0), (1, 1), (0, 1)),
    "triangle": ((0.5, 0), (1, 1), (0, 1)),
    "diamond": ((0.5, 0), (1, 0.5), (0.5, 1), (0, 0.5)),
    "cross": (
        *((0.33, 0), (0.67, 0), (0.67, 0.33), (1, 0.33), (1, 0.67), (0.67, 0.67)),
        *((0.67, 1), (0.33, 1), (0.33, 0.67), (0, 0.67), (0, 0.33), (0.33, 0.33)),
    ),
}
"""Name -> corners in the unit square, each side of which it touches; a circle has none."""
BACKGROUNDS = ("plain", "texture", "photo")
"""plain: one grey; texture: stripes, checks or grain; photo: blurred patches of light under fine grain, as of a photograph."""
FINE = 4
"""Shapes are drawn this many times larger and then reduced."""


@functools.lru_cache(maxsize=512)
def mask(shape: str, size: int) -> np.ndarray:
    """Coverage of each pixel by a shape, float32 [size, size] from 0 to 1. Cached: don't change it."""
    import numpy as np
    from PIL import Image, ImageDraw

    fine = Image.new("L", (size * FINE, size * FINE))
    pen, last = ImageDraw.Draw(fine), size * FINE - 1
    if corners := SHAPES[shape]:
        pen.polygon([(x * last, y * last) for x, y in corners], fill=255)
    else:
        pen.ellipse((0, 0, last, last), fill=255)
    return np.asarray(fine.resize((size, size), Image.Resampling.BOX), np.float32) / 255


@functools.lru_cache(maxsize=64)
def lettering(text: str, height: int) -> np.ndarray:
    """A line of text in capitals `height` pixels high, float32 [h, w] from 0 to 1, without margins. Don't change it."""
    import numpy as np
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(size=height / 0.72)  # height of its capitals, as a share of its size
    left, top, right, bottom = font.getbbox(text)
    sheet = Image.new("L", (int(right - left) + 4, int(bottom - top) + 4))
    ImageDraw.Draw(sheet).text((2 - left, 2 - top), text, font=font, fill=255)
    return np.asarray(sheet.crop(sheet.getbbox()), np.float32) / 255


@functools.lru_cache(maxsize=32)
def background(kind: str, width: int, height: int, seed: int) -> np.ndarray:
    """uint8 [height, width, 3] of one of `BACKGROUNDS`: greyish, from 80 to 175. Cached: don't change it."""
    import numpy as np

    draw = random.Random(f"{kind} {seed}")
    grain = np.random.default_rng(draw.getrandbits(64))
    light_HW = np.full((height, width), draw.uniform(105, 150))
    if kind == "texture":
        light_HW = light_HW + _pattern(draw, grain, width, height)
    elif kind == "photo":
        light_HW = light_HW + _patches(grain, width, height) + grain.normal(0, 3, (height, width))
    tint_3 = np.array([draw.uniform(-6, 6) for _ in range(3)])
    return np.clip(light_HW[..., None] + tint_3, 80, 175).round().astype(np.uint8)


def _pattern(draw: random.Random, grain: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Stripes, checks or grain around 0, [height, width]."""
    import numpy as np

    kind, step, depth = draw.choice(("stripes", "checks", "grain")), draw.randint(3, 10), draw.uniform(6, 14)
    y_H1, x_1W = np.arange(height)[:, None] // step, np.arange(width)[None] // step
    if kind == "grain":
        return grain.normal(0, depth / 2, (height, width))
    if kind == "stripes":
        lines = y_H1 + 0 * x_1W if draw.random() < 0.5 else x_1W + 0 * y_H1
        return depth * (lines % 2 * 2.0 - 1)
    return depth * ((x_1W + y_H1) % 2 * 2.0 - 1)


def _patches(grain: np.random.Generator, width: int, height: int) -> np.ndarray:
    """Smooth patches of three sizes, the larger the stronger, [height, width] around 0."""
    import numpy as np
    from PIL import Image

    total_HW = np.zeros((height, width))
    for cells, depth in ((3, 16), (6, 9), (12, 5)):
        coarse = Image.fromarray(grain.normal(0, 1, (cells, cells)).astype(np.float32))
        total_HW += depth * np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.float64)
    return total_HW
