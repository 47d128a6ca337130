"""Maps drawn by code: lines on a grid, stations at its crossings, names in free places."""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from mmrl_transit.network import Lines

COLOURS = {
    "Red": (214, 39, 40),
    "Blue": (31, 97, 200),
    "Green": (34, 150, 64),
    "Orange": (245, 136, 14),
    "Purple": (140, 62, 178),
    "Brown": (132, 86, 60),
    "Pink": (235, 110, 180),
    "Grey": (120, 124, 130),
}
STATIONS = """
Abbey Alder Arch Ash Bank Barn Bath Bay Beech Bell Birch Bow Cape Cave Clay Cliff Coal Corn Cove Crane Croft Dale Dam Deer
Dock Dove Duke Elm Farm Fern Field Fir Ford Fort Fox Gate Glen Grove Hall Hawk Hay Heath Hill Holm Inn Iris Isle Ivy Kiln
King Lake Lane Larch Lark Leaf Lily Lock Lodge Maple Marsh Mead Mill Mint Moat Moor Moss Oak Park Path Pear Pier Pine Plum
Pond Pool Port Quay Reef Ridge Rock Rose Sand Shore Star Stone Swan Thorn Tower Vale Vine Wall Ware Well Wharf Wood Yard Yew
""".split()  # noqa: SIM905  a hundred names are easier to read this way
STEPS = ((1, 0), (1, 1), (0, 1), (-1, 1), (-1, 0), (-1, -1), (0, -1), (1, -1))
"""The eight directions, clockwise."""
Cell = tuple[int, int]


@dataclass(frozen=True)
class Layout:
    """A network, and the positions of its stations on a grid, from (0, 0)."""

    lines: dict[str, list[str]]
    places: dict[str, Cell]


def layout(draw: random.Random, lines: int, stations: int) -> Layout:
    """A connected network of `lines` lines (1 to 8) with `stations` stations each (3 to 8). No two lines share track, tracks
    cross at stations only, at most two lines meet at one, and every line meets another."""
    columns, rows = grid(lines, stations)
    while True:
        paths: list[list[Cell]] = []
        for _ in range(60 * lines):
            path = _path(draw, columns, rows, stations, paths)
            if path:
                paths.append(path)
            if len(paths) == lines:
                return _named(draw, paths)


def grid(lines: int, stations: int) -> Cell:
    """Columns and rows with room for a network, the same for every map of one size."""
    side = max(stations, 3)
    while side * side < 1.6 * lines * stations:
        side += 1
    return side, side


