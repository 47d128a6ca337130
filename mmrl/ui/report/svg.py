"""Line charts and stacked area charts of series over steps, as inline SVG. Colours come from the page's style sheet."""

from __future__ import annotations

import json
import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mmrl.ui.report.text import esc

WIDTH, HEIGHT = 360, 176
LEFT, RIGHT, TOP, BOTTOM = 42, 8, 10, 22
LETTER_WIDTH = 6.2
"""Approximate width of a letter in pixels."""
MAX_POINTS = 400
"""Maximal points per line; longer series are thinned to their extremes."""
LARGEST = 8e307
"""Values beyond it are drawn at the edge of a chart: the range of an axis must be a number too."""
SMOOTH_FROM = 20
"""Series with at least this many points are drawn faint under a bold running mean."""

Number = float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """One line of a chart. A value of None is a gap; `low` and `high` are the edges of a band around the line."""

    name: str
    xs: Sequence[float]
    ys: Sequence[Number]
    low: Sequence[Number] = ()
    high: Sequence[Number] = ()
    color: int = 1
    """Number of a colour of the style sheet, 1 to 8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps values of an axis to pixels `start` to `stop`, and has its ticks. Values outside `low` to `high` are clipped."""

    low: float
    high: float
    ticks: tuple[float, ...]
    start: float
    stop: float

    def inside(self, value: float) -> float:
        return min(max(value, self.low), self.high)

    def __call__(self, value: float) -> float:
        return round(self.start + (self.inside(value) - self.low) / (self.high - self.low) * (self.stop - self.start), 1)


def line_chart(
    series: Sequence[Series],
    *,
    unit: str = "",
    zero: bool = False,
    spiky: bool = False,
    height: int = HEIGHT,
    boundaries: Sequence[tuple[float, str]] = (),
) -> str:
    """An SVG of lines over steps. unit: "", "%" (values are shares) or "s". zero: include 0 in the y axis. spiky: let rare
    outliers leave the chart. boundaries: (x, label) of vertical lines."""
    values = [v for s in series for column in (s.ys, s.low, s.high) for v in column if v is not None]
    y_scale = _y_scale(*limits(values, zero, spiky), height)
    x_scale = _x_scale(series, _room(y_scale, unit))
    body = [_axes(x_scale, y_scale, unit), _boundaries(x_scale, y_scale, boundaries)]
    for s in series:
        if s.low and s.high:
            body.append(_band(s, x_scale, y_scale))
        many = len(s.xs) >= SMOOTH_FROM
        body.append(_line(s.xs, s.ys, x_scale, y_scale, f"raw s{s.color}" if many else f"line s{s.color}"))
        if many:
            drawn = [
                None if y is None else y_scale.inside(y) for y in s.ys
            ]  # clipped, so that a spike does not lift its neighbours
            body.append(_line(s.xs, smooth(drawn), x_scale, y_scale, f"line s{s.color}"))
        elif s.low:
            body += [
                f'<circle class="dot s{s.color}" cx="{x_scale(x)}" cy="{y_scale(y)}" r="2.5"/>'
                for x, y in zip(s.xs, s.ys, strict=True)
                if y is not None
            ]
    return _svg(series, x_scale, y_scale, unit, body)


def stacked_chart(series: Sequence[Series], *, unit: str = "", boundaries: Sequence[tuple[float, str]] = ()) -> str:
    """An SVG of stacked areas, for parts of a whole. All series must have the same `xs`; None counts as 0."""
    xs, columns = series[0].xs, [[y or 0.0 for y in s.ys] for s in series]
    size = math.ceil(len(xs) / (MAX_POINTS / 4))
    if size > 1:
        xs, columns = _bucket_means(xs, size), [_bucket_means(column, size) for column in columns]
    tops = [[sum(parts[: k + 1]) for k in range(len(series))] for parts in zip(*columns, strict=True)]
    y_scale = _y_scale(0.0, max((top[-1] for top in tops), default=1.0), HEIGHT)
    x_scale = _x_scale(series, _room(y_scale, unit))
    body = [_axes(x_scale, y_scale, unit), _boundaries(x_scale, y_scale, boundaries)]
    for k, s in enumerate(series):
        upper = [f"{x_scale(x)},{y_scale(top[k])}" for x, top in zip(xs, tops, strict=True)]
        lower = [f"{x_scale(x)},{y_scale(top[k - 1] if k else 0.0)}" for x, top in zip(xs, tops, strict=True)]
        body.append(f'<polygon class="area s{s.color}" points="{" ".join(upper + lower[::-1])}"/>')
    return _svg(series, x_scale, y_scale, unit, body, dots=False)


# -- numbers ------------------------------------------------------------------------------------------------------------


def number(value: Number, unit: str = "") -> str:
    """A number to display, with three or four digits; very large and very small ones with an exponent."""
    if value is None:
        return "no number"
    if unit == "%":
        return f"{value * 100:.1f}%"
    if value == 0:
        text = "0"
    elif abs(value) >= 1e6 or abs(value) < 1e-3:
        text = _short_exponent(f"{value:.1e}")
    elif abs(value) >= 1000:
        text = f"{value:,.0f}"
    else:
        text = f"{value:.3g}" if abs(value) < 100 else f"{value:.4g}"
    return f"{text} {unit}" if unit else text


