"""Random changes of a picture that leave it recognisable: those of SimCLR (Chen et al. 2020) as SSL4RL uses them."""

from __future__ import annotations

import math
import random
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from PIL.Image import Image


class Strength(NamedTuple):
    """Strength of the augmentations. Each chance is the probability of one of them."""

    area: tuple[float, float]
    """Minimal and maximal share of the picture that a crop keeps."""
    jitter: tuple[float, float, float, float]
    """Maximal change of brightness, contrast and saturation from 1, and of the hue from 0, in full turns."""
    jitter_chance: float
    grey: float
    blur: float
    solarise: float
    equalise: float
    flip: float


STRENGTHS = {
    "mild": Strength((0.4, 1.0), (0.2, 0.2, 0.2, 0.05), 0.5, 0.0, 0.2, 0.0, 0.0, 0.5),
    "simclr": Strength((0.08, 1.0), (0.8, 0.8, 0.8, 0.2), 0.8, 0.2, 0.5, 0.0, 0.0, 0.5),
    "strong": Strength((0.08, 0.3), (0.8, 0.8, 0.8, 0.2), 0.8, 0.8, 0.8, 0.8, 0.8, 0.8),
}
"""simclr and strong are SSL4RL's."""


def view(picture: Image, strength: Strength, size: int, draw: random.Random) -> Image:
    """A piece of the picture, `size` x `size` pixels, its colours changed and perhaps mirrored."""
    from PIL import Image, ImageOps

    box = _piece(picture.size, strength.area, draw)
    changed = recoloured(picture.resize((size, size), Image.Resampling.BICUBIC, box), strength, draw)
    return ImageOps.mirror(changed) if draw.random() < strength.flip else changed


def recoloured(picture: Image, strength: Strength, draw: random.Random) -> Image:
    """The picture in other colours, perhaps grey, blurred, solarised or equalised; positions don't change."""
    from PIL import ImageFilter, ImageOps

    if draw.random() < strength.jitter_chance:
        picture = _jitter(picture, strength.jitter, draw)
    if draw.random() < strength.grey:
        picture = ImageOps.grayscale(picture).convert("RGB")
    if draw.random() < strength.blur:
        picture = picture.filter(ImageFilter.GaussianBlur(draw.uniform(0.1, 2.0)))
    if draw.random() < strength.solarise:
        picture = ImageOps.solarize(picture)
    if draw.random() < strength.equalise:
        picture = ImageOps.equalize(picture)
    return picture


def _piece(size: tuple[int, int], area: tuple[float, float], draw: random.Random) -> tuple[float, float, float, float]:
    """The box of a piece of drawn area, and of a shape between 3:4 and 4:3."""
    width, height = size
    for _ in range(10):
        wanted = width * height * draw.uniform(*area)
        ratio = math.exp(draw.uniform(math.log(3 / 4), math.log(4 / 3)))
        across, down = math.sqrt(wanted * ratio), math.sqrt(wanted / ratio)
        if across <= width and down <= height:
            left, top = draw.uniform(0, width - across), draw.uniform(0, height - down)
            return left, top, left + across, top + down
    side = min(width, height)
    return (width - side) / 2, (height - side) / 2, (width + side) / 2, (height + side) / 2


def _jitter(picture: Image, amounts: tuple[float, float, float, float], draw: random.Random) -> Image:
    """Brightness, contrast, saturation and hue, in a drawn order."""
    from PIL import ImageEnhance

    steps = [0, 1, 2, 3]
    draw.shuffle(steps)
    for step in steps:
        if step == 3:
            picture = _turned_hue(picture, draw.uniform(-amounts[3], amounts[3]))
        else:
            kind = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)[step]
            picture = kind(picture).enhance(draw.uniform(max(0.0, 1 - amounts[step]), 1 + amounts[step]))
    return picture


def _turned_hue(picture: Image, turns: float) -> Image:
    from PIL import Image

    hue, saturation, value = picture.convert("HSV").split()
    shift = round(turns * 256)
    return Image.merge("HSV", (hue.point([(i + shift) % 256 for i in range(256)]), saturation, value)).convert("RGB")
