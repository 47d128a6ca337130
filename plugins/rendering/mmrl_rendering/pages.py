"""Web pages drawn at random, from a header and a block to columns, lists and tables."""

from __future__ import annotations

import random

COLOURS = ("white", "black", "navy", "teal", "maroon", "gold", "silver", "tomato", "skyblue", "lightgreen", "plum", "orange")
DARK = frozenset(("black", "navy", "teal", "maroon"))
WORDS = ("News", "Maps", "Shop", "Mail", "Music", "Books", "Games", "Trips", "Food", "Sport", "Help", "About", "Price", "Today")
BLOCKS = {"easy": (1, 1), "middle": (2, 2), "hard": (3, 4)}
"""Level -> minimum and maximum of blocks under the header."""


def random_page(draw: random.Random, level: str) -> str:
    """The code of a page. level: easy, middle or hard."""
    count = draw.randint(*BLOCKS[level])
    row = count > 1 and draw.random() < 0.5
    blocks = "".join(_block(draw, level) for _ in range(count))
    inside = f'<main style="display:flex">{blocks}</main>' if row else blocks
    return f'<html><body style="margin:0;background:{_light(draw)}">{_header(draw, level)}{inside}</body></html>'


def _header(draw: random.Random, level: str) -> str:
    links = "".join(f" <b>{word}</b>" for word in draw.sample(WORDS, 2)) if level == "hard" else ""
    return f'<div style="{_paint(draw)};padding:{draw.choice((4, 8, 12))}px">{draw.choice(WORDS)}{links}</div>'


def _block(draw: random.Random, level: str) -> str:
    words = draw.sample(WORDS, 3)
    kinds = {
        "text": f"{words[0]} {words[1]}",
        "list": f"<ul>{''.join(f'<li>{word}</li>' for word in words)}</ul>",
        "button": f"<button>{words[0]}</button>",
        "table": f"<table>{''.join(f'<tr><td>{word}</td><td>{draw.randint(1, 99)}</td></tr>' for word in words)}</table>",
    }
    kind = draw.choice(("text", "button") if level == "easy" else tuple(kinds))
    width, margin = draw.choice((60, 80, 100)), draw.choice((4, 8))
    return f'<div style="{_paint(draw)};margin:{margin}px;padding:4px;width:{width}px">{kinds[kind]}</div>'


def _paint(draw: random.Random) -> str:
    ground = draw.choice(COLOURS)
    return f"background:{ground};color:{'white' if ground in DARK else 'black'}"


def _light(draw: random.Random) -> str:
    return draw.choice([colour for colour in COLOURS if colour not in DARK])
