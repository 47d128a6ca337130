"""Cutting, shuffling and masking of pictures.

Positions are numbered row by row from 1, top left. A puzzle's *forward* permutation gives for each position of the shuffled
picture the original position of its patch; its *inverse* gives for each original position where its patch is shown.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from mmrl import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

MOST = 400
"""Maximum of patches of a puzzle."""
RELATIONS = (
    "directly to the left of",
    "directly to the right of",
    "directly above",
    "directly below",
    "on the upper left of",
    "on the upper right of",
    "on the lower left of",
    "on the lower right of",
)
"""Relative positions of two patches of the original, in the words of Jigsaw-R1. "Directly" means in the same row or column."""


class Size(NamedTuple):
    """Size of a grid."""

    rows: int
    columns: int

    @property
    def patches(self) -> int:
        return self.rows * self.columns

    def __str__(self) -> str:
        return f"{self.rows}x{self.columns}"


def size_of(text: str) -> Size:
    """`3x2`: three rows, two columns. Raises UserError."""
    found = re.fullmatch(r"([0-9]{1,3})x([0-9]{1,3})", str(text))
    size = Size(int(found[1]), int(found[2])) if found else Size(0, 0)
    if not 2 <= size.patches <= MOST:
        raise UserError(f'size {text!r} is not valid: write rows x columns, such as "2x3", with 2 to {MOST} patches in all')
    return size


def shuffled(count: int, draw: random.Random, identity: bool) -> list[int]:
    """A uniformly random forward permutation; without `identity` never 1, 2, 3..., which needs at least 3 patches."""
    order = list(range(1, count + 1))
    while True:
        draw.shuffle(order)
        if identity or any(place != slot for slot, place in enumerate(order, 1)):
            return order


def inverse_of(order: Sequence[int]) -> list[int]:
    """The inverse of a forward permutation, and the other way round."""
    turned = [0] * len(order)
    for slot, place in enumerate(order, 1):
        turned[place - 1] = slot
    return turned


def cut(picture: Image, size: Size) -> list[Image]:
    """The patches row by row, all of one size; remaining pixels at the right and at the bottom are left out."""
    width, height = picture.width // size.columns, picture.height // size.rows
    return [
        picture.crop((column * width, row * height, (column + 1) * width, (row + 1) * height))
        for row in range(size.rows)
        for column in range(size.columns)
    ]


def laid_out(patches: Sequence[Image], size: Size) -> Image:
    """The patches as one picture, row by row."""
    from PIL import Image

    width, height = patches[0].size
    whole = Image.new("RGB", (width * size.columns, height * size.rows))
    for patch, (left, top, _, _) in zip(patches, boxes(whole.size, size), strict=True):
        whole.paste(patch, (left, top))
    return whole


def boxes(picture: tuple[int, int], size: Size) -> list[tuple[int, int, int, int]]:
    """(left, top, right, bottom) in pixels of each position of a grid that fills a picture of (width, height)."""
    width, height = picture[0] // size.columns, picture[1] // size.rows
    return [
        (column * width, row * height, (column + 1) * width, (row + 1) * height)
        for row in range(size.rows)
        for column in range(size.columns)
    ]


def masked(picture: Image, size: Size, ratio: float) -> Image:
    """A copy with a black border in each patch, as in Jigsaw-R1: `ratio` of its height and width where the picture ends, half of
    that towards other patches."""
    from PIL import ImageDraw

    picture = picture.copy()
    width, height = picture.size
    draw = ImageDraw.Draw(picture)
    for i, (left, top, right, bottom) in enumerate(boxes(picture.size, size)):
        row, column = divmod(i, size.columns)
        across, down = int((right - left) * ratio), int((bottom - top) * ratio)
        bars = (
            (left, 0, left + (across if column == 0 else across // 2), height),
            (right - (across if column == size.columns - 1 else across // 2), 0, right, height),
            (0, top, width, top + (down if row == 0 else down // 2)),
            (0, bottom - (down if row == size.rows - 1 else down // 2), width, bottom),
        )
        for x1, y1, x2, y2 in bars:
            if x1 < x2 and y1 < y2:
                draw.rectangle((x1, y1, x2 - 1, y2 - 1), fill="black")
    return picture


def relation(first: int, second: int, columns: int) -> str:
    """The relative position of the patch at the original position `first` to that at `second`, one of `RELATIONS`."""
    (row, column), (other_row, other_column) = divmod(first - 1, columns), divmod(second - 1, columns)
    if row == other_row:
        return RELATIONS[0 if column < other_column else 1]
    if column == other_column:
        return RELATIONS[2 if row < other_row else 3]
    return RELATIONS[4 + 2 * (row > other_row) + (column > other_column)]


def relations(size: Size) -> tuple[str, ...]:
    """The possible relations in a grid of this size: two in a single row or column."""
    return RELATIONS[:2] if size.rows == 1 else RELATIONS[2:4] if size.columns == 1 else RELATIONS
