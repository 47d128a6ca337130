"""Text on Pillow images: fonts for any script, widths, wrapping and clipping."""

from __future__ import annotations

import bisect
import functools
from typing import TYPE_CHECKING, Any

from mmrl.ui.report.text import visible

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw

ELLIPSIS = "..."
OTHER_FONTS = ("NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "DejaVuSans.ttf", "Arial Unicode.ttf", "msyh.ttc")
"""Fonts to try for characters that Pillow's own font lacks."""


def wrap(text: str, width: int, size: int, lines: int) -> list[str]:
    """The text in at most `lines` lines of at most `width` pixels; an ellipsis replaces the rest. size: of the font in pixels."""
    wrapped: list[str] = []
    for paragraph in text[: 100 * lines].strip().split("\n"):
        line = ""
        for word in (piece for whole in paragraph.split() for piece in _pieces(whole, width, size)):
            if line and text_width(f"{line} {word}", size) > width:
                wrapped.append(line)
                line = word
            else:
                line = f"{line} {word}".strip()
        wrapped.append(line)
    if len(wrapped) > lines or len(text.strip()) > 100 * lines:
        wrapped = [*wrapped[: lines - 1], clip(" ".join(wrapped[lines - 1 :]) + ELLIPSIS, width, size)]
    return wrapped


def _pieces(word: str, width: int, size: int) -> list[str]:
    """A word, cut into pieces that fit a line."""
    pieces, start = [], 0
    for end in range(1, len(word) + 1):
        if end - start > 1 and text_width(word[start:end], size) > width:
            pieces.append(word[start : end - 1])
            start = end - 1
    return [*pieces, word[start:]]


def clip(text: str, width: int, size: int) -> str:
    """The text, cut with an ellipsis if it is wider than `width` pixels."""
    if text_width(text, size) <= width:
        return text
    end = max(bisect.bisect(range(len(text)), width, key=lambda n: text_width(text[:n].rstrip() + ELLIPSIS, size)) - 1, 0)
    return text[:end].rstrip() + ELLIPSIS


def one_line(text: str) -> str:
    """The text without line breaks and runs of blanks, and with codes in place of what is not seen."""
    return " ".join(visible(text).split())


def draw_text(draw: ImageDraw, place: tuple[int, int], text: str, size: int, colour: str, width: int) -> None:
    """Draw a text on one line of at most `width` pixels, its top left corner at `place`."""
    line = clip(one_line(text), width, size)
    draw.text(place, line, colour, font_for(line, size))


def text_width(text: str, size: int) -> int:
    """The width of a text in pixels."""
    return round(font_for(text, size).getlength(text))


@functools.cache
def font(size: int, name: str = "") -> Any:
    """A font by its file name, Pillow's own by default. Raises OSError if this machine lacks it."""
    from PIL import ImageFont

    basic = ImageFont.Layout.BASIC  # Raqm, the other engine, refuses some texts
    return ImageFont.truetype(name, size, layout_engine=basic) if name else ImageFont.load_default(size)


def font_for(text: str, size: int) -> Any:
    """The font for a text: Pillow's own, or the one on this machine with the most of the text's other characters."""
    other = frozenset(c for c in text if not c.isascii() and c != ELLIPSIS)
    return font(size, _fallback(other)) if other else font(size)


@functools.cache
def _fallback(characters: frozenset[str]) -> str:
    """The name of the font with the most of these characters."""
    known = {}
    for name in ("", *OTHER_FONTS):
        try:
            candidate = font(16, name)
        except OSError:  # not on this machine
            continue
        missing = bytes(candidate.getmask("\U0010fffe"))  # the font's glyph for a missing character
        known[name] = sum(bytes(candidate.getmask(c)) != missing for c in characters)
    return max(known, key=lambda name: known[name])
