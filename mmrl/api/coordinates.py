"""Coordinate formats: the units in which points on an image are written, and conversion between them."""

from __future__ import annotations

import enum
import itertools
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

    coordinates: (x, y), (x1, y1, x2, y2) or any other flat sequence of x, y pairs, or a list of such sequences.
    image_size: (width, height) of the original image, in pixels.
    model_size: (width, height) of the image as the model sees it, in pixels; needed for `MODEL_PIXELS`.

    Returns floats in the same nesting: a tuple for a flat sequence, a list of tuples for a list. Nothing is rounded, clipped or
    reordered: reversed corners stay reversed, and a round trip returns the same numbers. Rounding to whole numbers in between
    costs at most half a unit of that format.

    Raises ValueError for an odd number of coordinates, or when model_size is needed and missing.
    """
    if len(coordinates) and hasattr(coordinates[0], "__len__"):
        return [convert_coordinates(c, source, target, image_size, model_size) for c in coordinates]
    if len(coordinates) % 2:
        raise ValueError(f"coordinates are pairs of x and y, got {len(coordinates)} numbers")
    before, after = (_extent(CoordinateFormat(f), image_size, model_size) for f in (source, target))
    return tuple(
        float(v) if a == b else float(v) * b / a
        for v, a, b in zip(coordinates, itertools.cycle(before), itertools.cycle(after), strict=False)
    )


def _extent(frame: CoordinateFormat, image_size: tuple[int, int], model_size: tuple[int, int] | None) -> tuple[float, float]:
    """The largest x and y of an image in a coordinate format."""
    if frame is CoordinateFormat.MODEL_PIXELS:
        if model_size is None:
            raise ValueError("model_size is needed for coordinates in model-pixels")
        return model_size
    return {CoordinateFormat.PIXELS: image_size, CoordinateFormat.THOUSANDTHS: (1000, 1000), CoordinateFormat.UNIT: (1, 1)}[frame]


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


@dataclass(frozen=True, slots=True)
class ImageProcessing:
    """How a policy resizes images, and in which coordinate format it writes points on them."""

    coordinate_format: CoordinateFormat = CoordinateFormat.PIXELS
    """The format in which it writes coordinates."""
    model_size: Callable[[tuple[int, int]], tuple[int, int]] = lambda size: size
    """(width, height) of an image -> (width, height) of the image as the model sees it, in pixels."""
