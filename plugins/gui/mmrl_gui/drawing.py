"""Screens of an episode for display, each with its action in orange: a cross in a ring, an arrow, text below."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmrl.api.simulators.gui import Action

if TYPE_CHECKING:
    from PIL.Image import Image

TRUE, SAID = (0, 158, 115), (230, 120, 0)
"""Bluish green, and orange a little darker than in the palette for the colour-blind of Okabe and Ito (2008)."""
LEAST = 320
"""Minimum of the shorter side of a displayed screen in pixels; smaller ones are enlarged by a whole number."""
ARROWS = {"up": (0, -1), "down": (0, 1), "left": (-1, 0), "right": (1, 0)}


def draw_action(picture: Image, action: Action | None = None, least: int = LEAST) -> Image:
    """A screen with an action, whose positions are pixels of the picture; its other arguments are written below.

    least: minimum of the shorter side, in pixels.
    """
    from PIL import Image, ImageDraw

    scale = max(1, -(-least // min(picture.size)))
    shown = picture.convert("RGB")
    shown = shown.resize((shown.width * scale, shown.height * scale), Image.Resampling.NEAREST) if scale > 1 else shown.copy()
    if action is None:
        return shown
    draw, unit = ImageDraw.Draw(shown), max(2, round(max(shown.size) / 120))
    if action.kind == "scroll" and action.direction:
        x, y = action.at or (picture.width / 2, picture.height / 2)
        dx, dy = (side * min(picture.size) / 5 for side in ARROWS[action.direction])
        _arrow(draw, (x - dx) * scale, (y - dy) * scale, (x + dx) * scale, (y + dy) * scale, unit)
    elif action.to and action.at:
        _arrow(draw, action.at[0] * scale, action.at[1] * scale, action.to[0] * scale, action.to[1] * scale, unit)
    if (spot := action.at or action.to) and action.kind != "scroll":
        _cross(draw, spot[0] * scale, spot[1] * scale, unit)
    said = words(action)
    return _captioned(shown, said) if said else shown


def words(action: Action) -> str:
    """The arguments of an action beside its position; empty for a click."""
    more = action.text or action.direction or ""
    return "" if action.kind == "click" else f"{action.kind} {more}".strip()


def _cross(draw: Any, x: float, y: float, unit: int) -> None:
    """A ring, and a cross with a free middle, so that a small icon stays visible."""
    for fill, width, reach in (((255, 255, 255), 2 * unit, 5 * unit + 1), (SAID, unit, 5 * unit)):
        draw.ellipse((x - reach, y - reach, x + reach, y + reach), outline=fill, width=width)
        for dx, dy in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            inner = 2.5 * unit
            draw.line((x + inner * dx, y + inner * dy, x + reach * dx, y + reach * dy), fill=fill, width=width)


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
