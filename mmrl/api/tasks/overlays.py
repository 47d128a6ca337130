"""What is drawn over a prompt's pictures for people: what is true there, and what a completion says."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from mmrl.api.coordinates import CoordinateFormat, ImageProcessing, convert_coordinates
from mmrl.api.errors import is_finite
from mmrl.api.media.images import load_image
from mmrl.api.types import Prompt

OverlayKind = Literal["box", "point", "path", "grid", "interval"]
OverlaySource = Literal["true", "said"]
MOST = 32
"""Marks of a rollout that are true, and as many that are said; more are left out."""
FAR = 10.0
"""How far beyond its picture a place may be, in widths and heights of it; a number that is further off is no place."""
LATEST = 1e6
"""Seconds: no interval ends later."""
CORNERS, CELLS = 64, 400
"""Points of a path and cells of a grid, at most."""
LONGEST = 80
"""Characters of a label; of a longer one the end is left out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """Something that is drawn over a picture, or under a video."""

    kind: OverlayKind
    """box, point, path (an arrow stands at its end), grid, or interval of a video."""
    coordinates: Sequence[float]
    """In parts of the picture's width and height, 0 to 1: (x1, y1, x2, y2) of a box, (x, y) of a point, (x1, y1, x2, y2, ...) of
    a path. (rows, columns) of a grid that fills the picture. (start, end, length of the video) of an interval, in seconds."""
    source: OverlaySource
    """Whether it is true, or what a completion says."""
    label: str = ""
    """A few words beside it, such as a name or a score."""
    image: int = 0
    """Which of the prompt's pictures it is on, of an interval which of its videos, from 0."""
    labels: Sequence[str] = ()
    """What stands in the cells of a grid, row by row; an empty text leaves one free."""


def box_overlay(corners: Sequence[float], size: tuple[int, int], of: OverlaySource, label: str = "", image: int = 0) -> Overlay:
    """The mark of a box, x1, y1, x2, y2 in pixels of a picture of (width, height); corners may be given in reverse."""
    x1, y1, x2, y2 = convert_coordinates(corners, CoordinateFormat.PIXELS, CoordinateFormat.UNIT, size)
    return Overlay(
        kind="box", coordinates=(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)), source=of, label=label, image=image
    )


def point_overlay(at: Sequence[float], size: tuple[int, int], of: OverlaySource, label: str = "", image: int = 0) -> Overlay:
    """The mark of a point, x, y in pixels of a picture of (width, height)."""
    return Overlay(
        kind="point",
        coordinates=convert_coordinates(at, CoordinateFormat.PIXELS, CoordinateFormat.UNIT, size),
        source=of,
        label=label,
        image=image,
    )


def ground_truth_overlays(prompt: Prompt, eyes: ImageProcessing) -> list[Overlay]:
    """The boxes and points of `meta["boxes"]` and `meta["points"]` on the prompt's first picture.

    (x1, y1, x2, y2) and (x, y), in pixels of the original or in the frame that `meta["frame"]` names; a box may also be a mapping
    of "bbox_2d" and "label".
    """
    boxes, points = prompt.meta.get("boxes", ()), prompt.meta.get("points", ())
    if not prompt.images or not (len(boxes) or len(points)):
        return []
    size = load_image(prompt.images[0]).size

    def pixels(numbers: Sequence[float]) -> tuple[float, ...]:
        found: tuple[float, ...] = convert_coordinates(
            list(numbers), prompt.meta.get("frame", CoordinateFormat.PIXELS), CoordinateFormat.PIXELS, size, eyes.model_size(size)
        )
        return found

    named = [(b["bbox_2d"], str(b.get("label", ""))) if isinstance(b, Mapping) else (b, "") for b in boxes]
    return [
        *(box_overlay(pixels(corners), size, "true", label) for corners, label in named),
        *(point_overlay(pixels(at), size, "true") for at in points),
    ]


def overlay_error(mark: Any) -> str:
    """What keeps a mark from being drawn; empty where nothing does."""
    if not isinstance(mark, Overlay):
        return f"it is a {type(mark).__name__} and no mmrl.Overlay"
    if mark.kind not in get_args(OverlayKind) or mark.source not in get_args(OverlaySource):
        kinds = ", ".join(get_args(OverlayKind))
        return f"kind = {mark.kind!r:.40} must be one of {kinds}, and source = {mark.source!r:.40} true or said"
    if type(mark.image) is not int or not 0 <= mark.image < 1000:
        return f"image = {mark.image!r:.40} must be a whole number from 0: which of the prompt's pictures or videos"
    if not isinstance(mark.labels, list | tuple) or not all(isinstance(text, str) for text in (mark.label, *mark.labels)):
        return "label must be a text, and labels a tuple of texts"
    if not isinstance(mark.coordinates, list | tuple) or not all(map(is_finite, mark.coordinates)):
        return f"at = {mark.coordinates!r:.80} must be finite numbers"
    return _WRONG[mark.kind](mark)


