"""A picture with a hole, and patches of which one fills it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from mmrl import UserError

if TYPE_CHECKING:
    from PIL.Image import Image

Box = tuple[int, int, int, int]
GAP = 4
"""Pixels between patches in a row."""
DRAWN = 24
"""Number of positions that are tried for wrong patches."""
UNLIKE = 8.0
"""Mean difference of two patches' pixels, of 255, from which it is obvious."""


def with_hole(picture: Image, box: Box) -> Image:
    """A copy that is grey within the box."""
    shown = picture.copy()
    shown.paste((127, 127, 127), box)
    return shown


def others(picture: Image, box: Box, count: int, draw: random.Random) -> list[Image]:
    """Patches of the box's size from elsewhere in the picture, which don't overlap it and look like neither it nor each other.

    If a picture has too few that differ clearly, those that differ the most. Raises UserError if they are all the same.
    """
    side, found = box[2] - box[0], [picture.crop(box)]
    places = [(draw.randint(0, picture.width - side), draw.randint(0, picture.height - side)) for _ in range(DRAWN)]
    patches = [picture.crop((x, y, x + side, y + side)) for x, y in places if abs(x - box[0]) >= side or abs(y - box[1]) >= side]
    while len(found) <= count:
        unlike = [min(difference(patch, other) for other in found) for patch in patches]
        best = max(unlike, default=0.0)
        if not best:
            raise UserError(f"it doesn't have {count} patches that differ from the missing one: remove it, or lower choices")
        chosen = next((i for i, value in enumerate(unlike) if value >= UNLIKE), unlike.index(best))
        found.append(patches.pop(chosen))
    return found[1:]


def below(picture: Image, patches: Sequence[Image]) -> tuple[list[Image], list[Box]]:
    """(one picture with the patches in a row below it, on white; their boxes)."""
    from PIL import Image

    side = patches[0].width
    across = len(patches) * (side + GAP) - GAP
    whole = Image.new("RGB", (max(picture.width, across), picture.height + 2 * GAP + side), "white")
    whole.paste(picture, (0, 0))
    top = picture.height + 2 * GAP
    boxes = [(left, top, left + side, top + side) for left in range(0, across, side + GAP)]
    for patch, box in zip(patches, boxes, strict=True):
        whole.paste(patch, box)
    return [whole], boxes


def difference(a: Image, b: Image) -> float:
    """Mean over pixels and channels, of 255."""
    import numpy

    return float(numpy.abs(numpy.asarray(a, dtype=numpy.int16) - numpy.asarray(b, dtype=numpy.int16)).mean())
