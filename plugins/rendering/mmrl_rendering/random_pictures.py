"""Pictures and charts drawn at random, from easy to hard, with the code that makes them."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import numpy as np

from mmrl_rendering import chart
from mmrl_rendering.code import render
from mmrl_rendering.shapes import COLOURS, SIDE, to_svg

SHAPES_OF = {"easy": (1, 1), "middle": (2, 3), "hard": (4, 6)}
"""Level -> minimum and maximum of shapes of a picture."""
VISIBLE = 0.012
"""The share of the picture that each shape must change."""
TOPICS = (
    "Sales",
    "Rain",
    "Visits",
    "Votes",
    "Trees",
    "Power",
    "Steps",
    "Books",
    "Birds",
    "Calls",
    "Prices",
    "Speed",
    "Noise",
    "Tides",
)
UNITS = ("count", "kg", "hours", "litres", "km", "points")
LABELS = (
    ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug"),
    ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun"),
    ("A", "B", "C", "D", "E", "F"),
    ("2019", "2020", "2021", "2022", "2023", "2024"),
    ("North", "East", "South", "West"),
)
XS = ("month", "day", "group", "year", "region")
NAMES = ("Red team", "Blue team", "North", "South", "Old", "New", "Plan", "Actual")


def parts_of(draw: random.Random, level: str, code: str, fits: Callable[[list[str]], bool]) -> list[str]:
    """The shapes of a picture that `fits`, in order, all visible: as short code (`short`) or as SVG elements (`svg`), which on
    the harder levels have outlines, transparent paint, curves and gradients."""
    while True:
        count = draw.randint(*SHAPES_OF[level])
        parts = [_words(draw) if code == "short" else _element(draw, level, i) for i in range(count)]
        if not fits(parts):
            continue
        without = [joined(parts[:i] + parts[i + 1 :], code) for i in range(count)] if count > 1 else [""]
        if _all_seen(joined(parts, code), without, code):
            return parts


def joined(parts: list[str], code: str) -> str:
    """The code of a picture."""
    return "; ".join(parts) if code == "short" else f'<svg viewBox="0 0 {SIDE} {SIDE}">{"".join(parts)}</svg>'


def _words(draw: random.Random) -> str:
    """A shape on a grid of 5 units. Corners are sorted and ellipses are never circles, so that each picture has only one code."""
    colour, kind = draw.choice(COLOURS), draw.choice(("rect", "circle", "ellipse", "triangle", "line"))

    def grid(low: int, high: int) -> int:
        return 5 * draw.randint(low // 5, high // 5)

    if kind == "rect":
        w, h = grid(15, 60), grid(15, 60)
        return f"rect {grid(0, SIDE - w)} {grid(0, SIDE - h)} {w} {h} {colour}"
    if kind == "circle":
        r = grid(10, 30)
        return f"circle {grid(r, SIDE - r)} {grid(r, SIDE - r)} {r} {colour}"
    if kind == "ellipse":
        a, b = draw.sample(range(10, 40, 5), 2)
        return f"ellipse {grid(a, SIDE - a)} {grid(b, SIDE - b)} {a} {b} {colour}"
    corners = sorted((grid(5, 95), grid(5, 95)) for _ in range(3 if kind == "triangle" else 2))
    return f"{kind} {' '.join(f'{x} {y}' for x, y in corners)} {colour}"


def _element(draw: random.Random, level: str, number: int) -> str:
    if level == "hard" and draw.random() < 0.35:
        return _curve(draw)
    code = to_svg(_words(draw))
    element = code[code.index(">") + 1 : code.index("</svg>")]
    if level == "easy" or "stroke" in element:
        return element
    extra = draw.choice(("", "", f' stroke="{draw.choice(COLOURS)}" stroke-width="{draw.choice((2, 3, 4))}"', ' opacity="0.6"'))
    if level == "hard" and draw.random() < 0.25:
        fill = element.split('fill="')[1].split('"')[0]
        stops = f'<stop offset="0" stop-color="{fill}"/><stop offset="1" stop-color="{draw.choice(COLOURS)}"/>'
        element = f'<linearGradient id="g{number}">{stops}</linearGradient>' + element.replace(f'"{fill}"', f'"url(#g{number})"')
    return element.replace("/>", f"{extra}/>") if "Gradient" not in element else element


def _curve(draw: random.Random) -> str:
    """A closed curve through points around a centre."""
    cx, cy, count = draw.randint(30, 70), draw.randint(30, 70), draw.randint(3, 5)
    rims = [(a, draw.randint(14, 30)) for a in (2 * math.pi * i / count for i in range(count))]
    points = [(round(cx + r * math.cos(a)), round(cy + r * math.sin(a))) for a, r in rims]
    turns = [
        (round(cx + 1.4 * r * math.cos(a + math.pi / count)), round(cy + 1.4 * r * math.sin(a + math.pi / count)))
        for a, r in rims
    ]
    path = f"M{points[0][0]} {points[0][1]}"
    for (x, y), (u, v) in zip([*points[1:], points[0]], turns, strict=True):
        path += f"Q{u} {v} {x} {y}"
    return f'<path d="{path}Z" fill="{draw.choice(COLOURS)}"/>'


def _all_seen(whole: str, without: list[str], code: str) -> bool:
    """Whether each shape changes enough of the picture, or of a blank one if it is the only shape."""
    shown = np.asarray(render(whole, code, (56, 56)), dtype=np.int16)
    for text in without:
        other = np.asarray(render(text, code, (56, 56)), dtype=np.int16) if text else np.full_like(shown, 255)
        if float((abs(shown - other).max(axis=2) > 24).mean()) < VISIBLE:
            return False
    return True


def random_chart(draw: random.Random, level: str) -> chart.Chart:
    """A chart: bars or a line of one series; two series or a pie; three series, or points."""
    kind = draw.choice({"easy": ("bar", "line"), "middle": ("bar", "line", "pie"), "hard": ("bar", "line", "scatter")}[level])
    group = draw.randrange(len(LABELS))
    count = min(draw.randint(3, {"easy": 4, "middle": 5, "hard": 8}[level]), len(LABELS[group]))
    labels = LABELS[group][:count]
    topic = draw.choice(TOPICS)
    top = draw.choice((10, 50, 100) if level != "hard" else (10, 50, 100, 400))
    if kind == "pie":
        return chart.Chart("pie", topic, "", "", labels, (("", tuple(float(draw.randint(1, 9)) for _ in labels)),))
    names = draw.sample(NAMES, {"easy": 1, "middle": 2, "hard": draw.randint(2, 3)}[level])
    if kind == "scatter":
        series = tuple(
            (n, tuple((draw.randint(0, 20) * 1.0, draw.randint(0, 20) * 1.0) for _ in range(draw.randint(3, 6)))) for n in names
        )
        return chart.Chart("scatter", topic, "time", draw.choice(UNITS), (), series)
    low = -top // 2 if level == "hard" and draw.random() < 0.3 else 0
    values = tuple((n, tuple(float(draw.randint(low, top)) for _ in labels)) for n in names)
    if all(v == 0 for _, vs in values for v in vs):
        return random_chart(draw, level)
    return chart.Chart(kind, topic, XS[group], draw.choice(UNITS), labels, values)
