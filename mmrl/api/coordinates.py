"""Coordinate formats: how points on an image are written (units, order, tokens), and conversion between them."""

from __future__ import annotations

import enum
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


def convert_coordinates(
    coordinates: Sequence[Any],
    source: CoordinateFormat | str,
    target: CoordinateFormat | str,
    image_size: tuple[int, int],
    model_size: tuple[int, int] | None = None,
) -> Any:
    """Convert coordinates from the format `source` to the format `target`.

    coordinates: (x, y), (x1, y1, x2, y2) or any other flat sequence of x, y pairs, or a list of such sequences; of y, x pairs in
    formats that write y first, for source and target each.
    image_size: (width, height) of the original image, in pixels.
    model_size: (width, height) of the image as the model sees it, in pixels; needed for `MODEL_PIXELS`.

    Returns floats in the same nesting: a tuple for a flat sequence, a list of tuples for a list. Nothing is rounded, clipped:
    reversed corners stay reversed, and a round trip returns the same numbers. Rounding to whole numbers in between costs at most
    half a unit of that format.

    Raises ValueError for an odd number of coordinates, or when model_size is needed and missing.
    """
    if len(coordinates) and hasattr(coordinates[0], "__len__"):
        return [convert_coordinates(c, source, target, image_size, model_size) for c in coordinates]
    if len(coordinates) % 2:
        raise ValueError(f"coordinates are pairs of x and y, got {len(coordinates)} numbers")
    one, other = CoordinateFormat(source), CoordinateFormat(target)
    before, after = (_extent(f, image_size, model_size) for f in (one, other))
    scaled = [
        float(v) if a == b else float(v) * b / a
        for v, a, b in zip(one.swapped(coordinates), itertools.cycle(before), itertools.cycle(after), strict=False)
    ]
    return other.swapped(scaled)


def _extent(frame: CoordinateFormat, image_size: tuple[int, int], model_size: tuple[int, int] | None) -> tuple[float, float]:
    """The largest x and y of an image in a coordinate format."""
    if frame is CoordinateFormat.MODEL_PIXELS:
        if model_size is None:
            raise ValueError("model_size is needed for coordinates in model-pixels")
        return model_size
    return image_size if frame is CoordinateFormat.PIXELS else _EXTENTS[frame]


