"""What a survey of prompts found, as small figures: one line in words, and bars that pages and contact sheets draw."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from mmrl.api.specs import TaskSpec, VerifierSpec
from mmrl.ui.report.svg import number
from mmrl.ui.report.text import esc, visible
from mmrl.ui.survey import Survey

BINS = 16
"""Columns of a histogram, at most."""
FEW = 12
"""Whole numbers that lie within so many are counted one by one."""
MOST = 6
"""Texts that are shown, the most frequent ones."""
SHORT, LONG = 40, 120
"""Characters of a text in a line of words, and beside a bar."""
WIDTH, HEIGHT, TOP, FOOT = 360, 130, 16, 20
"""Of a histogram on a page; its numbers stand above and below the columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    label: str
    """What it stands for: any text."""
    length: float
    """0 to 1."""
    told: str
    """Its number."""
    reach: tuple[float, float] | None = None
    """From where to where single values lie, 0 to 1, where the bar is their mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A small chart."""

    title: str
    said: str
    """All of it in a line, for those who see no chart."""
    hint: str = ""
    """What stands above the bars where they say the rest; else `said` does."""
    bars: tuple[Bar, ...] = ()
    ends: tuple[str, str] | None = None
    """The least and the largest number, where the bars are columns of a histogram; else they lie one below the other."""


def figures(survey: Survey) -> list[Figure]:
    """What prompts are like; nothing for what they haven't got."""
    found = [
        _histogram("Difficulty", survey.difficulties),
        _histogram("True boxes, part of the picture", survey.areas, "%"),
        _histogram("True spans, part of the video", survey.lengths, "%"),
        *_long(survey),
        _histogram("Length of videos", survey.seconds, "s"),
        _answers(survey),
        _sizes(survey),
    ]
    known = [figure for figure in found if figure is not None]
    return sorted(known, key=lambda figure: (not figure.bars, figure.ends is None))  # alike beside alike


def payments(survey: Survey, task: TaskSpec, verifiers: Mapping[str, VerifierSpec]) -> list[Figure]:
    """What each verifier gives to which completions."""
    found = []
    for name, by_source in survey.paid.items():
        low, high, weight = verifiers[name].low, verifiers[name].high, task.verifiers.get(name, 0)
        bars = tuple(_payment(source, values, low, high) for source, values in by_source.items() if values)
        paid = f"Weight {weight:g} in the reward" if weight else "Not in the reward"
        metric = "; evaluations report it" if name == task.metric else ""
        hint = f"{paid}{metric}; values from {number(low)} to {number(high)}."
        found.append(Figure(title=name, said=", ".join(f"{bar.label} {bar.told}" for bar in bars), hint=hint, bars=bars))
    return found


def _payment(source: str, values: Sequence[float], low: float, high: float) -> Bar:
    least, most, mean = min(values), max(values), statistics.fmean(values)

    def place(value: float) -> float:
        return min(max((value - low) / (high - low), 0.0), 1.0)

    spread = f" ({number(least)} to {number(most)})" if most - least > 1e-6 else ""
    reach = (place(least), place(most)) if spread else None
    return Bar(label=source, length=place(mean), told=f"{number(mean)}{spread}", reach=reach)


def _answers(survey: Survey) -> Figure | None:
    total = survey.answers.total()
    if not total:
        return None
    if len(survey.numbers) == total and len(survey.answers) > MOST:
        return _histogram(survey.answered, survey.numbers)
    return _tally(survey.answered, survey.answers, "ones")


def _long(survey: Survey) -> list[Figure | None]:
    """How long prompts are, in tokens where a policy counts them."""
    if not survey.tokens:
        return [_histogram("Length of prompts, in characters", survey.characters)]
    pictured = survey.pictured if any(survey.pictured) else []
    return [_histogram("Length of prompts, in tokens", survey.tokens), _histogram("Tokens of pictures", pictured)]


def _sizes(survey: Survey) -> Figure | None:
    if not survey.sizes:
        return None
    figure = _tally("Pictures", Counter({f"{w} x {h}": n for (w, h), n in survey.sizes.items()}), "sizes")
    least, most = min(survey.pictures), max(survey.pictures)
    each = f"{least} to {most} for a prompt" if least < most else f"{most} for each prompt"
    return replace(figure, said=f"{each}, {figure.said}")


def _tally(title: str, counts: Counter[str], noun: str) -> Figure:
    """The most frequent texts."""
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
    return Figure(title=title, said=said, bars=bars)


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
    """The figures as HTML, all text as text."""
    return f'<div class="charts">{"".join(map(_card, shown))}</div>' if shown else ""


def _card(figure: Figure) -> str:
    body = "" if not figure.bars else _columns(figure) if figure.ends else _lines(figure.bars)
    title, said = esc(figure.title), esc(figure.hint or figure.said)
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