def _wrong_box(mark: Overlay) -> str:
    ordered = (
        len(mark.coordinates) == 4 and mark.coordinates[0] <= mark.coordinates[2] and mark.coordinates[1] <= mark.coordinates[3]
    )
    return _far(mark) if ordered else f"the box {tuple(mark.coordinates)} must be x1, y1, x2, y2 with x1 <= x2 and y1 <= y2"


def _wrong_point(mark: Overlay) -> str:
    return _far(mark) if len(mark.coordinates) == 2 else f"the point {tuple(mark.coordinates)} must be x, y"


def _wrong_path(mark: Overlay) -> str:
    even = not len(mark.coordinates) % 2 and 4 <= len(mark.coordinates) <= 2 * CORNERS
    return _far(mark) if even else f"a path of {len(mark.coordinates)} numbers must be 2 to {CORNERS} pairs of x and y"


def _wrong_grid(mark: Overlay) -> str:
    whole = len(mark.coordinates) == 2 and all(v == int(v) and v >= 1 for v in mark.coordinates)
    if not whole or mark.coordinates[0] * mark.coordinates[1] > CELLS:
        return f"the grid {tuple(mark.coordinates)} must be rows, columns, whole numbers with at most {CELLS} cells"
    cells = int(mark.coordinates[0] * mark.coordinates[1])
    return (
        "" if len(mark.labels) == cells else f"the grid {tuple(mark.coordinates)} has {cells} cells and {len(mark.labels)} labels"
    )


def _wrong_interval(mark: Overlay) -> str:
    sound = (
        len(mark.coordinates) == 3
        and 0 <= mark.coordinates[0] <= mark.coordinates[1] <= LATEST
        and 0 < mark.coordinates[2] <= LATEST
    )
    return "" if sound else f"the interval {tuple(mark.coordinates)} must be start <= end and the video's length, in seconds"


def _far(mark: Overlay) -> str:
    near = all(-FAR <= v <= 1 + FAR for v in mark.coordinates)
    return (
        ""
        if near
        else f"{mark.kind} {tuple(mark.coordinates)!s:.80} is far off the picture: places are parts of its width and height"
    )


_WRONG = {"box": _wrong_box, "point": _wrong_point, "path": _wrong_path, "grid": _wrong_grid, "interval": _wrong_interval}


# -- as plain data ----------------------------------------------------------------------------------------------------------


def to_json(marks: Iterable[Overlay]) -> list[dict[str, Any]]:
    """Marks as the run folder keeps them, `MOST` of what is true and of what is said; what can't be drawn is left out."""
    sound = [mark for mark in marks if not overlay_error(mark)]
    kept = [mark for of in get_args(OverlaySource) for mark in [one for one in sound if one.source == of][:MOST]]
    return [_plain(mark) for mark in kept]


def _plain(mark: Overlay) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "kind": mark.kind,
        "source": mark.source,
        "coordinates": [round(float(v), 5) for v in mark.coordinates],
    }
    if mark.label:
        plain["label"] = mark.label[:LONGEST]
    if mark.labels:
        plain["labels"] = [text[:LONGEST] for text in mark.labels]
    return {**plain, "image": mark.image} if mark.image else plain


def from_json(value: Any) -> list[Overlay]:
    """The marks of a row, at most 2 * `MOST`. Whatever the row holds, nothing is raised: what can't be drawn is left out."""
    found = [_read(one) for one in value[: 2 * MOST]] if isinstance(value, list) else []
    return [mark for mark in found if mark is not None]


def _read(value: Any) -> Overlay | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("labels", []), list):
        return None
    fields = {name: value[name] for name in ("kind", "coordinates", "source", "label", "image", "labels") if name in value}
    if not {"kind", "coordinates", "source"} <= fields.keys() or not all(
        isinstance(fields[name], str) for name in ("kind", "source")
    ):
        return None
    mark = Overlay(**fields)
    return None if overlay_error(mark) else mark
