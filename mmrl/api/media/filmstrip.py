"""A clip as one image, for people: frames side by side, their times, and time spans below."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mmrl.api.media.clips import VideoFrames

if TYPE_CHECKING:
    from PIL.Image import Image

TRUE, SAID = (0, 130, 90), (213, 94, 0)
"""Colours of the ground truth and of the prediction, from the colour-blind safe palette of Okabe and Ito."""
GROUND, LINE, INK = (246, 246, 244), (205, 205, 200), (60, 60, 60)
GAP, TEXT, BAR = 4, 14, 12
"""Pixels: gap between frames, height of a line of text, height of a time span."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSpan:
    """A named part of a clip, in seconds from its beginning."""

    name: str
    start_s: float
    end_s: float
    colour: tuple[int, int, int] = TRUE


def filmstrip(footage: VideoFrames, spans: Sequence[TimeSpan] = (), *, width: int = 960, most: int = 8, across: int = 8) -> Image:
    """Draw at most `most` evenly spaced frames of a clip, `across` in a row, each with its time, and below them a timeline for
    each span. A span that ends after the clip is drawn with an arrowhead at the edge. width: of the result, in pixels."""
    import numpy as np
    from PIL import Image, ImageDraw

    total = len(footage.frames_THWC)
    count = min(most, total)
    chosen = [round(k * (total - 1) / max(count - 1, 1)) for k in range(count)]
    height, wide = footage.frames_THWC.shape[1:3]
    cell = (width - GAP * (across - 1)) // across
    tall = min(max(1, round(cell * height / wide)), 2 * cell)
    shown = (min(cell, max(1, round(tall * wide / height))), tall)
    rows = -(-count // across)
    sheet = Image.new("RGB", (width, rows * (tall + TEXT + GAP) + len(spans) * (BAR + GAP)), GROUND)
    draw = ImageDraw.Draw(sheet)
    for k, number in enumerate(chosen):
        picture = Image.fromarray(np.ascontiguousarray(footage.frames_THWC[number]))
        enlarged = Image.Resampling.NEAREST if shown[0] >= 2 * wide else Image.Resampling.LANCZOS
        left, top = k % across * (cell + GAP), k // across * (tall + TEXT + GAP)
        sheet.paste(picture.resize(shown, enlarged), (left, top))
        draw.text((left + 2, top + tall + 1), f"{footage.times_s[number]:.1f} s", INK, _font())
    top = rows * (tall + TEXT + GAP)
    for span in spans:
        _bar(draw, span, footage.duration_s, width, top)
        top += BAR + GAP
    return sheet


def _bar(draw: Any, span: TimeSpan, duration: float, width: int, top: int) -> None:
    def x(seconds: float) -> float:
        return min(max(seconds / duration, 0.0), 1.0) * (width - 1)

    draw.rectangle((0, top + BAR // 2 - 1, width - 1, top + BAR // 2), fill=LINE)
    first, last = sorted((span.start_s, span.end_s))
    a, b = x(first), max(x(last), x(first) + 2)
    draw.rectangle((a, top, b, top + BAR), fill=span.colour)
    if last > duration:
        draw.polygon([(width - 1, top + BAR / 2), (width - 9, top - 2), (width - 9, top + BAR + 2)], fill=span.colour)
    text = f"{span.name} {span.start_s:.1f} to {span.end_s:.1f} s"
    wide = draw.textlength(text, font=_font())
    left = b + 6 if b + 6 + wide < width else a - 6 - wide
    if left < 0:
        left = a + 4
        draw.text((left, top), text, (255, 255, 255), _font())
    else:
        draw.text((left, top), text, span.colour, _font())


def _font() -> Any:
    from PIL import ImageFont

    return ImageFont.load_default(12)
