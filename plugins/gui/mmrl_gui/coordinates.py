"""Formats of positions on a screen: an `mmrl.CoordinateFormat`, or a grid with numbered cells.

Positions are stored in pixels of the screen's own picture. Tasks write, verifiers and environments read, through `Numbers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mmrl import Case, CoordinateFormat, ImageProcessing
from mmrl.api.coordinates import convert_coordinates
from mmrl.api.simulators.gui import Box, Point
from mmrl_gui.geometry import inside, is_box, middle

Size = tuple[int, int]
_WHERE = {
    CoordinateFormat.PIXELS: "pixels of the {0} x {1} screen",
    CoordinateFormat.MODEL_PIXELS: "pixels of the {0} x {1} screen",
    CoordinateFormat.THOUSANDTHS: "thousandths of the screen's width and height",
    CoordinateFormat.UNIT: "parts of the screen's width and height, from 0 to 1",
    CoordinateFormat.THOUSANDTHS_YX: "thousandths of the screen's height and width",
    CoordinateFormat.LOCATION_TOKENS: "location tokens, <loc0000> to <loc1023> of the screen's height and width",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    """The format of positions. Written numbers are in its order, pixels are x, y."""

    coordinate_format: CoordinateFormat = CoordinateFormat.PIXELS
    """The coordinate format, without a grid."""
    image: Size | None = None
    """(width, height) of the screen's picture in pixels; None leaves all numbers unchanged."""
    model: Size | None = None
    """(width, height) of the picture as the model sees it; by default the same."""
    grid: Size | None = None
    """(columns, rows): whole numbers from 0 name a cell and mean its middle. `coordinate_format` is not used then."""

    @property
    def order(self) -> CoordinateFormat:
        """The format that orders and writes the numbers: that of pixels on a grid, or if they stay unchanged."""
        return CoordinateFormat.PIXELS if self.grid or self.image is None else self.coordinate_format

    @property
    def is_coarse(self) -> bool:
        """Written numbers have no decimals, so that none may lie in a small box: the one for its middle is right then."""
        return bool(self.grid) or self.order is CoordinateFormat.LOCATION_TOKENS

    def pixels(self, point: Sequence[float]) -> Point:
        """A written point in pixels. A cell outside the grid is outside the picture."""
        if self.image is None:
            return float(point[0]), float(point[1])
        if self.grid:
            (width, height), (columns, rows) = self.image, self.grid
            return (int(point[0] // 1) + 0.5) * width / columns, (int(point[1] // 1) + 0.5) * height / rows
        x, y = convert_coordinates(point, self.coordinate_format, CoordinateFormat.PIXELS, self.image, self.model or self.image)
        return x, y

    def pixels_of_box(self, box: Sequence[float]) -> Box:
        """A written box in pixels, x1, y1, x2, y2. On a grid it is written as its first and last cell, both inclusive."""
        if self.image is None:
            return (float(box[0]), float(box[1]), float(box[2]), float(box[3]))
        if self.grid:
            (width, height), (columns, rows) = self.image, self.grid
            x1, y1, x2, y2 = (int(v // 1) for v in box)
            return x1 * width / columns, y1 * height / rows, (x2 + 1) * width / columns, (y2 + 1) * height / rows
        x1, y1, x2, y2 = convert_coordinates(
            box, self.coordinate_format, CoordinateFormat.PIXELS, self.image, self.model or self.image
        )
        return x1, y1, x2, y2

    def written(self, point: Sequence[float], within: Box | None = None) -> Point:
        """A point in pixels -> as written in an answer, see `CoordinateFormat.rounded`. within: the point must stay in this
        box."""
        if self.image is None:
            return float(point[0]), float(point[1])
        if self.grid:
            return self._cell(point)
        exact = convert_coordinates(point, CoordinateFormat.PIXELS, self.coordinate_format, self.image, self.model or self.image)
        a, b = self.coordinate_format.rounded(exact, lambda place: within is None or inside(self.pixels(place), within))
        return a, b

    def written_box(self, box: Sequence[float]) -> Box:
        """A box in pixels -> as written in an answer. It keeps an area; on a grid it is the first and the last cell that it
        touches."""
        if self.image is None:
            x1, y1, x2, y2 = map(float, box)
            return x1, y1, x2, y2
        if self.grid:
            x1, y1 = self._cell(box[:2])
            x2, y2 = self._cell(box[2:], closed=True)
            return x1, y1, max(x1, x2), max(y1, y2)
        exact = convert_coordinates(box, CoordinateFormat.PIXELS, self.coordinate_format, self.image, self.model or self.image)
        a, b, c, d = self.coordinate_format.rounded(exact, is_box)
        return a, b, c, d

    def hits(self, point: Sequence[float], box: Sequence[float]) -> bool:
        """Whether a written point lies in a box of pixels, its edges included. Where numbers are coarse, the one that is written
        for the middle of the box always does, because no other is closer."""
        if not self.is_coarse or self.image is None:
            return inside(self.pixels(point), box)
        return inside(self.pixels(point), box) or (int(point[0] // 1), int(point[1] // 1)) == self.written(middle(box))

    def holds(self, place: Point) -> bool:
        """Whether a point in pixels is on the screen, its edges included; True if the screen's size is unknown."""
        return self.image is None or inside(place, (0, 0, *self.image))

    def says(self) -> str:
        """The format as text for a prompt: `pixels of the 640 x 480 screen`."""
        if self.grid:
            columns, rows = self.grid
            return f"cells of a grid of {columns} x {rows}, counted from 0"
        shown = self.model if self.coordinate_format is CoordinateFormat.MODEL_PIXELS and self.model else self.image
        return _WHERE[self.coordinate_format].format(*(shown or ("?", "?")))

    def _cell(self, point: Sequence[float], closed: bool = False) -> tuple[int, int]:
        """(column, row) of a point, the nearest if it is outside. closed: a point on the line between two cells is in the
        first."""
        assert self.grid and self.image
        return _cell(point[0], self.image[0], self.grid[0], closed), _cell(point[1], self.image[1], self.grid[1], closed)


def numbers_for(processing: ImageProcessing, image: Size, frame: str | None = None, grid: Sequence[int] | None = None) -> Numbers:
    """How a policy with this image processing writes positions on a picture of a size. frame, grid: the task's own."""
    cells = (int(grid[0]), int(grid[1])) if grid else None
    return Numbers(
        coordinate_format=CoordinateFormat(frame) if frame else processing.coordinate_format,
        image=image,
        model=processing.model_size(image),
        grid=cells,
    )


def numbers_of(case: Case, picture: int = 0) -> Numbers:
    """The format of a completion's positions. picture: index of their picture in the case, if `meta["picture"]` isn't set.

    `meta["grid"]`, [columns, rows], and `meta["answer_frame"]` override the policy's format. If the case has no picture, as in
    tables of published rewards, numbers are pixels of `meta["input_wh"]` on a picture of `meta["image_wh"]`; without these they
    are not converted.
    """
    meta = case.meta
    grid = (int(meta["grid"][0]), int(meta["grid"][1])) if meta.get("grid") else None
    if not case.image_sizes:
        image = _size(meta.get("image_wh") or meta.get("size"))
        if "input_wh" in meta and image:
            return Numbers(coordinate_format=CoordinateFormat.MODEL_PIXELS, image=image, model=_size(meta["input_wh"]), grid=grid)
        return Numbers(coordinate_format=CoordinateFormat.PIXELS, image=image, grid=grid)
    at = int(meta.get("picture", picture))
    forced = meta.get("answer_frame")
    written, sizes = CoordinateFormat(forced) if forced else case.coordinate_format, case.model_sizes or case.image_sizes
    return Numbers(coordinate_format=written, image=case.image_sizes[at], model=sizes[at], grid=grid)


def _size(value: Sequence[float] | None) -> Size | None:
    return (int(value[0]), int(value[1])) if value else None


def _cell(value: float, length: float, cells: int, closed: bool) -> int:
    at = value * cells / length
    down = int(at // 1)
    if closed and at == down:
        down -= 1
    return max(0, min(cells - 1, down))
