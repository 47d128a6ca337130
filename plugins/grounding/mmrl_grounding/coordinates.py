"""Coordinate formats of answers and of the ground truth.

The ground truth is in pixels of the original picture. Completions are read, and gold completions written, in the policy's
coordinate format, or in the one that a task sets with `meta["answer_frame"]`.
"""

from __future__ import annotations

from collections.abc import Sequence

from mmrl import Case
from mmrl.api.coordinates import CoordinateFormat, convert_coordinates
from mmrl_grounding.geometry import is_box

Size = tuple[int, int]


def written(
    numbers: Sequence[float], coordinate_format: CoordinateFormat, image_size: Size, model_size: Size
) -> tuple[float, ...]:
    """Pixels of the original, x, y pairs, as an answer writes them, see `CoordinateFormat.rounded`. Pixels of the original stay
    as they are. A box keeps an area.
    """
    if coordinate_format is CoordinateFormat.PIXELS:
        return tuple(numbers)
    exact = convert_coordinates(numbers, CoordinateFormat.PIXELS, coordinate_format, image_size, model_size)
    return coordinate_format.rounded(exact, lambda numbers: len(numbers) != 4 or is_box(numbers))


def format_of(case: Case) -> CoordinateFormat:
    """The coordinate format of the completion's numbers."""
    forced = case.meta.get("answer_frame")
    return CoordinateFormat(forced) if forced else case.coordinate_format


def truth_as_written(numbers: Sequence[float], case: Case) -> tuple[float, ...]:
    """The truth in the completion's format, as in a gold completion. Without the picture's size it stays in pixels."""
    coordinate_format = format_of(case)
    if coordinate_format is CoordinateFormat.PIXELS or not case.image_sizes:
        return tuple(numbers)
    return written(numbers, coordinate_format, case.image_sizes[0], (case.model_sizes or case.image_sizes)[0])


def in_pixels(numbers: Sequence[float], case: Case) -> tuple[float, ...]:
    """A completion's numbers, pairs as its format orders them, in pixels of the original.

    If the case has no picture, they are pixels of `meta["input_wh"]` and scaled to `meta["image_wh"]`, as in tables of published
    rewards; without these they are not converted.
    """
    if not case.image_sizes:
        if "image_wh" not in case.meta or "input_wh" not in case.meta:
            return tuple(numbers)
        scales = tuple(zip(case.meta["input_wh"], case.meta["image_wh"], strict=True))
        return tuple(v / scales[i % 2][0] * scales[i % 2][1] for i, v in enumerate(numbers))
    coordinate_format = format_of(case)
    if coordinate_format is CoordinateFormat.PIXELS:
        return tuple(numbers)
    return convert_coordinates(
        numbers, coordinate_format, CoordinateFormat.PIXELS, case.image_sizes[0], (case.model_sizes or case.image_sizes)[0]
    )
