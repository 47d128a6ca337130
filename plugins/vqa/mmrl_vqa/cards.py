"""Playing cards, drawn without a font: the same pixels on every machine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from PIL.Image import Image

SUITS = {"black": ("spades", "clubs"), "red": ("hearts", "diamonds"), "all": ("spades", "hearts", "diamonds", "clubs")}
INK = {"spades": (20, 20, 25), "clubs": (20, 20, 25), "hearts": (205, 25, 35), "diamonds": (205, 25, 35)}
CLOTH = (53, 101, 77)
GLYPHS = {
    "A": "01110 10001 10001 11111 10001 10001 10001",
    "2": "01110 10001 00001 00110 01000 10000 11111",
    "3": "11110 00001 00001 01110 00001 00001 11110",
    "4": "00010 00110 01010 10010 11111 00010 00010",
    "5": "11111 10000 11110 00001 00001 10001 01110",
    "6": "00110 01000 10000 11110 10001 10001 01110",
    "7": "11111 00001 00010 00100 01000 01000 01000",
    "8": "01110 10001 10001 01110 10001 10001 01110",
    "9": "01110 10001 10001 01111 00001 00010 01100",
    "1": "00100 01100 00100 00100 00100 00100 01110",
    "0": "01110 10001 10001 10001 10001 10001 01110",
    "J": "00111 00010 00010 00010 00010 10010 01100",
    "Q": "01110 10001 10001 10001 10101 10010 01101",
    "K": "10001 10010 10100 11000 10100 10010 10001",
}
"""Rows of 5 dots, 7 of them."""
SHARP = 4


def hand(cards: Sequence[tuple[str, str]], size: int, row: bool = False) -> Image:
    """Four cards of (rank, suit) on green cloth, RGB: two above two on a square of `size` pixels a side, or in a row of that
    width."""
    from PIL import Image as images
    from PIL import ImageDraw

    columns = len(cards) if row else 2
    cell = size * SHARP / columns
    tall = cell * 1.4 if row else cell
    lines = -(-len(cards) // columns)
    cloth = images.new("RGB", (size * SHARP, round(tall * lines)), CLOTH)
    on = ImageDraw.Draw(cloth)
    for i, (rank, suit) in enumerate(cards):
        high = 0.92 * tall
        wide = min(0.92 * cell, high * 0.8)
        x, y = cell * (i % columns + 0.5) - wide / 2, tall * (i // columns + 0.5) - high / 2
        _card(on, rank, suit, x, y, wide, high)
    return cloth.resize((size, round(tall * lines / SHARP)), images.Resampling.BOX)


def _card(on: Any, rank: str, suit: str, x: float, y: float, wide: float, high: float) -> None:
    on.rounded_rectangle((round(x), round(y), round(x + wide), round(y + high)), radius=round(wide * 0.1), fill=(250, 250, 246))
    dot = min(high * 0.48 / 7, wide * 0.82 / (6 * len(rank) - 1))
    left = x + (wide - dot * (6 * len(rank) - 1)) / 2
    for place, sign in enumerate(rank):
        _glyph(on, sign, left + 6 * place * dot, y + high * 0.08, dot, INK[suit])
    PIPS[suit](on, x + wide / 2, y + high * 0.78, min(wide, high) * 0.19, INK[suit])


def _glyph(on: Any, sign: str, x: float, y: float, dot: float, ink: tuple[int, int, int]) -> None:
    for j, line in enumerate(GLYPHS[sign].split()):
        for i, filled in enumerate(line):
            if filled == "1":
                on.rectangle(
                    (round(x + i * dot), round(y + j * dot), round(x + (i + 1) * dot) - 1, round(y + (j + 1) * dot) - 1), fill=ink
                )


def _disc(on: Any, x: float, y: float, r: float, ink: Any) -> None:
    on.ellipse((round(x - r), round(y - r), round(x + r), round(y + r)), fill=ink)


def _shape(on: Any, x: float, y: float, r: float, points: Sequence[tuple[float, float]], ink: Any) -> None:
    on.polygon([(round(x + a * r), round(y + b * r)) for a, b in points], fill=ink)


def _diamond(on: Any, x: float, y: float, r: float, ink: Any) -> None:
    _shape(on, x, y, r, ((0, -1.1), (0.8, 0), (0, 1.1), (-0.8, 0)), ink)


def _heart(on: Any, x: float, y: float, r: float, ink: Any) -> None:
    _disc(on, x - 0.48 * r, y - 0.4 * r, 0.55 * r, ink)
    _disc(on, x + 0.48 * r, y - 0.4 * r, 0.55 * r, ink)
    _shape(on, x, y, r, ((-0.98, -0.18), (0.98, -0.18), (0, 1.1)), ink)


def _spade(on: Any, x: float, y: float, r: float, ink: Any) -> None:
    _disc(on, x - 0.48 * r, y + 0.2 * r, 0.52 * r, ink)
    _disc(on, x + 0.48 * r, y + 0.2 * r, 0.52 * r, ink)
    _shape(on, x, y, r, ((-0.95, 0.0), (0.95, 0.0), (0, -1.1)), ink)
    _shape(on, x, y, r, ((0, 0.1), (0.4, 1.1), (-0.4, 1.1)), ink)


def _club(on: Any, x: float, y: float, r: float, ink: Any) -> None:
    for a, b in ((0, -0.55), (-0.55, 0.2), (0.55, 0.2)):
        _disc(on, x + a * r, y + b * r, 0.5 * r, ink)
    _shape(on, x, y, r, ((0, -0.2), (0.4, 1.1), (-0.4, 1.1)), ink)


PIPS = {"spades": _spade, "clubs": _club, "hearts": _heart, "diamonds": _diamond}
