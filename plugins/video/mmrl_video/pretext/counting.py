"""`video/counting`: how many shapes of each kind were added to a clip, after VideoSSR's object counting."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mmrl.api.tasks.option_checks import check_integer
from mmrl_video.drawn.task import Posed, some
from mmrl_video.pretext.task import Pretext

if TYPE_CHECKING:
    import numpy as np

SHAPES = ("circle", "square", "triangle")
LARGE = (0.2, 0.4)
"""Minimal and maximal side of a shape, as shares of the picture's shorter side."""
MIDDLE = 0.7
"""The share of the picture, around its middle, that contains shapes."""
FINE = 4
TRIES = 50


@dataclass(kw_only=True, eq=False)
class Counting(Pretext):
    """A few frames have shapes of one kind, of any colour and angle, which don't touch; frames of one kind are apart in time."""

    shapes: Sequence[str] = SHAPES
    """Shapes to count, in the order of the answer: circle, square, triangle."""
    places: int = 3
    """Maximum of frames with shapes of a kind; the minimum is one."""
    together: int = 3
    """Maximum of shapes in such a frame."""

    about = "counting"
    things = ("cross",)

    def __post_init__(self) -> None:
        some("shapes", self.shapes, SHAPES)
        check_integer("places", self.places, 1, 8)
        check_integer("together", self.together, 1, 4)
        super().__post_init__()

    def pose(self, draw: random.Random, split: str, index: int) -> tuple[Posed, list[np.ndarray], float]:
        frames_THWC, fps = self.read(split, index)
        frames_THWC = frames_THWC.copy()
        counts: list[int] = []
        free = list(range(len(frames_THWC)))
        for shape in self.shapes:
            at = _apart(draw, free, draw.randint(1, self.places), max(1, self.frames // 6))
            free = [i for i in free if i not in at]
            counts.append(sum(_lay(draw, frames_THWC[i], shape, draw.randint(1, self.together)) for i in at))
        named = ", ".join(f"{shape}s" for shape in self.shapes)
        what = "the number alone" if len(counts) == 1 else "the numbers alone, separated by commas, in this order"
        said = ",".join(map(str, counts))
        posed = Posed(
            text=f"Shapes of any colour and angle flash up in this clip. How many {named} are there in all?",
            answer=dict(zip(self.shapes, counts, strict=True)),
            said=said,
            thought="I count them frame by frame.",
            what=what,
            meta={"asks": "counts", "shapes": list(self.shapes), "difficulty": sum(counts)},
        )
        return posed, [frames_THWC], fps


def _apart(draw: random.Random, free: Sequence[int], count: int, apart: int) -> list[int]:
    """At most `count` of the free frames, more than `apart` from each other; at least one."""
    found: list[int] = []
    for one in draw.sample(list(free), len(free)):
        if len(found) < count and all(abs(one - other) > apart for other in found):
            found.append(one)
    return found


def _lay(draw: random.Random, frame_HWC: np.ndarray, shape: str, count: int) -> int:
    """Draws shapes on a frame and returns how many fit, at least one."""
    import numpy as np

    height, width = frame_HWC.shape[:2]
    short = min(height, width)
    done: list[tuple[float, float, float]] = []
    for _ in range(count):
        for _ in range(TRIES):
            size = short * draw.uniform(*LARGE)
            reach = size / 2 * (1 if shape == "circle" else math.sqrt(2))
            x, y = (_within(draw, side, reach) for side in (width, height))
            if all(math.hypot(x - a, y - b) > reach + other + 1 for a, b, other in done):
                break
        else:
            break  # no more room: overlapping shapes can't be counted
        done.append((x, y, reach))
        behind = frame_HWC[int(y) % height, int(x) % width].astype(int)
        colour_3 = np.array([draw.randint(50, 255) for _ in range(3)])
        while np.abs(colour_3 - behind).max() < 60:  # otherwise it would be invisible
            colour_3 = np.array([draw.randint(50, 255) for _ in range(3)])
        cover_HW1 = _cover(shape, (width, height), (x, y), size, draw.uniform(0, 2 * math.pi))[..., None]
        frame_HWC[:] = (frame_HWC * (1 - cover_HW1) + colour_3 * cover_HW1).round().astype(np.uint8)
    return len(done)


def _within(draw: random.Random, side: int, reach: float) -> float:
    """A position on a side, in its middle part if there is room, and fully in the picture."""
    low, high = side * (1 - MIDDLE) / 2 + reach, side * (1 + MIDDLE) / 2 - reach
    return draw.uniform(low, high) if low < high else draw.uniform(min(reach, side / 2), max(side - reach, side / 2))


def _cover(shape: str, picture: tuple[int, int], at: tuple[float, float], size: float, turned: float) -> np.ndarray:
    """Coverage of each pixel by a shape, float32 [H, W]."""
    import numpy as np
    from PIL import Image, ImageDraw

    fine = Image.new("L", (picture[0] * FINE, picture[1] * FINE))
    pen, (x, y) = ImageDraw.Draw(fine), (at[0] * FINE, at[1] * FINE)
    if shape == "circle":
        radius = size / 2 * FINE
        pen.ellipse((x - radius, y - radius, x + radius, y + radius), fill=255)
    else:
        corners = 4 if shape == "square" else 3
        radius = size / math.sqrt(2 if corners == 4 else 3) * FINE
        angles = [turned + 2 * math.pi * i / corners for i in range(corners)]
        pen.polygon([(x + radius * math.cos(a), y + radius * math.sin(a)) for a in angles], fill=255)
    return np.asarray(fine.resize(picture, Image.Resampling.BOX), np.float32) / 255
