"""A small grammar of charts, as JSON, and its drawing: bars, lines, pies and scattered points.

{"type": "bar", "title": "Sales", "x": "month", "y": "units", "labels": ["Jan", "Feb"],
 "series": [{"name": "A", "values": [3, 5]}]}

A pie has neither axes nor a series' name; a scatter has no labels, and pairs for values. All other keys are required, and no
others are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from PIL import Image, ImageDraw, ImageFont

from mmrl.api.verifiers.parse import find_json, only_answer, thought
from mmrl_rendering.svg import Refused

KEYS = {
    "bar": ("type", "title", "x", "y", "labels", "series"),
    "line": ("type", "title", "x", "y", "labels", "series"),
    "scatter": ("type", "title", "x", "y", "series"),
    "pie": ("type", "title", "labels", "series"),
}
MAX_CHARS = 6_000
MAX_TEXT = 32
MAX_LABELS = 12
MAX_SERIES = 4
MAX_POINTS = 24
MAX_VALUE = 1e6
MIN_VALUE = 1e-6
"""Smallest absolute value other than 0: smaller axes have no round steps."""
COLOURS = ((31, 97, 200), (245, 136, 14), (34, 150, 64), (214, 39, 40), (140, 62, 178), (20, 160, 170))
INK = (60, 60, 66)


class Chart(NamedTuple):
    """A valid chart."""

    type: str
    title: str
    x: str
    y: str
    labels: tuple[str, ...]
    series: tuple[tuple[str, tuple[Any, ...]], ...]
    """(name, values) of each; a value is a float, of a scatter a pair."""


def find(completion: str) -> Any:
    """The JSON of a completion: in its one answer tag, or else all of it, perhaps in a fence. Raises Refused."""
    text = thought(completion)[1]
    if len(text) > 4 * MAX_CHARS:
        raise Refused(f"longer than {4 * MAX_CHARS:,} characters")
    if "answer>" in text:
        found, why = only_answer(completion)
        if found is None:
            raise Refused(why)
        text = found
    if len(text) > MAX_CHARS or text.count('"type"') > 1:
        raise Refused(f"one chart of at most {MAX_CHARS:,} characters is drawn")
    value = find_json(text, dict)
    if value is None:
        raise Refused("no JSON object")
    return value


def read(value: Any) -> Chart:
    """A chart from JSON. Raises Refused with the first error."""
    if not isinstance(value, Mapping) or value.get("type") not in KEYS:
        raise Refused(f"a chart is an object whose type is one of {', '.join(KEYS)}")
    kind = value["type"]
    if set(value) != set(KEYS[kind]):
        wrong = sorted(map(str, set(value) ^ set(KEYS[kind])))[:4]
        raise Refused(f"a {kind} chart has exactly {', '.join(KEYS[kind])}; wrong or missing: {', '.join(wrong)[:80]}")
    title, x, y = (_text(value.get(key, ""), key) for key in ("title", "x", "y"))
    labels = _list(value.get("labels", []), "labels", 0 if kind == "scatter" else 1, MAX_LABELS)
    labels = tuple(_text(label, "a label") for label in labels)
    series = _list(value["series"], "series", 1, 1 if kind == "pie" else MAX_SERIES)
    return Chart(kind, title, x, y, labels, tuple(_series(s, kind, len(labels)) for s in series))


def _series(value: Any, kind: str, count: int) -> tuple[str, tuple[Any, ...]]:
    wanted = {"values"} if kind == "pie" else {"name", "values"}
    if not isinstance(value, Mapping) or set(value) != wanted:
        raise Refused(f"a series of a {kind} chart has {' and '.join(sorted(wanted))}")
    values = _list(value["values"], "values", 1, MAX_POINTS)
    if kind == "scatter":
        if not all(isinstance(v, Sequence) and not isinstance(v, str) and len(v) == 2 for v in values):
            raise Refused("the values of a scatter are pairs")
        return _text(value["name"], "a name"), tuple((_number(a), _number(b)) for a, b in values)
    numbers = tuple(_number(v) for v in values)
    if len(numbers) != count:
        raise Refused(f"{len(numbers)} values for {count} labels")
    if kind == "pie" and (min(numbers) < 0 or sum(numbers) <= 0):
        raise Refused("the values of a pie are 0 or more, and not all 0")
    return ("" if kind == "pie" else _text(value["name"], "a name")), numbers


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or len(value) > MAX_TEXT or not value.isprintable():
        raise Refused(f"{what} is a text of at most {MAX_TEXT} characters")
    return value


def _list(value: Any, what: str, least: int, most: int) -> Sequence[Any]:
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise Refused(f"{what} is a list of {least} to {most}")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= MAX_VALUE:
        raise Refused(f"a value is a number of at most {MAX_VALUE:,.0f}")
    if 0 < abs(value) < MIN_VALUE:
        raise Refused(f"a value is 0, or {MIN_VALUE:g} at least without its sign")
    return float(value)


def as_json(chart: Chart) -> dict[str, Any]:
    """The chart as JSON data, whole numbers without a point."""
    series = [
        {**({} if chart.type == "pie" else {"name": name}), "values": [[_plain(a), _plain(b)] for a, b in values]}
        if chart.type == "scatter"
        else {**({} if chart.type == "pie" else {"name": name}), "values": [_plain(v) for v in values]}
        for name, values in chart.series
    ]
    every = {**chart._asdict(), "labels": list(chart.labels), "series": series}
    return {key: every[key] for key in KEYS[chart.type]}


def _plain(value: float) -> float | int:
    return int(value) if value == int(value) else value


# -- drawing ----------------------------------------------------------------------------------------------------------------


def draw(chart: Chart, size: tuple[int, int]) -> Image.Image:
    """The chart as a picture, RGB of `size` (width, height) pixels."""
    image = Image.new("RGB", size, "white")
    pen = ImageDraw.Draw(image)
    font: Any = ImageFont.load_default(size=max(8, round(size[1] / 18)))
    unit = font.size
    pen.text((size[0] / 2, unit * 0.9), chart.title, INK, font, "mm")
    names = list(chart.labels) if chart.type == "pie" else [name for name, _ in chart.series]
    bottom = size[1] - _legend(pen, names, font, size)
    if chart.type == "pie":
        _pie(pen, chart, (0, unit * 2, size[0], bottom - unit * 0.5))
        return image
    box = (unit * 4.2, unit * 2.9, size[0] - unit, bottom - unit * 2.9)
    _axes(pen, chart, font, box)
    return image


def _legend(pen: ImageDraw.ImageDraw, names: Sequence[str], font: Any, size: tuple[int, int]) -> float:
    """Names beside their colours at the lower edge, in rows; its height."""
    rows: list[list[tuple[int, str]]] = [[]]
    room = 0.0
    for i, name in enumerate(names):
        need = pen.textlength(name, font) + 2.2 * font.size
        if room + need > size[0] and rows[-1]:
            rows.append([])
            room = 0.0
        rows[-1].append((i, name))
        room += need
    height = 1.4 * font.size
    for row, items in enumerate(rows):
        x, y = font.size * 0.7, size[1] - height * (len(rows) - row - 0.5)
        for i, name in items:
            pen.rectangle((x, y - font.size * 0.35, x + font.size * 0.7, y + font.size * 0.35), COLOURS[i % len(COLOURS)])
            pen.text((x + font.size, y), name, INK, font, "lm")
            x += pen.textlength(name, font) + 2.2 * font.size
    return height * len(rows)


def _pie(pen: ImageDraw.ImageDraw, chart: Chart, box: tuple[float, float, float, float]) -> None:
    values = chart.series[0][1]
    radius = max(4.0, min(box[2] - box[0], box[3] - box[1]) / 2 - 2)
    x, y, angle = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2, -90.0
    for i, value in enumerate(values):
        turn = 360 * value / sum(values)
        if turn > 0:
            around = (x - radius, y - radius, x + radius, y + radius)
            pen.pieslice(around, angle, angle + turn, COLOURS[i % len(COLOURS)], "white", 1)
        angle += turn


def _axes(pen: ImageDraw.ImageDraw, chart: Chart, font: Any, box: tuple[float, float, float, float]) -> None:
    left, top, right, bottom = box
    heights = [v[1] if chart.type == "scatter" else v for _, values in chart.series for v in values]
    low, high, step = ticks(min(*heights, 0.0), max(*heights, 0.0))

    def at(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    for n in range(round((high - low) / step) + 1):
        value = low + n * step
        pen.line((left, at(value), right, at(value)), (215, 215, 220))
        pen.text((left - 3, at(value)), f"{value:g}", INK, font, "rm")
    pen.line((left, top, left, bottom), INK)
    pen.line((left, at(0), right, at(0)), INK)
    pen.text(((left + right) / 2, bottom + 2.3 * font.size), chart.x, INK, font, "mm")
    pen.text((2, top - 1.2 * font.size), chart.y, INK, font, "lm")
    if chart.type == "scatter":
        _points(pen, chart, font, box, at)
        return
    slot = (right - left) / len(chart.labels)
    for i, label in enumerate(chart.labels):
        pen.text((left + (i + 0.5) * slot, bottom + 0.9 * font.size), label, INK, font, "mm")
    for s, (_, values) in enumerate(chart.series):
        colour = COLOURS[s % len(COLOURS)]
        middles = [left + (i + 0.5) * slot for i in range(len(values))]
        if chart.type == "line":
            way = [(x, at(v)) for x, v in zip(middles, values, strict=True)]
            pen.line(way, colour, 2)
            for x, y in way:
                pen.ellipse((x - 3, y - 3, x + 3, y + 3), colour)
            continue
        wide = 0.8 * slot / len(chart.series)
        for x, v in zip(middles, values, strict=True):
            start, ends = x - 0.4 * slot + s * wide, sorted((at(0), at(v)))
            pen.rectangle((start, ends[0], start + max(0.0, wide - 1), ends[1]), colour)


def _points(pen: ImageDraw.ImageDraw, chart: Chart, font: Any, box: tuple[float, float, float, float], at: Any) -> None:
    left, _, right, bottom = box
    places = [x for _, values in chart.series for x, _ in values]
    low, high, step = ticks(min(*places, 0.0), max(*places, 0.0))
    for n in range(round((high - low) / step) + 1):
        x = left + n * step / (high - low) * (right - left)
        pen.text((x, bottom + 0.9 * font.size), f"{low + n * step:g}", INK, font, "mm")
    for s, (_, values) in enumerate(chart.series):
        for a, b in values:
            x, y = left + (a - low) / (high - low) * (right - left), at(b)
            pen.ellipse((x - 3, y - 3, x + 3, y + 3), COLOURS[s % len(COLOURS)])


def ticks(low: float, high: float) -> tuple[float, float, float]:
    """(first, last, step) of 2 to 6 round steps that cover a range."""
    span = high - low or 1.0
    power = 10.0 ** math.floor(math.log10(span / 4))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if span / (power * m) <= 5)
    first, last = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    return first, max(last, first + step), step
