"""Overlays on a prompt's images, for people: the ground truth, and the prediction in a completion."""

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
"""Largest number of overlays of each source per rollout; further ones are left out."""
FAR = 10.0
"""How far a point may be outside of its image, in widths and heights of the image; points further away are refused."""
LATEST = 1e6
"""Latest end of an interval, in seconds."""
CORNERS, CELLS = 64, 400
"""Largest number of points of a path, and of cells of a grid."""
LONGEST = 80
"""Largest number of characters of a label; longer labels are cut off."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlay:
    """A shape that is drawn over an image, or below a video."""

    kind: OverlayKind
    """box, point, path (with an arrowhead at its end), grid, or interval of a video."""
    coordinates: Sequence[float]
    """As shares of the image's width and height, 0 to 1: (x1, y1, x2, y2) of a box, (x, y) of a point, (x1, y1, x2, y2, ...) of a
    path. (rows, columns) of a grid that fills the image. (start, end, duration of the video) of an interval, in seconds."""
    source: OverlaySource
    """`true`: the ground truth; `said`: the prediction in a completion."""
    label: str = ""
    """A short text beside it, such as a name or a score."""
    image: int = 0
    """Index of the prompt's image, or of the prompt's video for an interval, from 0."""
    labels: Sequence[str] = ()
    """Texts in the cells of a grid, row by row; an empty text leaves the cell empty."""


def box_overlay(corners: Sequence[float], size: tuple[int, int], of: OverlaySource, label: str = "", image: int = 0) -> Overlay:
    """The overlay of a box. corners: (x1, y1, x2, y2) in pixels, may be reversed. size: (width, height) of the image in pixels.
    of: its source."""
    x1, y1, x2, y2 = convert_coordinates(corners, CoordinateFormat.PIXELS, CoordinateFormat.UNIT, size)
    return Overlay(
        kind="box", coordinates=(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)), source=of, label=label, image=image
    )


def point_overlay(at: Sequence[float], size: tuple[int, int], of: OverlaySource, label: str = "", image: int = 0) -> Overlay:
    """The overlay of a point. at: (x, y) in pixels. size: (width, height) of the image in pixels. of: its source."""
    return Overlay(
        kind="point",
        coordinates=convert_coordinates(at, CoordinateFormat.PIXELS, CoordinateFormat.UNIT, size),
        source=of,
        label=label,
        image=image,
    )


def ground_truth_overlays(prompt: Prompt, image_processing: ImageProcessing) -> list[Overlay]:
    """Overlays of the boxes and points in `meta["boxes"]` and `meta["points"]`, on the prompt's first image.

    Boxes are (x1, y1, x2, y2) or {"bbox_2d": box, "label": text}, points (x, y): in pixels of the original image, or in the
    coordinate format `meta["frame"]`.
    """
    boxes, points = prompt.meta.get("boxes", ()), prompt.meta.get("points", ())
    if not prompt.images or not (len(boxes) or len(points)):
        return []
    size = load_image(prompt.images[0]).size

    def pixels(numbers: Sequence[float]) -> tuple[float, ...]:
        found: tuple[float, ...] = convert_coordinates(
            list(numbers),
            prompt.meta.get("frame", CoordinateFormat.PIXELS),
            CoordinateFormat.PIXELS,
            size,
            image_processing.model_size(size),
        )
        return found

    named = [(b["bbox_2d"], str(b.get("label", ""))) if isinstance(b, Mapping) else (b, "") for b in boxes]
    return [
        *(box_overlay(pixels(corners), size, "true", label) for corners, label in named),
        *(point_overlay(pixels(at), size, "true") for at in points),
    ]


def overlay_error(overlay: Any) -> str:
    """Why an overlay can't be drawn; empty if it can."""
    if not isinstance(overlay, Overlay):
        return f"it is a {type(overlay).__name__}, not a mmrl.Overlay"
    if overlay.kind not in get_args(OverlayKind) or overlay.source not in get_args(OverlaySource):
        kinds = ", ".join(get_args(OverlayKind))
        return f"kind = {overlay.kind!r:.40} must be one of {kinds}, and source = {overlay.source!r:.40} true or said"
    if type(overlay.image) is not int or not 0 <= overlay.image < 1000:
        return f"image = {overlay.image!r:.40} must be a whole number from 0: which of the prompt's pictures or videos"
    if not isinstance(overlay.labels, list | tuple) or not all(
        isinstance(text, str) for text in (overlay.label, *overlay.labels)
    ):
        return "label must be a text, and labels a tuple of texts"
    if not isinstance(overlay.coordinates, list | tuple) or not all(map(is_finite, overlay.coordinates)):
        return f"coordinates = {overlay.coordinates!r:.80} must be finite numbers"
    return _CHECKS[overlay.kind](overlay)


