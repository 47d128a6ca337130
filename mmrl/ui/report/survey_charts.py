"""Small figures of a survey of prompts: a line of text and bars, which pages and contact sheets draw."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mmrl.api.specs import TaskSpec, VerifierSpec
from mmrl.run_folder.figures import has_scale
from mmrl.ui.report.svg import number
from mmrl.ui.report.text import esc, visible
from mmrl.ui.task_statistics import TaskStatistics

BINS = 16
"""Maximal columns of a histogram."""
FEW = 12
"""Integers within a range smaller than this get one column each."""
MOST = 6
"""Maximal number of bars for texts; the most frequent ones are shown."""
SHORT, LONG = 40, 120
"""Maximal characters of a text in a line, and beside a bar."""
WIDTH, HEIGHT, TOP, FOOT = 360, 130, 16, 20
"""Size of a histogram on a page in pixels, and the parts of its height above and below the columns, for numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar of a figure."""

    label: str
    """Its label, not escaped."""
    length: float
    """Its length, 0 to 1."""
    told: str
    """Its value as text."""
    reach: tuple[float, float] | None = None
    """Lowest and highest single value, 0 to 1, if the bar is a mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A small chart."""

    title: str
    said: str
    """The whole figure as a line of text, for output without charts."""
    hint: str = ""
    """Text above the bars; empty: `said`."""
    bars: tuple[Bar, ...] = ()
    ends: tuple[str, str] | None = None
    """Lowest and highest value of a histogram, whose bars are columns; None for horizontal bars."""
    rest: int = 0
    """Texts that have no bar, as they are less frequent."""

    @property
    def above(self) -> str:
        """Text above the bars."""
        more = f"; the {len(self.bars)} most frequent are shown, {self.rest:,} more are not" if self.bars and self.rest else ""
        return (self.hint or self.said) + more


def figures(survey: TaskStatistics) -> list[Figure]:
    """Figures of the surveyed prompts; a statistic without data is left out."""
    every = [
        _histogram("Difficulty", survey.difficulties),
        _histogram("Area of gold boxes, share of the image", survey.areas, "%"),
        _histogram("Length of gold spans, share of the video", survey.lengths, "%"),
        *_long(survey),
        _histogram("Length of videos", survey.seconds, "s"),
        _answers(survey),
        _sizes(survey),
    ]
    known = [figure for figure in every if figure is not None]
    return sorted(known, key=lambda figure: (not figure.bars, figure.ends is None))  # figures of one kind are neighbours


def payments(survey: TaskStatistics, task: TaskSpec, verifiers: Mapping[str, VerifierSpec]) -> list[Figure]:
    """A figure for each verifier: its scores of gold, empty and wrong completions."""
    payments = []
    for name, by_source in survey.paid.items():
        weight, scale = task.verifiers.get(name, 0), has_scale(verifiers[name])
        given = [0.0, *(value for values in by_source.values() for value in values)]
        low, high = (verifiers[name].low, verifiers[name].high) if scale else (min(given), max(given))
        bars = tuple(_payment(source, values, low, high) for source, values in by_source.items() if values)
        use = f"Weight {weight:g} in the reward" if weight else "Not in the reward"
        metric = "; the evaluation metric" if name == task.metric else ""
        hint = f"{use}{metric}{f'; values from {number(low)} to {number(high)}' if scale else ''}."
        payments.append(Figure(title=name, said=", ".join(f"{bar.label} {bar.told}" for bar in bars), hint=hint, bars=bars))
    return payments


def _payment(source: str, values: Sequence[float], low: float, high: float) -> Bar:
    least, most, mean = min(values), max(values), statistics.fmean(values)

    def place(value: float) -> float:
        return min(max((value - low) / (high - low or 1.0), 0.0), 1.0)

    spread = f" ({number(least)} to {number(most)})" if most - least > 1e-6 else ""
    reach = (place(least), place(most)) if spread else None
    return Bar(label=source, length=place(mean), told=f"{number(mean)}{spread}", reach=reach)


def _answers(survey: TaskStatistics) -> Figure | None:
    total = survey.answers.total()
    if not total:
        return None
    if len(survey.numbers) == total and len(survey.answers) > MOST:
        return _histogram(survey.answered, survey.numbers)
    return _tally(survey.answered, survey.answers, "values")


def _long(survey: TaskStatistics) -> list[Figure | None]:
    """Lengths of prompts: in tokens if a policy counted them, else in characters."""
    if not survey.tokens:
        return [_histogram("Length of prompts, in characters", survey.characters)]
    pictured = survey.pictured if any(survey.pictured) else []
    return [_histogram("Length of prompts, in tokens", survey.tokens), _histogram("Tokens of images", pictured)]


def _sizes(survey: TaskStatistics) -> Figure | None:
    if not survey.sizes:
        return None
    figure = _tally("Images", Counter({f"{w} x {h}": n for (w, h), n in survey.sizes.items()}), "sizes")
    least, most = min(survey.pictures), max(survey.pictures)
    each = f"{least} to {most} per prompt" if least < most else f"{most} per prompt"
    return replace(figure, said=f"{each}, {figure.said}")


def _tally(title: str, counts: Counter[str], noun: str) -> Figure:
    """A figure of the most frequent texts. noun: plural name of a text."""
    total, ranked = counts.total(), counts.most_common(MOST)
    text, most = ranked[0]
    if len(counts) == 1:
        return Figure(title=title, said=f"{_short(text)} for all")
    if most == 1:
        return Figure(title=title, said=f"{total:,} different {noun}, such as {_short(text)}")
    bars = tuple(
        Bar(label=text[:LONG] or "(empty)", length=n / most, told=f"{n:,}") for text, n in ranked if n > 1 or len(counts) <= MOST
    )
    said = f"{len(counts):,} different {noun} among {total:,}, most often {_short(text)} ({most:,})"
    return Figure(title=title, said=said, bars=bars, rest=len(counts) - len(bars))


def _short(text: str) -> str:
    text = visible(text) or "(empty)"
    return text if len(text) <= SHORT else f"{text[:SHORT]}..."


def _histogram(title: str, values: Sequence[float], unit: str = "") -> Figure | None:
    if not values:
        return None
    low, high = min(values), max(values)
    ends = (number(low, unit), number(high, unit))
    if low == high:
        return Figure(title=title, said=f"{ends[0]} for all")
    said = f"{ends[0]} to {ends[1]}, median {number(statistics.median(values), unit)}"
    single = high - low < FEW and all(value == int(value) for value in values)
    bins = int(high - low) + 1 if single else BINS
    start, wide = (low - 0.5, high - low + 1) if single else (low, high - low)
    filled = Counter(min(int((value - start) / wide * bins), bins - 1) for value in values)
    edges = [start + wide * i / bins for i in range(bins + 1)]
    names = [
        number(low + i, unit) if single else f"{number(a, unit)} to {number(b, unit)}" for i, (a, b) in enumerate(pairwise(edges))
    ]
    most = max(filled.values())
    bars = tuple(Bar(label=name, length=filled[i] / most, told=f"{filled[i]:,}") for i, name in enumerate(names))
    return Figure(title=title, said=said, bars=bars, ends=ends)


# -- as HTML ----------------------------------------------------------------------------------------------------------------


def cards(shown: Sequence[Figure]) -> str:
    """The figures as HTML cards, with all text escaped."""
    return f'<div class="charts">{"".join(map(_card, shown))}</div>' if shown else ""


def _card(figure: Figure) -> str:
    body = "" if not figure.bars else _columns(figure) if figure.ends else _lines(figure.bars)
    title, said = esc(figure.title), esc(figure.above)
    return f'<figure class="card chart-card"><figcaption><h3>{title}</h3><p>{said}</p></figcaption>{body}</figure>'


def _columns(figure: Figure) -> str:
    assert figure.ends is not None
    wide, room, floor = WIDTH / len(figure.bars), HEIGHT - TOP - FOOT, HEIGHT - FOOT
    drawn = [f'<line class="grid" x1="0" x2="{WIDTH}" y1="{floor}" y2="{floor}"/>']
    for i, bar in enumerate(figure.bars):
        tall = bar.length * room
        drawn.append(
            f'<rect class="area s1" x="{i * wide + 1:.1f}" y="{floor - tall:.1f}" width="{wide - 2:.1f}" height="{tall:.1f}">'
            f"<title>{esc(bar.label)}: {esc(bar.told)}</title></rect>"
        )
    first = max(range(len(figure.bars)), key=lambda i: figure.bars[i].length)
    at = min(max((first + 0.5) * wide, 14), WIDTH - 14)
    drawn.append(f'<text x="{at:.1f}" y="{TOP - 5}" text-anchor="middle">{esc(figure.bars[first].told)}</text>')
    drawn += [
        f'<text x="{x}" y="{HEIGHT - 5}" text-anchor="{anchor}">{esc(end)}</text>'
        for x, anchor, end in ((0, "start", figure.ends[0]), (WIDTH, "end", figure.ends[1]))
    ]
    spoken = "; ".join(f"{bar.label}: {bar.told}" for bar in figure.bars if bar.length)
    label = esc(f"Histogram of {figure.title}. {spoken}")
    return f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{label}">{"".join(drawn)}</svg>'


def _lines(bars: Sequence[Bar]) -> str:
    return f'<ul class="bars">{"".join(map(_line, bars))}</ul>'


def _line(bar: Bar) -> str:
    low, high = (100 * end for end in bar.reach) if bar.reach else (0.0, 0.0)
    reach = f'<rect class="reach" x="{low:.1f}" width="{max(high - low, 1):.1f}" height="8"/>' if bar.reach else ""
    return (
        f'<li><span dir="auto">{esc(bar.label)}</span><b>{esc(bar.told)}</b>'
        '<svg viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="well" width="100" height="8"/>'
        f'{reach}<rect class="area s1" y="{2 if bar.reach else 0}" width="{100 * bar.length:.1f}" '
        f'height="{4 if bar.reach else 8}"/></svg></li>'
    )
