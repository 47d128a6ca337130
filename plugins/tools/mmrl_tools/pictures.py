"""Tools that give pictures back: zoom, rotate, draw a line or a box, select frames of a clip."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw

from mmrl import CoordinateFormat, ImageProcessing
from mmrl.api.coordinates import convert_coordinates
from mmrl_tools.tool import WHOLE, Picture, Place, Refused, Result, Tool, Workspace

LEAST = 4
"""Least width and height of what a zoom shows, in pixels of the full resolution."""
SHORT, LONG = 56, 2048
"""A picture that is given back is enlarged to a shorter side of at least SHORT and shrunk to a longer side of at most LONG."""
RATIO = 30
"""Largest ratio of the sides of what a zoom shows."""
COLOURS = ("red", "green", "blue", "yellow", "black", "white")
NUMBER = {"type": "integer", "description": "Number of the picture, from 1; 1 by default."}
COLOUR = {"type": "string", "enum": list(COLOURS), "description": "red by default."}


def picture_tools(processing: ImageProcessing) -> list[Tool]:
    """The tools that work on pictures, with the policy's coordinate format in their schemas."""
    written = processing.coordinate_format
    tokens = written is CoordinateFormat.LOCATION_TOKENS
    box: dict[str, Any] = {
        "type": "string" if tokens else "array",
        "description": f"The box, {written.names('box', json=True)} in {_unit(written)}.",
    }
    box |= {"maxLength": 60} if tokens else {"items": {"type": "number"}, "minItems": 4, "maxItems": 4}
    line = box | {"description": f"From one point to the other, {written.names('box', json=True)} in {_unit(written)}."}
    angle = {"type": "number", "minimum": -360, "maximum": 360, "description": "Degrees, clockwise."}
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 8, "description": "Frames, from 1."}
    return [
        Tool(
            name="zoom",
            description="Show a part of a picture at full resolution.",
            properties={"box": box, "picture": NUMBER},
            required=("box",),
            run=zoom,
        ),
        Tool(
            name="rotate",
            description="Show a picture rotated.",
            properties={"angle": angle, "picture": NUMBER},
            required=("angle",),
            run=rotate,
        ),
        Tool(
            name="draw_box",
            description="Draw a box on a picture.",
            properties={"box": box, "colour": COLOUR, "picture": NUMBER},
            required=("box",),
            run=draw_box,
        ),
        Tool(
            name="draw_line",
            description="Draw a line on a picture.",
            properties={"line": line, "colour": COLOUR, "picture": NUMBER},
            required=("line",),
            run=draw_line,
        ),
        Tool(
            name="select_frames",
            description="Show frames of the video at full resolution.",
            properties={"frames": numbers},
            required=("frames",),
            run=select_frames,
        ),
    ]


def zoom(arguments: Mapping[str, Any], workspace: Workspace) -> Result:
    """The part of a picture in a box, clipped to the picture."""
    picture = workspace.picture(arguments.get("picture", 1))
    return crop(workspace, picture, corners_of(arguments["box"], picture, workspace.processing))


def crop(workspace: Workspace, picture: Picture, box: Sequence[float], ratio: float = RATIO) -> Result:
    """The part of a picture in a box, clipped to the picture. box: (x1, y1, x2, y2) in pixels of the full resolution. ratio: the
    largest of its sides. Raises Refused for a box outside of the picture, without an area, or too narrow."""
    wide, high = picture.image.size
    x1, y1, x2, y2 = max(0.0, box[0]), max(0.0, box[1]), min(float(wide), box[2]), min(float(high), box[3])
    if box[0] >= box[2] or box[1] >= box[3]:
        raise Refused("the box has no area: its first corner must be above and left of the second")
    if x1 >= x2 or y1 >= y2:
        raise Refused("the box lies outside of the picture")
    edges = (round(x1), round(y1), round(x2), round(y2))
    sides = (edges[2] - edges[0], edges[3] - edges[1])
    if min(sides) < LEAST:
        raise Refused("the box is too small to show more than what is seen: give a larger one")
    if max(sides) > ratio * min(sides):
        raise Refused(f"one side of the box is more than {ratio:g} times the other")
    shares = (edges[0] / wide, edges[1] / high, edges[2] / wide, edges[3] / high)
    place = picture.place.part(shares) if picture.place else None
    return shown(workspace, picture.image.crop(edges), place, (place,) if place else ())


