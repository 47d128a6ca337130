"""Marks drawn on Pillow images: boxes, points, paths and grids with labels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from mmrl.api.tasks.overlays import Overlay
from mmrl.ui.report.lettering import clip, font_for, one_line, text_width

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageDraw import ImageDraw

COLOURS = ("#009e73", "#1d6fe0", "#9b3fd1", "#e5383b", "#f2a900", "#12a150")
"""Colours of successive marks; a single mark is green, as in reports."""
AROUND = 3
"""Pixels between a box and its line."""


def draw_marks(image: Image, marks: Iterable[Overlay]) -> None:
    """Draw marks, whose coordinates are shares of the image's sides, on an image. Intervals are left out."""
    from PIL import ImageDraw

    draw = ImageDraw.Draw(image)
    for mark, colour in zip(marks, itertools.cycle(COLOURS), strict=False):
        if mark.kind == "grid":
            _draw_grid(draw, mark, image.size, colour)
        elif mark.kind != "interval":
            places = [v * side for v, side in zip(mark.coordinates, itertools.cycle(image.size), strict=False)]
            {"box": _draw_box, "point": _draw_point, "path": _draw_path}[mark.kind](draw, places, image.size, colour)
            if mark.label:
                _draw_label(draw, mark.label, places, image.size, colour)


def _draw_box(draw: ImageDraw, box: Sequence[float], size: tuple[int, int], colour: str) -> None:
    """A box drawn around its content, which stays visible except at the image's edges."""
    x1, y1, x2, y2 = box
    for reach, line, thick in ((AROUND + 1, "white", 1), (AROUND, colour, AROUND)):
        low = (max(0, round(x1) - reach), max(0, round(y1) - reach))
        high = (min(size[0] - 1, round(x2) + reach), min(size[1] - 1, round(y2) + reach))
        draw.rectangle((*low, *(max(pair) for pair in zip(low, high, strict=True))), outline=line, width=thick)


def _draw_point(draw: ImageDraw, at: Sequence[float], size: tuple[int, int], colour: str) -> None:
    for reach, line, thick in ((7, "white", 2), (5, colour, 3)):
        draw.ellipse((at[0] - reach, at[1] - reach, at[0] + reach, at[1] + reach), outline=line, width=thick)


def _draw_path(draw: ImageDraw, numbers: Sequence[float], size: tuple[int, int], colour: str) -> None:
    """A line with an arrowhead at its end."""
    ends = list(zip(numbers[::2], numbers[1::2], strict=True))
    way = math.atan2(ends[-1][1] - ends[-2][1], ends[-1][0] - ends[-2][0])
    sides = [(ends[-1][0] - 10 * math.cos(way + turn), ends[-1][1] - 10 * math.sin(way + turn)) for turn in (0.5, -0.5)]
    for line, thick in (("white", 5), (colour, 3)):
        draw.line(ends, fill=line, width=thick)
        draw.line([sides[0], ends[-1], sides[1]], fill=line, width=thick)


def _draw_grid(draw: ImageDraw, mark: Overlay, size: tuple[int, int], colour: str) -> None:
    """Lines between the cells, and each cell's label in its corner."""
    rows, columns = (int(v) for v in mark.coordinates)
    width, height = size[0] / columns, size[1] / rows
    lines = [(column * width, 0.0, column * width, float(size[1])) for column in range(1, columns)]
    lines += [(0.0, row * height, float(size[0]), row * height) for row in range(1, rows)]
    for line in lines:
        draw.line(line, fill="white", width=3)
        draw.line(line, fill=colour, width=1)
    for place, label in enumerate(mark.labels):
        if label:
            left, top = place % columns * width, place // columns * height
            _draw_label(draw, label, (left, top + 20, left + width, top + height), size, colour)


def _draw_label(draw: ImageDraw, label: str, places: Sequence[float], size: tuple[int, int], colour: str) -> None:
    """A label above its mark, or below if there is no room."""
    line = clip(one_line(label), size[0] - 8, 13)
    top, bottom = min(places[1::2]), max(places[1::2])
    left = max(0, min(*places[::2], size[0] - text_width(line, 13) - 8))
    top = top - 19 if top >= 19 else min(bottom + 1, size[1] - 19)
    draw.rectangle((left, top, left + text_width(line, 13) + 8, top + 18), fill=colour)
    draw.text((left + 4, top + 2), line, "white", font_for(line, 13))