def _path(draw: random.Random, columns: int, rows: int, length: int, others: list[list[Cell]]) -> list[Cell]:
    """A line through a station of the others, grown at both ends without sharp turns; empty if there is no free way."""
    taken = {cell: sum(cell in p for p in others) for p in others for cell in p}
    track = {frozenset(pair) for p in others for pair in pairwise(p)}
    open_cells = sorted(c for c, n in taken.items() if n < 2)
    if others and not open_cells:
        return []
    path = [draw.choice(open_cells) if others else (draw.randrange(columns), draw.randrange(rows))]
    heading = draw.randrange(8)
    headings = {True: heading, False: (heading + 4) % 8}
    while len(path) < length:
        front = draw.random() < 0.5
        for _ in range(4):
            turn = (headings[front] + draw.choice((0, 0, 0, 1, -1))) % 8
            end = path[-1] if front else path[0]
            step = (end[0] + STEPS[turn][0], end[1] + STEPS[turn][1])
            if _is_free(step, end, path, columns, rows, taken, track):
                headings[front] = turn
                path = [*path, step] if front else [step, *path]
                break
        else:
            return []
    meets = sum(c in taken for c in path)
    return path if meets <= max(1, length // 2) else []


def _is_free(
    step: Cell, end: Cell, path: list[Cell], columns: int, rows: int, taken: dict[Cell, int], track: set[frozenset[Cell]]
) -> bool:
    """Whether a line may continue to a cell: inside, not its own, at most one line there, and no track of another line
    crossed."""
    if not (0 <= step[0] < columns and 0 <= step[1] < rows) or step in path or taken.get(step, 0) > 1:
        return False
    own = {frozenset(pair) for pair in pairwise(path)}
    crossing = frozenset({(step[0], end[1]), (end[0], step[1])})  # the other diagonal of the same square, or the step itself
    return frozenset({step, end}) not in track and crossing not in track | own


def _named(draw: random.Random, paths: list[list[Cell]]) -> Layout:
    cells = sorted({c for p in paths for c in p})
    left, top = (min(c[axis] for c in cells) for axis in (0, 1))
    names = dict(zip(cells, draw.sample(STATIONS, len(cells)), strict=True))
    colours = draw.sample(sorted(COLOURS), len(paths)) if len(paths) > 6 else draw.sample(list(COLOURS)[:6], len(paths))
    lines = {colour: [names[c] for c in p] for colour, p in zip(colours, paths, strict=True)}
    return Layout(lines, {names[c]: (c[0] - left, c[1] - top) for c in cells})


# -- drawing ----------------------------------------------------------------------------------------------------------------


def picture(plan: Layout, size: int) -> tuple[Image.Image, dict[str, tuple[int, int]]]:
    """(the map, RGB of `size` x `size` pixels; station -> its centre in pixels)."""
    font: Any = ImageFont.load_default(size=max(9, round(size / 27)))
    bottom = font.size * 1.7
    far = [max(c[axis] for c in plan.places.values()) for axis in (0, 1)]
    step = min(size / (far[0] + 1.2), (size - bottom) / (far[1] + 0.9))
    left, top = (size - step * far[0]) / 2, (size - bottom - step * far[1]) / 2
    points = {name: (round(left + x * step), round(top + y * step)) for name, (x, y) in plan.places.items()}
    image, taken = Image.new("RGB", (size, size), "white"), Image.new("L", (size, size))
    pen, mark = ImageDraw.Draw(image), ImageDraw.Draw(taken)
    wide = max(3, round(size / 70))
    for line, stops in plan.lines.items():
        for a, b in pairwise(stops):
            slanted = plan.places[a][0] != plan.places[b][0] and plan.places[a][1] != plan.places[b][1]
            pen.line([points[a], points[b]], COLOURS[line], round(wide * 1.4) if slanted else wide)  # Pillow measures across
            mark.line([points[a], points[b]], 1, wide)
    meetings = {s: sum(s in stops for stops in plan.lines.values()) for s in points}
    for name, (x, y) in points.items():
        r = wide * (1.25 if meetings[name] > 1 else 0.85)
        pen.ellipse((x - r, y - r, x + r, y + r), "white", (20, 20, 20), max(1, round(wide / 3)))
        mark.ellipse((x - r, y - r, x + r, y + r), 4)
    for name in sorted(points, key=lambda n: (points[n][1], points[n][0])):
        box = _room(pen, font, name, points[name], wide * 1.4, taken)
        pen.text(box[:2], name, (0, 0, 0), font, "lt", stroke_width=2, stroke_fill="white")
        mark.rectangle(box, 4)
    _legend(pen, plan.lines, font, size, bottom)
    return image, points


def _room(
    pen: ImageDraw.ImageDraw, font: ImageFont.FreeTypeFont, name: str, point: tuple[int, int], off: float, taken: Image.Image
) -> tuple[int, int, int, int]:
    """The box beside a station where its name covers the least."""
    left, top, right, bottom = pen.textbbox((0, 0), name, font, "lt")
    w, h, (x, y), size = right - left, bottom - top, point, taken.width
    corners = [
        *((x - w / 2, y + off + 1), (x - w / 2, y - off - h - 1), (x + off + 1, y - h / 2), (x - off - w - 1, y - h / 2)),
        *((x + off * 0.8, y + off * 0.8), (x + off * 0.8, y - off * 0.8 - h)),
        *((x - off * 0.8 - w, y + off * 0.8), (x - off * 0.8 - w, y - off * 0.8 - h)),
    ]
    boxes = []
    for rank, (a, b) in enumerate(corners):
        a, b = min(max(1, a), size - w - 2), min(max(1, b), size - h - 2)
        box = (round(a), round(b), round(a + w), round(b + h))
        hidden = taken.crop((box[0] - 1, box[1] - 1, box[2] + 2, box[3] + 2)).histogram()
        boxes.append((sum(value * count for value, count in enumerate(hidden)), rank, box))
    return min(boxes)[2]


def _legend(pen: ImageDraw.ImageDraw, lines: Lines, font: ImageFont.FreeTypeFont, size: int, height: float) -> None:
    """The lines' names in their colours along the bottom edge."""
    y = size - height / 2
    swatch = font.size
    widths = [swatch * 1.3 + pen.textlength(line, font) for line in lines]
    blank = (size - sum(widths)) / (len(widths) + 1)
    x = blank
    for line, width in zip(lines, widths, strict=True):
        pen.line((x, y, x + swatch, y), COLOURS[line], max(3, round(size / 60)))
        pen.text((x + swatch * 1.3, y), line, (0, 0, 0), font, "lm")
        x += width + blank