def limits(values: Sequence[float], zero: bool = False, spiky: bool = False) -> tuple[float, float]:
    """(low, high) of the y axis. spiky: cover only the middle 98% if outliers would flatten the rest."""
    if not values:
        return 0.0, 1.0
    ordered = sorted(min(max(value, -LARGEST), LARGEST) for value in values)
    low, high = ordered[0], ordered[-1]
    if spiky and len(ordered) >= 50:
        rare = max(len(ordered) // 100, 1)
        first, last = ordered[rare], ordered[-1 - rare]
        if 0 < (last - first) * 4 < high - low:
            low, high = max(low, first - (last - first) / 4), min(high, last + (last - first) / 4)
    return (min(low, 0.0), max(high, 0.0)) if zero else (low, high)


def smooth(ys: Sequence[Number]) -> list[Number]:
    """A centred running mean over about 1/25 of the series, applied twice; gaps stay gaps."""
    half = max(len(ys) // 50, 1)
    return _running_mean(_running_mean(ys, half), half)


def _running_mean(ys: Sequence[Number], half: int) -> list[Number]:
    sums, counts = [0.0], [0]
    for y in ys:
        sums.append(sums[-1] + (y or 0.0))
        counts.append(counts[-1] + (y is not None))
    means: list[Number] = []
    for i, y in enumerate(ys):
        a, b = max(i - half, 0), min(i + half + 1, len(ys))
        means.append(None if y is None else (sums[b] - sums[a]) / (counts[b] - counts[a]))
    return means


def thin(xs: Sequence[float], ys: Sequence[Number], limit: int = MAX_POINTS) -> tuple[list[float], list[Number]]:
    """The series reduced to about `limit` points: the lowest and the highest of each bucket, in order."""
    if len(xs) <= limit:
        return list(xs), list(ys)
    size = math.ceil(len(xs) / (limit // 2))
    kept: list[int] = []
    for start in range(0, len(xs), size):
        bucket = [(y, i) for i, y in enumerate(ys[start : start + size], start) if y is not None]
        kept += sorted({min(bucket)[1], max(bucket)[1]}) if bucket else [start]
    return [xs[i] for i in kept], [ys[i] for i in kept]


def nice_ticks(low: float, high: float, whole: bool = False) -> tuple[float, ...]:
    """Two to six round numbers between `low` and `high`. whole: integers only."""
    if not high - low > 1e-300:  # only in damaged files: negative seconds, numbers between which there is none
        return (low,)
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= rough * 0.999)
    if whole:
        step = max(math.ceil(step), 1)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return tuple(float(f"{i * step:.12g}") for i in range(first, last + 1))


def _room(y_scale: Scale, unit: str) -> float:
    """Pixels to the left of a chart's lines, in which its ticks are written."""
    longest = max((len(_tick(tick, y_scale.ticks, unit)) for tick in y_scale.ticks), default=0)
    return max(LEFT, round(6 + LETTER_WIDTH * longest, 1))


def _x_scale(series: Sequence[Series], left: float) -> Scale:
    xs = [x for s in series for x in s.xs] or [0.0]
    low, high = min(xs), max(xs)
    if low == high:
        return Scale(low=low - 1, high=high + 1, ticks=(low,), start=left, stop=WIDTH - RIGHT)
    return Scale(low=low, high=high, ticks=nice_ticks(low, high, whole=True), start=left, stop=WIDTH - RIGHT)


def _y_scale(low: float, high: float, height: int) -> Scale:
    """A scale with 5% of room above and below, except beyond 0 or 1 if all values stay on one side of it."""
    room = (high - low) * 0.05
    if high - low <= 1e-9 * max(abs(low), abs(high)):  # a flat line
        room = abs(high) / 10 or 0.1
    floor = 0.0 if low >= 0 else -math.inf
    ceiling = 1.0 if 0.5 < high <= 1 else 0.0 if high == 0 > low else math.inf
    low, high = max(low - room, floor), min(high + room, ceiling)
    return Scale(low=low, high=high, ticks=nice_ticks(low, high), start=height - BOTTOM, stop=TOP)


def _tick(value: float, ticks: Sequence[float], unit: str) -> str:
    size = max(map(abs, ticks))
    if unit == "%":
        return f"{round(value * 100, 6):g}%"
    if value == 0:
        return "0"
    if size >= 10_000:
        return f"{value / 1e6:g}M" if size >= 1e6 else f"{value / 1e3:g}k"
    return f"{value:g}" if size >= 1e-3 else _short_exponent(f"{value:.2g}")


def _short_exponent(text: str) -> str:
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa.removesuffix('.0')}e{int(exponent)}" if exponent else text


def _bucket_means(values: Sequence[float], size: int) -> list[float]:
    buckets = [values[i : i + size] for i in range(0, len(values), size)]
    return [sum(bucket) / len(bucket) for bucket in buckets]


# -- drawing ------------------------------------------------------------------------------------------------------------


def _svg(series: Sequence[Series], x_scale: Scale, y_scale: Scale, unit: str, body: Iterable[str], dots: bool = True) -> str:
    """The SVG element, with a label for screen readers and the values that `page.js` shows under the pointer."""
    spoken = []
    for s in series:
        known = [(x, y) for x, y in zip(s.xs, s.ys, strict=True) if y is not None]
        if known:
            (x0, y0), (x1, y1) = known[0], known[-1]
            spoken.append(f"{s.name}: {number(y0, unit)} at step {x0:g}, {number(y1, unit)} at step {x1:g}")
    steps = sorted({x for s in series for x in s.xs})
    if len(steps) > MAX_POINTS:
        steps = [steps[round(i * (len(steps) - 1) / (MAX_POINTS - 1))] for i in range(MAX_POINTS)]
    hover = {
        "unit": unit,
        "dots": dots,
        "steps": steps,
        "x": [x_scale.low, x_scale.high, x_scale.start, x_scale.stop],
        "y": [y_scale.low, y_scale.high, y_scale.start, y_scale.stop],
        "series": [{"name": s.name, "color": s.color, "values": [_at(s, x) for x in steps]} for s in series],
    }
    data = esc(json.dumps(hover, separators=(",", ":")))
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {y_scale.start + BOTTOM}" role="img" '
        f'aria-label="{esc("; ".join(spoken))}" data-chart="{data}">{"".join(body)}</svg>'
    )


def _at(series: Series, x: float) -> Number:
    i = bisect_left(series.xs, x)
    value = series.ys[i] if i < len(series.xs) and series.xs[i] == x else None
    return None if value is None else float(f"{value:.5g}")


def _axes(x_scale: Scale, y_scale: Scale, unit: str) -> str:
    floor = y_scale.start + 15
    parts = [f'<text x="0" y="{floor}">step</text>']
    for tick in y_scale.ticks:
        y = y_scale(tick)
        parts.append(
            f'<line class="grid" x1="{x_scale.start}" x2="{x_scale.stop}" y1="{y}" y2="{y}"/>'
            f'<text x="{x_scale.start - 6}" y="{y + 3.5}" text-anchor="end">{_tick(tick, y_scale.ticks, unit)}</text>'
        )
    for tick in x_scale.ticks:
        parts.append(f'<text x="{x_scale(tick)}" y="{floor}" text-anchor="middle">{_tick(tick, x_scale.ticks, "")}</text>')
    return "".join(parts)


def _boundaries(x_scale: Scale, y_scale: Scale, boundaries: Sequence[tuple[float, str]]) -> str:
    """Vertical lines where stages begin; labels that would overlap are placed in rows."""
    parts = []
    ends: list[float] = []
    for x, label in boundaries:
        if x_scale.low < x < x_scale.high:
            at, wide = x_scale(x), LETTER_WIDTH * len(label)
            left = at + 4 + wide > WIDTH - RIGHT
            start = at - 4 - wide if left else at + 4
            row = next((n for n, end in enumerate(ends) if end <= start), len(ends))
            ends[row : row + 1] = [start + wide + LETTER_WIDTH]
            end = ' text-anchor="end"' if left else ""
            parts.append(
                f'<line class="stage" x1="{at}" x2="{at}" y1="{TOP}" y2="{y_scale.start}"/>'
                f'<text class="stage" x="{at - 4 if left else at + 4}" y="{TOP + 8 + 12 * row}"{end}>{esc(label)}</text>'
            )
    return "".join(parts)


def _line(xs: Sequence[float], ys: Sequence[Number], x_scale: Scale, y_scale: Scale, css: str) -> str:
    xs, ys = thin(xs, ys)
    path, pen_up = [], True
    for i, (x, y) in enumerate(zip(xs, ys, strict=True)):
        if y is None:
            pen_up = True
            continue
        path.append(f"{'M' if pen_up else 'L'}{x_scale(x)} {y_scale(y)}")
        alone = pen_up and (i + 1 == len(xs) or ys[i + 1] is None)
        if alone:
            path.append("h0")  # round caps make a single point a dot
        pen_up = False
    return f'<path class="{css}" d="{"".join(path)}"/>'


def _band(s: Series, x_scale: Scale, y_scale: Scale) -> str:
    rows = [(x, low, high) for x, low, high in zip(s.xs, s.low, s.high, strict=True) if low is not None and high is not None]
    if len(rows) == 1:
        x, low, high = rows[0]
        return f'<line class="whisker s{s.color}" x1="{x_scale(x)}" x2="{x_scale(x)}" y1="{y_scale(low)}" y2="{y_scale(high)}"/>'
    points = [f"{x_scale(x)},{y_scale(high)}" for x, _, high in rows]
    points += [f"{x_scale(x)},{y_scale(low)}" for x, low, _ in reversed(rows)]
    return f'<polygon class="band s{s.color}" points="{" ".join(points)}"/>'
