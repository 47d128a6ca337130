"""Drawn pictures whose answer can only be read at full resolution: small Landolt rings on coloured cards.

A ring (Landolt 1888; ISO 8596) has five units in width, one in its stroke and one in its gap. Here it is square, and lies
within one pixel of the picture that the prompt shows, which is the mean of that pixel's block at full resolution. A ring covers
as many pixels whichever way it is open, so the shown pictures of all answers are equal, byte for byte: only a zoom tells them
apart.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image, ImageDraw

from mmrl import Prompt, UserError
from mmrl.api.tasks.image_sources import chance
from mmrl.api.tasks.option_checks import LazyPrompts, check_integer, check_split
from mmrl_tools.pictures import original
from mmrl_tools.task import WithTools
from mmrl_tools.tool import Workspace

COLOURS = {
    "red": (214, 60, 50),
    "green": (60, 160, 80),
    "blue": (60, 100, 210),
    "yellow": (235, 200, 60),
    "purple": (150, 80, 170),
}
SIDES = ("up", "down", "left", "right")
UNITS = 5
"""Width of a ring, in units of its stroke."""
INK = (20, 20, 20)
GROUNDS = ((228, 226, 220), (214, 220, 228), (222, 228, 214), (200, 200, 204))


class Card(NamedTuple):
    colour: str
    column: int
    row: int
    side: str
    """Where its ring is open."""


@dataclass(kw_only=True, eq=False)
class FinePrint(WithTools):
    """Which way the small ring on a card is open. The prompt shows a picture that was shrunk so far that all answers look the
    same; the tools work on the full one."""

    size: int = 96
    """Side of the picture that the prompt shows, in pixels."""
    factor: int = 8
    """Side of the full picture over `size`: 5 to 40."""
    cells: int = 3
    """Rows and columns of places for cards."""
    cards: int = 3
    """Number of cards, of different colours; with one, the question names no colour."""
    items: int = 2000
    """Number of items of `train`; `test` has a tenth of that, at least 50."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("size", self.size, 8, 1024)
        check_integer("factor", self.factor, UNITS, 40)
        check_integer("cells", self.cells, 1, 8)
        check_integer("cards", self.cards, 1, min(len(COLOURS), self.cells**2))
        check_integer("items", self.items, 1, 10**7)
        if self.size // self.cells < 4:
            raise UserError(f"size = {self.size} leaves cells of {self.size // self.cells} pixels: at least 4 are needed")
        if self.size * self.factor > 8192:
            raise UserError(f"size x factor = {self.size * self.factor} must be at most 8192 pixels")

    def prompts(self, split: str, seed: int) -> LazyPrompts:
        check_split(split, self.splits)
        count = self.items if split == "train" else max(50, self.items // 10)
        return LazyPrompts(range(count), lambda number: self._prompt(split, seed, number))

    def _prompt(self, split: str, seed: int, number: int) -> Prompt:
        cards, ground = self.draw(split, seed, number)
        card = cards[0]
        which = f"the {card.colour} card" if self.cards > 1 else "the card"
        asked = f"Which way is the ring on {which} open: {', '.join(SIDES[:-1])} or {SIDES[-1]}?"
        cell = self.size // self.cells
        box = (card.column * cell, card.row * cell, (card.column + 1) * cell, (card.row + 1) * cell)
        meta = {"place": (split, seed, number), "boxes": [box], "shown": (self.size, self.size)}
        picture = shrink(self.picture(cards, ground), self.factor)
        return self.posed(f"{split}-{seed}-{number}", asked, [picture], card.side, meta)

    def workspace(self, prompt: Prompt) -> Workspace:
        full = self.picture(*self.draw(*prompt.meta["place"]))
        return Workspace(pictures=[original(full, 0, (self.size, self.size))], processing=self.image_processing, blank=self.blank)

    def draw(self, split: str, seed: int, number: int) -> tuple[list[Card], tuple[int, int, int]]:
        """(the cards, the first is asked for; the colour of the ground)"""
        draw = chance(seed, "fine-print", split, str(number))
        colours = draw.sample(sorted(COLOURS), self.cards)
        places = draw.sample(range(self.cells**2), self.cards)
        cards = [Card(c, p % self.cells, p // self.cells, draw.choice(SIDES)) for c, p in zip(colours, places, strict=True)]
        return cards, _ground(draw, split)

    def picture(self, cards: list[Card], ground: tuple[int, int, int]) -> Image.Image:
        """The full picture."""
        factor, cell = self.factor, self.size // self.cells
        image = Image.new("RGB", (self.size * factor,) * 2, ground)
        draw = ImageDraw.Draw(image)
        margin = max(1, cell // 8)
        for card in cards:
            left, top = card.column * cell, card.row * cell
            corners = (left + margin, top + margin, left + cell - margin, top + cell - margin)
            draw.rectangle([v * factor - (i > 1) for i, v in enumerate(corners)], fill=COLOURS[card.colour])
            _ring(image, (left + cell // 2) * factor, (top + cell // 2) * factor, factor, card.side)
        return image


def _ground(draw: random.Random, split: str) -> tuple[int, int, int]:
    """A colour that the other split doesn't have, so that splits share no picture."""
    base = draw.choice(GROUNDS)
    shades = [tuple(v + s for v in base) for s in range(-7, 8)]
    odd = split != "train"
    r, g, b = draw.choice([shade for shade in shades if (sum(shade) % 2 == 1) is odd])
    return r, g, b


def _ring(image: Image.Image, x: int, y: int, block: int, side: str) -> None:
    """A square ring in a block of pixels, open on one side. (x, y): the block's corner."""
    unit = block // UNITS
    edge = (block - UNITS * unit) // 2
    left, top, wide = x + edge, y + edge, UNITS * unit
    draw = ImageDraw.Draw(image)
    inside = image.getpixel((x, y))
    draw.rectangle((left, top, left + wide - 1, top + wide - 1), fill=INK)
    draw.rectangle((left + unit, top + unit, left + 4 * unit - 1, top + 4 * unit - 1), fill=inside)
    gap = {"up": (2, 0), "down": (2, 4), "left": (0, 2), "right": (4, 2)}[side]
    at = (left + gap[0] * unit, top + gap[1] * unit)
    draw.rectangle((*at, at[0] + unit - 1, at[1] + unit - 1), fill=inside)


def shrink(image: Image.Image, factor: int) -> Image.Image:
    """The picture with the mean of each block of `factor` x `factor` pixels."""
    return image.reduce(factor)
