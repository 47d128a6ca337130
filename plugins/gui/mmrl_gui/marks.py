"""What people see: a screen with the true box in green, and what a completion says in orange, each in a shape of its own, so that
they are told apart without colours too."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from mmrl.screens import Action, Box, Point

if TYPE_CHECKING:
    from PIL.Image import Image

TRUE, SAID = (0, 158, 115), (230, 120, 0)
"""Bluish green, and orange a little darker than in the palette for the colour-blind of Okabe and Ito (2008)."""
LEAST = 320
"""Pixels of the shorter side, at least, in which a screen is shown; smaller ones are enlarged by a whole number."""
_ARROWS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


def marked(
    picture: Image,
    boxes: Sequence[Sequence[float]] = (),
    action: Action | None = None,
    point: Point | None = None,
    box: Box | None = None,
    true: Action | None = None,
    caption: str = "",
    least: int = LEAST,
) -> Image:
    """A screen with marks on it; places are pixels of the picture. What an action says beside its place stands below.

    boxes: true ones, a solid green frame. point, box, action: what is said, an orange cross in a ring, a dashed frame, an arrow.
    true: the true action: its place is a green diamond where there is no box. least: pixels of the shorter side, at least.
    """
    from PIL import Image, ImageDraw

    scale = max(1, -(-least // min(picture.size)))
    shown = picture.convert("RGB")
    shown = shown.resize((shown.width * scale, shown.height * scale), Image.Resampling.NEAREST) if scale > 1 else shown.copy()
    draw, unit = ImageDraw.Draw(shown), max(2, round(max(shown.size) / 120))
    for one in boxes:
        _frame(draw, [v * scale for v in one], TRUE, unit)
    if true is not None and true.at is not None and not boxes:
        _diamond(draw, true.at[0] * scale, true.at[1] * scale, unit)
    if box is not None:
        _dashed(draw, [v * scale for v in box], unit)
    at = action.at if action else point
    if action and action.kind == "scroll" and action.direction:
        x, y = at or (picture.width / 2, picture.height / 2)
        dx, dy = (side * min(picture.size) / 5 for side in _ARROWS[action.direction])
        _arrow(draw, (x - dx) * scale, (y - dy) * scale, (x + dx) * scale, (y + dy) * scale, unit)
    elif action and action.to and at:
        _arrow(draw, at[0] * scale, at[1] * scale, action.to[0] * scale, action.to[1] * scale, unit)
    if at is not None and not (action and action.kind == "scroll"):
        _cross(draw, at[0] * scale, at[1] * scale, unit)
    said = caption or (_words(action) if action else "")
    return _captioned(shown, said) if said else shown


def _words(action: Action) -> str:
    """What an action says beside its place; nothing for a click."""
    more = action.text or action.direction or ""
    return "" if action.kind == "click" else f"{action.kind} {more}".strip()


def _frame(draw: Any, box: Sequence[float], colour: tuple[int, int, int], unit: int) -> None:
    x1, y1, x2, y2 = (round(v) for v in box)
    right, down = draw.im.size[0] - 1, draw.im.size[1] - 1
    for i in range(unit + 1, 0, -1):  # around what it holds, and a white line around it, so that it is seen on green too
        sides = (max(0, x1 - i), max(0, y1 - i), min(right, x2 + i), min(down, y2 + i))
        draw.rectangle(sides, outline=colour if i <= unit else (255, 255, 255))


def _dashed(draw: Any, box: Sequence[float], unit: int) -> None:
    x1, y1, x2, y2 = (round(v) for v in box)
    step = 4 * unit
    for x in range(x1, x2, 2 * step):
        for y in (y1, y2):
            draw.line((x, y, min(x + step, x2), y), fill=SAID, width=unit)
    for y in range(y1, y2, 2 * step):
        for x in (x1, x2):
            draw.line((x, y, x, min(y + step, y2)), fill=SAID, width=unit)


def _cross(draw: Any, x: float, y: float, unit: int) -> None:
    """A ring, and a cross that leaves its middle free, so that a small icon is still seen."""
    for fill, width, reach in (((255, 255, 255), 2 * unit, 5 * unit + 1), (SAID, unit, 5 * unit)):
        draw.ellipse((x - reach, y - reach, x + reach, y + reach), outline=fill, width=width)
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            inner = 2.5 * unit
            draw.line((x + inner * dx, y + inner * dy, x + reach * dx, y + reach * dy), fill=fill, width=width)


def _diamond(draw: Any, x: float, y: float, unit: int) -> None:
    reach = 5 * unit
    draw.polygon(((x, y - reach), (x + reach, y), (x, y + reach), (x - reach, y)), outline=TRUE, width=unit)


def _arrow(draw: Any, x1: float, y1: float, x2: float, y2: float, unit: int) -> None:
    length = max(1e-6, ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5)
    ux, uy, head = (x2 - x1) / length, (y2 - y1) / length, 5 * unit
    for fill, width in (((255, 255, 255), 2 * unit + 2), (SAID, 2 * unit)):
        draw.line((x1, y1, x2, y2), fill=fill, width=width)
    left, right = (x2 - head * (ux - uy), y2 - head * (uy + ux)), (x2 - head * (ux + uy), y2 - head * (uy - ux))
    draw.polygon(((x2, y2), left, right), fill=SAID)


def _captioned(picture: Image, text: str) -> Image:
    """The picture with a line of text below it."""
    from PIL import Image, ImageDraw, ImageFont

    height = max(14, max(picture.size) // 16)
    line = "".join(c if c.isprintable() else " " for c in text)[:200]
    shown = Image.new("RGB", (picture.width, picture.height + height + 8), "white")
    shown.paste(picture)
    ImageDraw.Draw(shown).text((6, picture.height + 2), line, fill=SAID, font=ImageFont.load_default(size=height * 0.8))
    return shown