def rotate(arguments: Mapping[str, Any], workspace: Workspace) -> Result:
    """A picture rotated clockwise, on a canvas that holds it all."""
    picture = workspace.picture(arguments.get("picture", 1))
    turned = _within(picture.image).rotate(-arguments["angle"], Image.Resampling.BICUBIC, expand=True)
    return shown(workspace, turned, None)


def draw_box(arguments: Mapping[str, Any], workspace: Workspace) -> Result:
    """A picture with the outline of a box."""
    picture = workspace.picture(arguments.get("picture", 1))
    corners = corners_of(arguments["box"], picture, workspace.processing)
    if corners[0] >= corners[2] or corners[1] >= corners[3]:
        raise Refused("the box has no area: its first corner must be above and left of the second")
    return _drawn(workspace, picture, corners, arguments.get("colour", "red"), box=True)


def draw_line(arguments: Mapping[str, Any], workspace: Workspace) -> Result:
    """A picture with a line between two points."""
    picture = workspace.picture(arguments.get("picture", 1))
    ends = corners_of(arguments["line"], picture, workspace.processing)
    return _drawn(workspace, picture, ends, arguments.get("colour", "red"), box=False)


def select_frames(arguments: Mapping[str, Any], workspace: Workspace) -> Result:
    """Frames of the clip, up to eight, in the order that is asked for."""
    if not workspace.frames:
        raise Refused("there is no video to select frames of")
    numbers = arguments["frames"]
    if any(not 1 <= n <= len(workspace.frames) for n in numbers):
        raise Refused(f"the frames are numbered 1 to {len(workspace.frames)}")
    results = [shown(workspace, workspace.frames[n - 1], None).pictures[0] for n in numbers]
    first = len(workspace.pictures) + 1
    return Result(f"Frames {', '.join(map(str, numbers))}, pictures {first} to {first + len(results) - 1}.", tuple(results))


def shown(workspace: Workspace, image: Image.Image, place: Place | None, looked: tuple[Place, ...] = ()) -> Result:
    """The result of a call that gives one picture back, enlarged or shrunk to the limits."""
    image = _within(image)
    if workspace.blank:
        image = Image.new("RGB", image.size, (128, 128, 128))
    return Result(f"Picture {len(workspace.pictures) + 1}.", (Picture(image, image.size, place),), looked)


def _within(image: Image.Image) -> Image.Image:
    scale = max(1.0, SHORT / min(image.size))
    scale = min(scale, LONG / max(image.size))
    if scale == 1.0:
        return image
    return image.resize((max(1, round(image.width * scale)), max(1, round(image.height * scale))), Image.Resampling.BICUBIC)


def _drawn(workspace: Workspace, picture: Picture, corners: Sequence[float], colour: str, box: bool) -> Result:
    image = _within(picture.image).copy()
    scale = image.width / picture.image.width
    # beyond the picture nothing is seen, and Pillow takes time for each pixel
    ends = [min(max(v * scale, -image.width), 2 * max(image.size)) for v in corners]
    width = max(1, round(max(image.size) / 150))
    draw = ImageDraw.Draw(image)
    draw.rectangle(ends, outline=colour, width=width) if box else draw.line(ends, fill=colour, width=width)
    return shown(workspace, image, picture.place)


def corners_of(numbers: Any, picture: Picture, processing: ImageProcessing) -> tuple[float, ...]:
    """Two points of a call, x before y, in pixels of the picture at full resolution."""
    written = processing.coordinate_format
    if isinstance(numbers, str):
        numbers = [float(n) for n in written.without_tokens(numbers).strip(" []").replace(",", " ").split() if n.isdecimal()]
    if len(numbers) != 4:
        raise Refused("a box is four location tokens")
    model_size = processing.model_size(picture.shown)
    unit = convert_coordinates(numbers, written, CoordinateFormat.UNIT, picture.shown, model_size)
    wide, high = picture.image.size
    return tuple(v * side for v, side in zip(unit, (wide, high, wide, high), strict=True))


def _unit(written: CoordinateFormat) -> str:
    return {
        CoordinateFormat.PIXELS: "pixels",
        CoordinateFormat.MODEL_PIXELS: "pixels",
        CoordinateFormat.UNIT: "shares of its width and height, 0 to 1",
        CoordinateFormat.LOCATION_TOKENS: "location tokens",
    }.get(written, "thousandths of its width and height")


def original(image: Image.Image, number: int, size: tuple[int, int] | None = None) -> Picture:
    """A picture of the prompt. number: from 0. size: (width, height) in which the prompt shows it, by default its own."""
    return Picture(image, size or image.size, Place(number, WHOLE))