class CoordinateFormat(enum.StrEnum):
    """The unit in which coordinates are written."""

    PIXELS = "pixels"
    """Pixels of the original image."""
    MODEL_PIXELS = "model-pixels"
    """Pixels of the image after the processor resized it (Qwen2.5-VL)."""
    THOUSANDTHS = "thousandths"
    """0..1000 of width and height (Qwen2-VL, Qwen3-VL)."""
    UNIT = "unit"
    """0..1 of width and height."""
    THOUSANDTHS_YX = "thousandths-yx"
    """0..1000 of height and width, y before x, as in `box_2d` (Gemini, Gemma 4)."""
    LOCATION_TOKENS = "location-tokens"
    """0..1023 of height and width, y before x, each a token, `<loc0000>` to `<loc1023>` (PaliGemma)."""

    @property
    def y_first(self) -> bool:
        """Numbers are pairs of y and x."""
        return self in (CoordinateFormat.THOUSANDTHS_YX, CoordinateFormat.LOCATION_TOKENS)

    @property
    def box_key(self) -> str:
        """The key of a box in JSON."""
        return "box_2d" if self.y_first else "bbox_2d"

    @property
    def point_key(self) -> str:
        """The key of a point in JSON."""
        return "point" if self.y_first else "point_2d"

    def swapped(self, numbers: Sequence[Any]) -> tuple[Any, ...]:
        """x, y pairs in the order in which they are written, and the other way round."""
        if not self.y_first:
            return tuple(numbers)
        return tuple(v for x, y in zip(numbers[::2], numbers[1::2], strict=True) for v in (y, x))

    def names(self, what: str, json: bool = False) -> str:
        """The numbers of a box or a point in a prompt: `x1 y1 x2 y2`, in JSON `[x1, y1, x2, y2]`. what: box or point."""
        names = self.swapped(("x1", "y1", "x2", "y2") if what == "box" else ("x", "y"))
        if self is CoordinateFormat.LOCATION_TOKENS:
            tokens = "".join(f"<{name}>" for name in names)
            return f'"{tokens}"' if json else tokens
        return f"[{', '.join(names)}]" if json else " ".join(names)

    def rounded(
        self, exact: Sequence[float], fits: Callable[[tuple[float, ...]], bool] = lambda numbers: True
    ) -> tuple[Any, ...]:
        """Numbers of this format as an answer has them: whole, or with three decimals of the unit square.

        fits: whether rounded numbers still do, such as a box that has an area; otherwise they keep more decimals. Location tokens
        have none: they stay on the picture, and a box that doesn't fit is enlarged to the next ones.
        """
        if self is CoordinateFormat.LOCATION_TOKENS:
            found = tuple(map(_on_picture, map(round, exact)))
            if len(exact) != 4 or fits(found):
                return found
            return tuple(map(_on_picture, (*map(math.floor, exact[:2]), *map(math.ceil, exact[2:]))))
        unit = self is CoordinateFormat.UNIT
        for digits in range(3 if unit else 0, 9):
            decimals = tuple(round(float(v), digits) for v in exact)
            if fits(decimals):
                break
        return decimals if unit else tuple(int(v) if v == int(v) else v for v in decimals)

    def text(self, numbers: Sequence[float], plain: Callable[[float], str] = str) -> str:
        """Numbers in an answer: with blanks between them, each as `plain` writes it, or location tokens."""
        if self is CoordinateFormat.LOCATION_TOKENS:
            return "".join(f"<loc{_on_picture(round(v)):04d}>" for v in numbers)
        return " ".join(map(plain, numbers))

    def json_value(self, numbers: Sequence[float]) -> list[float] | str:
        """Numbers as a value of JSON: a list, or a text of location tokens."""
        return self.text(numbers) if self is CoordinateFormat.LOCATION_TOKENS else list(numbers)

    def without_tokens(self, text: str) -> str:
        """A completion with numbers in place of its location tokens: bare ones, and a list for a text of JSON that holds several.
        Completions in other formats stay as they are."""
        if self is not CoordinateFormat.LOCATION_TOKENS:
            return text
        return _TOKENS.sub(_numbers, text)


_LAST = 1023
_EXTENTS = {
    CoordinateFormat.THOUSANDTHS: (1000, 1000),
    CoordinateFormat.UNIT: (1, 1),
    CoordinateFormat.THOUSANDTHS_YX: (1000, 1000),
    CoordinateFormat.LOCATION_TOKENS: (_LAST, _LAST),  # as PaliGemma's training data: round(1023 * share)
}
_TOKENS = re.compile(r'("?)((?:<loc[0-9]{4}>)+)("?)')


def _on_picture(token: int) -> int:
    return min(_LAST, max(0, token))


def _numbers(found: re.Match[str]) -> str:
    numbers = [str(int(found[2][at : at + 4])) for at in range(4, len(found[2]), len("<loc0000>"))]
    if not (found[1] and found[3]):
        return f"{found[1]} {' '.join(numbers)} {found[3]}"
    return numbers[0] if len(numbers) == 1 else f"[{', '.join(numbers)}]"


@dataclass(frozen=True, slots=True)
class ImageProcessing:
    """How a policy resizes images, and in which coordinate format it writes points on them."""

    coordinate_format: CoordinateFormat = CoordinateFormat.PIXELS
    """The format in which it writes coordinates."""
    model_size: Callable[[tuple[int, int]], tuple[int, int]] = lambda size: size
    """(width, height) of an image -> (width, height) of the image as the model sees it, in pixels."""