def _box_error(overlay: Overlay) -> str:
    ordered = (
        len(overlay.coordinates) == 4
        and overlay.coordinates[0] <= overlay.coordinates[2]
        and overlay.coordinates[1] <= overlay.coordinates[3]
    )
    return (
        _distance_error(overlay)
        if ordered
        else f"the box {tuple(overlay.coordinates)} must be x1, y1, x2, y2 with x1 <= x2 and y1 <= y2"
    )


def _point_error(overlay: Overlay) -> str:
    return _distance_error(overlay) if len(overlay.coordinates) == 2 else f"the point {tuple(overlay.coordinates)} must be x, y"


def _path_error(overlay: Overlay) -> str:
    even = not len(overlay.coordinates) % 2 and 4 <= len(overlay.coordinates) <= 2 * CORNERS
    return (
        _distance_error(overlay)
        if even
        else f"a path of {len(overlay.coordinates)} numbers must be 2 to {CORNERS} pairs of x and y"
    )


def _grid_error(overlay: Overlay) -> str:
    whole = len(overlay.coordinates) == 2 and all(v == int(v) and v >= 1 for v in overlay.coordinates)
    if not whole or overlay.coordinates[0] * overlay.coordinates[1] > CELLS:
        return f"the grid {tuple(overlay.coordinates)} must be rows, columns, whole numbers with at most {CELLS} cells"
    cells = int(overlay.coordinates[0] * overlay.coordinates[1])
    return (
        ""
        if len(overlay.labels) == cells
        else f"the grid {tuple(overlay.coordinates)} has {cells} cells and {len(overlay.labels)} labels"
    )


def _interval_error(overlay: Overlay) -> str:
    sound = (
        len(overlay.coordinates) == 3
        and 0 <= overlay.coordinates[0] <= overlay.coordinates[1] <= LATEST
        and 0 < overlay.coordinates[2] <= LATEST
    )
    return "" if sound else f"the interval {tuple(overlay.coordinates)} must be start <= end and the video's length, in seconds"


def _distance_error(overlay: Overlay) -> str:
    near = all(-FAR <= v <= 1 + FAR for v in overlay.coordinates)
    return (
        ""
        if near
        else f"{overlay.kind} {tuple(overlay.coordinates)!s:.80} is far off the image: give shares of its width and height"
    )


_CHECKS = {"box": _box_error, "point": _point_error, "path": _path_error, "grid": _grid_error, "interval": _interval_error}


# -- as plain data ----------------------------------------------------------------------------------------------------------


def to_json(overlays: Iterable[Overlay]) -> list[dict[str, Any]]:
    """Overlays as plain data for the run folder, at most `MOST` of each source; those that can't be drawn are left out."""
    sound = [overlay for overlay in overlays if not overlay_error(overlay)]
    kept = [overlay for of in get_args(OverlaySource) for overlay in [one for one in sound if one.source == of][:MOST]]
    return [_plain(overlay) for overlay in kept]


def _plain(overlay: Overlay) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "kind": overlay.kind,
        "source": overlay.source,
        "coordinates": [round(float(v), 5) for v in overlay.coordinates],
    }
    if overlay.label:
        plain["label"] = overlay.label[:LONGEST]
    if overlay.labels:
        plain["labels"] = [text[:LONGEST] for text in overlay.labels]
    return {**plain, "image": overlay.image} if overlay.image else plain


def from_json(value: Any) -> list[Overlay]:
    """Overlays from plain data, at most 2 * `MOST`. It never raises: invalid entries are left out."""
    found = [_read(one) for one in value[: 2 * MOST]] if isinstance(value, list) else []
    return [overlay for overlay in found if overlay is not None]


def _read(value: Any) -> Overlay | None:
    if not isinstance(value, Mapping) or not isinstance(value.get("labels", []), list):
        return None
    fields = {name: value[name] for name in ("kind", "coordinates", "source", "label", "image", "labels") if name in value}
    if not {"kind", "coordinates", "source"} <= fields.keys() or not all(
        isinstance(fields[name], str) for name in ("kind", "source")
    ):
        return None
    overlay = Overlay(**fields)
    return None if overlay_error(overlay) else overlay
