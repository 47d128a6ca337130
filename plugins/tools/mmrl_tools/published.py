"""Tools of published systems, with their names, arguments and checks; the words of their schemas are ours.

- DeepEyes (Zheng et al. 2025, arXiv 2505.14362; github.com/Visual-Agent/DeepEyes, commit 6c5e796,
  `verl/workers/agent/envs/mm_process_engine/visual_toolbox_v2.py`): `image_zoom_in_tool`, `image_rotate_tool`, always on the
  first picture, in its pixels.
- Pixel Reasoner (Su et al. 2025, arXiv 2505.15966; github.com/TIGER-AI-Lab/Pixel-Reasoner, commit a3a6c3a,
  `openrlhf/trainer/ppo_utils/experience_maker.py`): `crop_image_normalized` with shares of the sides and a margin,
  `select_frames` with up to eight of the frames.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from mmrl_tools.pictures import crop, select_frames, shown
from mmrl_tools.tool import Picture, Refused, Result, Tool, Workspace

RATIO, TOO_SMALL, SMALL = 100, 30, 28
"""DeepEyes: the largest ratio of a box's sides, and the side in pixels that it must exceed; smaller ones than SMALL would be
enlarged, which TOO_SMALL forbids before."""
MARGIN, SIDE = 0.1, 28
"""Pixel Reasoner: the margin around a box, as a share of the picture's sides, and the side in pixels that a crop must
exceed."""
FRAMES = 8
"""Pixel Reasoner: most frames of a call."""
BOX = {"type": "array", "items": {"type": "number"}, "minItems": 4, "maxItems": 4}
LABEL = {"type": "string", "description": "What is in the box."}


def published_tools() -> list[Tool]:
    return [
        Tool(
            name="image_zoom_in_tool",
            description="Show a part of the picture at full resolution.",
            properties={"bbox_2d": BOX | {"description": "[x1, y1, x2, y2] in pixels of the picture."}, "label": LABEL},
            required=("bbox_2d",),
            run=deepeyes_zoom,
        ),
        Tool(
            name="image_rotate_tool",
            description="Show the picture rotated.",
            properties={"angle": {"type": "number", "minimum": -360, "maximum": 360, "description": "Degrees, anticlockwise."}},
            required=("angle",),
            run=deepeyes_rotate,
        ),
        Tool(
            name="crop_image_normalized",
            description="Show a part of a picture at full resolution, with a margin around it.",
            properties={
                "bbox_2d": BOX | {"description": "[x1, y1, x2, y2] as shares of the picture's sides, 0 to 1."},
                "target_image": {"type": "number", "description": "Number of the picture, from 1."},
            },
            required=("bbox_2d", "target_image"),
            run=pixel_reasoner_crop,
        ),
        Tool(
            name="select_frames",
            description=f"Show frames of the video at full resolution, at most {FRAMES}.",
            properties={
                "target_frames": {"type": "array", "items": {"type": "integer"}, "description": "Numbers of frames, from 1."}
            },
            required=("target_frames",),
            run=pixel_reasoner_frames,
        ),
    ]


def deepeyes_zoom(arguments: Mapping[str, Any], workspace: Workspace) -> Result:
    """The part of the first picture in a box of its pixels, as it is shown."""
    picture = workspace.picture(1)
    box = deepeyes_box(full_pixels(arguments["bbox_2d"], picture), *picture.image.size)
    if box is None:
        raise Refused("the box can't be shown")
    return crop(workspace, picture, box, RATIO)


def full_pixels(box: Sequence[float], picture: Picture) -> list[float]:
    """A box in pixels of the picture as it is shown -> in those of the full resolution."""
    scales = [full / side for full, side in zip(picture.image.size, picture.shown, strict=True)]
    return [v * scale for v, scale in zip(box, (*scales, *scales), strict=True)]


def deepeyes_box(box: Sequence[float], wide: float, high: float) -> tuple[float, float, float, float] | None:
    """The box clipped to the picture; None for one that is reversed, has a side of 30 pixels or less, or has a side of more
    than a hundred times the other."""
    left, top, right, bottom = max(0, box[0]), max(0, box[1]), min(wide, box[2]), min(high, box[3])
    sides = (right - left, bottom - top)
    if min(sides) <= TOO_SMALL or max(sides) / min(sides) > RATIO:
        return None
    return left, top, right, bottom


def deepeyes_rotate(arguments: Mapping[str, Any], workspace: Workspace) -> Result:
    """The first picture rotated anticlockwise on a canvas of its own size, as Pillow does it."""
    return shown(workspace, workspace.picture(1).image.rotate(arguments["angle"]), None)


def pixel_reasoner_crop(arguments: Mapping[str, Any], workspace: Workspace) -> Result:
    """The part of a picture in a box with its margin."""
    picture = workspace.picture(arguments["target_image"])
    box = arguments["bbox_2d"]
    full = box if all(v < 1 for v in box) else full_pixels(box, picture)
    return crop(workspace, picture, pixel_reasoner_box(full, *picture.image.size), RATIO)


def pixel_reasoner_box(box: Sequence[float], wide: int, high: int) -> tuple[float, float, float, float]:
    """The box in pixels with a margin, clipped to the picture. Numbers that aren't all below 1 are taken for pixels, as
    published, so that a box up to the picture's edge is. Raises Refused for a crop with a side of 28 pixels or less."""
    sides = (wide, high, wide, high)
    shares = box if all(v < 1 for v in box) else [v / side for v, side in zip(box, sides, strict=True)]
    moved = [v + sign * MARGIN for v, sign in zip(shares, (-1, -1, 1, 1), strict=True)]
    x1, y1, x2, y2 = (min(max(0.0, v), 1.0) * side for v, side in zip(moved, sides, strict=True))
    if min(round(x2) - round(x1), round(y2) - round(y1)) <= SIDE or not all(map(math.isfinite, (x1, y1, x2, y2))):
        raise Refused("the part is too small")
    return x1, y1, x2, y2


def pixel_reasoner_frames(arguments: Mapping[str, Any], workspace: Workspace) -> Result:
    """The frames of the clip with these numbers."""
    numbers = arguments["target_frames"]
    if len(numbers) > FRAMES:
        raise Refused(f"{len(numbers)} frames were selected, and at most {FRAMES} can be shown")
    if not numbers:
        raise Refused("no frame was selected")
    return select_frames({"frames": numbers}, workspace)
