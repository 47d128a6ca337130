"""Street views, drawn by code: what a walker sees ahead, to the right, behind and to the left."""

from __future__ import annotations

import zlib
from collections.abc import Collection
from typing import TYPE_CHECKING

from mmrl_vqa.scenes import COLOURS, OUTLINES

if TYPE_CHECKING:
    from PIL.Image import Image

VIEWS = ((0, (0, 0)), (2, (1, 0)), (4, (0, 1)), (6, (1, 1)))
"""Eighths of a turn to the right of the front, and the place in the grid: front and right above, back and left below."""
SKY, ROAD, LINE, GROUND = (150, 190, 230), (95, 95, 100), (230, 220, 120), (170, 165, 155)
WALLS = ((176, 120, 96), (150, 140, 130), (190, 170, 130), (120, 130, 150), (160, 110, 110))
BOARD = (245, 245, 240)


def grid(size: int, place: str, roads: Collection[int], sign: tuple[str, str] | None, side: int | None) -> Image:
    """The four views in a square of `size` pixels, with black lines between them.

    place: decides the colours of the walls. roads: where streets lead, in eighths of a turn to the right of the front. sign:
    (colour, shape) of a landmark. side: the view that shows it, in eighths; None for no landmark.
    """
    from PIL import Image as images

    half = (size - 1) // 2
    canvas = images.new("RGB", (size, size), (0, 0, 0))
    for turn, (x, y) in VIEWS:
        near = any(min((road - turn) % 8, (turn - road) % 8) <= 1 for road in roads)
        shown = _view(half, zlib.crc32(f"{place} {turn}".encode()), near, sign if side == turn else None)
        canvas.paste(shown, (x * (size - half), y * (size - half)))
    return canvas


def _view(size: int, number: int, road: bool, sign: tuple[str, str] | None) -> Image:
    """A street that narrows to the horizon, or a house; with a sign on a board, or none."""
    from PIL import Image as images
    from PIL import ImageDraw

    view = images.new("RGB", (size, size), SKY)
    draw, middle = ImageDraw.Draw(view), size // 2
    draw.rectangle((0, middle, size, size), fill=GROUND)
    left, right = WALLS[number % len(WALLS)], WALLS[number // 7 % len(WALLS)]
    if road:
        draw.polygon([(middle - 2, middle), (middle + 2, middle), (size, size), (0, size)], fill=ROAD)
        draw.line((middle, middle, middle, size), fill=LINE, width=max(1, size // 40))
        draw.polygon([(0, size // 8), (middle - 3, middle - 3), (middle - 3, middle), (0, size)], fill=left)
        draw.polygon([(size, size // 8), (middle + 3, middle - 3), (middle + 3, middle), (size, size)], fill=right)
    else:
        draw.rectangle((0, size // 8, size, 7 * size // 8), fill=left)
        step = max(6, size // 5)
        for i, x in enumerate(range(step // 2, size - step // 2, step)):
            for j, y in enumerate(range(size // 5, 7 * size // 8 - step // 2, step)):
                lit = number >> (5 * i + j) % 30 & 1
                draw.rectangle((x, y, x + step // 2, y + step // 2), fill=(235, 225, 160) if lit else (60, 70, 90))
    if sign:
        colour, shape = sign
        reach = size // 4
        draw.rectangle((middle - reach, size // 8, middle + reach, size // 8 + 2 * reach), fill=BOARD, outline=(25, 25, 25))
        OUTLINES[shape](draw, middle, size // 8 + reach, 0.8 * reach, COLOURS[colour])
    return view
