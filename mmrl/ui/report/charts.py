"""The charts of a report: fills the catalogue of `mmrl.run_folder.metrics` with a run's metrics."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import accumulate, islice, pairwise, takewhile
from types import MappingProxyType
from typing import Any

from mmrl.run_folder.figures import line_of, unit_of
from mmrl.run_folder.metrics import HIDDEN, PARTS, SECTIONS, Chart
from mmrl.ui.report.svg import Number, Series, limits, line_chart, number, stacked_chart
from mmrl.ui.report.text import count, esc

BOUNDARIES, LABEL, STAGES = 50, 40, 20
"""Maximal number of changes of stage that are marked, of characters of their labels, and of stages with a chart each."""
MAX_SERIES = 8
"""Maximal lines in one chart, the number of colours of the page."""
BANDS = 4
"""Maximal lines in the chart of evaluations that still have interval bands."""

NAMED_BY_PEOPLE = ("reward", "episode")
"""Metrics whose last part is a name that a verifier or a task gave."""

Points = dict[str, list[tuple[float, Number]]]
"""Stage -> its (step, value) in order."""


def table(steps: Sequence[Mapping[str, Any]]) -> dict[str, Points]:
    """Metric key -> its points by stage. Values that are not numbers become gaps."""
    points: dict[str, Points] = {}
    for row in steps:
        for key, value in row["metrics"].items():
            y = float(value) if isinstance(value, int | float) else None
            points.setdefault(key, {}).setdefault(row["stage"], []).append((row["step"], y))
    return points


def boundaries(steps: Sequence[Mapping[str, Any]], planned: Sequence[Mapping[str, Any]] = ()) -> list[tuple[float, str]]:
    """(x, stage) of each of the first changes of stage; x lies half a step before the stage's first step. planned: the run file's
    stages, which separate consecutive stages of one kind."""
    ends = [*accumulate(takewhile(bool, (stage.get("steps") for stage in planned[:-1])))]

    def place(row: Mapping[str, Any]) -> tuple[int, str]:
        return bisect_left(ends, row["step"]), row["stage"]

    changes = (
        (after["step"] - 0.5, after["stage"][:LABEL]) for before, after in pairwise(steps) if place(before) != place(after)
    )
    return list(islice(changes, BOUNDARIES))


def stages(
    steps: Sequence[Mapping[str, Any]], planned: Sequence[Mapping[str, Any]] = (), every: int = 1
) -> list[tuple[str, str, int]]:
    """(stage, algorithm or "", number of steps) in the order in which they ran. planned: the run file's stages, which separate
    consecutive stages of one kind. every: of how many steps one is given."""
    ran: list[tuple[str, str, int]] = []
    at = 0
    for row in steps:
        stage = row["stage"]
        full = at + 1 < len(planned) and ran and ran[-1][2] >= (planned[at].get("steps") or math.inf)
        if not ran or ran[-1][0] != stage or (full and planned[at + 1].get("kind") == stage):
            at += bool(ran)
            known = at < len(planned) and planned[at].get("kind") == stage == "rl"
            ran.append((stage, str(planned[at].get("algorithm") or "") if known else "", 0))
        ran[-1] = (*ran[-1][:2], ran[-1][2] + every)
    return ran


def arranged(keys: Collection[str]) -> list[tuple[str, list[tuple[Chart, list[str]]]]]:
    """(section, (chart, its metrics)) of all charts with data; metrics outside the catalogue come last, each in a chart of its
    own."""
    one_task = sum(fnmatchcase(key, "task/*/zero_std_share") for key in keys) == 1  # charts of all tasks show its metrics
    left = [key for key in keys if key not in HIDDEN]
    sections = []
    for title, charts in SECTIONS:
        filled = []
        for chart in charts:
            drawn = [key for pattern in chart.keys for key in left if fnmatchcase(key, pattern)]
            if chart.stacked:
                drawn.sort(key=lambda key: PARTS.index(part) if (part := key.partition("/")[2]) in PARTS else len(PARTS))
            left = [key for key in left if key not in drawn]
            again = len(drawn) == 1 or (one_task and all(key.startswith("task/") for key in drawn))
            if drawn and not (chart.several and again):
                filled.append((chart, drawn))
        sections.append((title, filled))
    other = [(Chart(title=key, keys=(key,), spiky=True, hint="A metric of a plugin."), [key]) for key in sorted(left)]
    return [(title, filled) for title, filled in (*sections, ("Other metrics", other)) if filled]


def curves(steps: Sequence[Mapping[str, Any]], planned: Sequence[Mapping[str, Any]] = ()) -> str:
    """All sections of charts with data, as HTML. planned: see `boundaries`."""
    metrics, marks = table(steps), boundaries(steps, planned)
    sections = []
    for title, charts in arranged(metrics):
        cards = [card for chart, keys in charts for card in _cards(chart, {key: metrics[key] for key in keys}, marks)]
        sections.append(f'<section><h2>{title}</h2><div class="charts">{"".join(cards)}</div></section>')
    return "".join(sections)


def evaluation_card(
    evals: Sequence[Mapping[str, Any]], marks: Sequence[tuple[float, str]], settings: Mapping[str, Any] = MappingProxyType({})
) -> str:
    """A card with the evaluations over steps and their intervals; empty without evaluations. marks: (x, label) where stages
    begin. settings: `[evaluate]` of the run file."""
    lines: dict[tuple[str, ...], list[Mapping[str, Any]]] = {}
    for row in evals:
        lines.setdefault(line_of(row["eval"]), []).append({"step": row["step"], **row["eval"]})
    named = [rows[-1] for rows in lines.values()]
    apart = len({row["task"] for row in named}) <= BANDS or len({(row["metric"], row["split"]) for row in named}) > 1
    series: list[Series] = []
    for rows in list(lines.values())[:MAX_SERIES]:
        task, split, metric = (rows[-1][key] for key in ("task", "split", "metric"))
        name = f"{task} {metric} ({split})" if apart else str(task)
        low, high, ys = ([row.get(key) for row in rows] for key in ("low", "high", "value"))
        series.append(Series(name=name, xs=[row["step"] for row in rows], ys=ys, low=low, high=high, color=len(series) + 1))
    if not series:
        return ""
    unit = unit_of(*(row["eval"]["metric"] for row in evals))
    many = len(series) > BANDS
    if many:  # bands would overlap; the table shows the intervals
        series = [replace(line, low=(), high=()) for line in series]
    svg = line_chart(series, unit=unit, height=240, boundaries=marks)
    samples, temperature = settings.get("num_samples", 1), settings.get("temperature", 0.0)
    sampling = f"{count(samples, 'answer')} each at temperature {temperature:g}" if temperature else "greedy"
    return _card(
        "Evaluation",
        f"Held-out prompts, {sampling}. "
        + ("The table has the intervals." if many else "Bands are 95% intervals; overlapping ones do not show progress."),
        series,
        unit,
        svg,
        _gaps(series),
        len(lines) - len(series),
    )


def _cards(chart: Chart, metrics: Mapping[str, Points], marks: Sequence[tuple[float, str]]) -> list[str]:
    names = list(dict.fromkeys(stage for points in metrics.values() for stage in points))
    if chart.per_stage and 1 < len(names) <= STAGES:
        return [_chart_card(chart, f"{chart.title} ({name})", _series(chart, metrics, [name]), marks) for name in names]
    return [_chart_card(chart, chart.title, _series(chart, metrics, names), marks)]


def _series(chart: Chart, metrics: Mapping[str, Points], names: Sequence[str]) -> list[Series]:
    lines: list[Series] = []
    for key, points in metrics.items():
        rows = sorted((point for name in names for point in points.get(name, [])), key=lambda point: point[0])
        if rows:
            lines.append(
                Series(
                    name=name_of(chart, key, len(metrics) > 1),
                    xs=[x for x, _ in rows],
                    ys=[y for _, y in rows],
                    color=len(lines) % MAX_SERIES + 1,
                )
            )
    return lines


def _chart_card(chart: Chart, title: str, series: list[Series], marks: Sequence[tuple[float, str]]) -> str:
    shown = series if chart.stacked else series[:MAX_SERIES]
    notes = _gaps(shown)
    if chart.stacked:
        svg = stacked_chart(_aligned(shown), unit=chart.unit, boundaries=marks)
    else:
        svg = line_chart(shown, unit=chart.unit, zero=chart.zero, spiky=chart.spiky, boundaries=marks)
        values = [y for s in shown for y in s.ys if y is not None]
        low, high = limits(values, spiky=chart.spiky)
        if values and (max(values) > high or min(values) < low):
            outlier = max(values) if max(values) > high else min(values)
            notes.append(f"reaches {number(outlier, chart.unit)}, off the chart")
    return _card(title, chart.hint, shown, chart.unit, svg, notes, len(series) - len(shown))


def _gaps(series: Sequence[Series]) -> list[str]:
    """A note on the values that are gaps in a chart's lines, if there are any."""
    gaps = sum(y is None for s in series for y in s.ys)
    return [f"{gaps} {'value is' if gaps == 1 else 'values are'} not a number"] if gaps else []


def _aligned(series: Sequence[Series]) -> list[Series]:
    """The series over the union of their steps, with gaps where a series lacks a step."""
    xs = sorted({x for s in series for x in s.xs})
    aligned = []
    for s in series:
        known = dict(zip(s.xs, s.ys, strict=True))
        aligned.append(Series(name=s.name, xs=xs, ys=[known.get(x) for x in xs], color=s.color))
    return aligned


def _card(title: str, hint: str, series: Sequence[Series], unit: str, svg: str, notes: Sequence[str], hidden: int) -> str:
    last = [next((y for y in reversed(s.ys) if y is not None), None) for s in series]
    figure, legend = "", ""
    if len(series) == 1:
        figure = f'<output title="latest value">{number(last[0], unit)}</output>'
    else:
        keys = "".join(
            f'<li><i class="key s{s.color}"></i><span>{esc(s.name)}</span><b>{number(y, unit)}</b></li>'
            for s, y in zip(series, last, strict=True)
        )
        more = f"<li>and {hidden} more, in metrics.jsonl</li>" if hidden > 0 else ""
        legend = f'<ul class="legend">{keys}{more}</ul>'
    note = "".join(f'<p class="note">{esc(text)}</p>' for text in notes)
    return (
        f'<figure class="card chart-card"><figcaption><h3>{esc(title)}</h3>{figure}<p>{esc(hint)}</p></figcaption>'
        f"{svg}{legend}{note}</figure>"
    )


def name_of(chart: Chart, key: str, several: bool) -> str:
    """The label of a metric in a chart: its name there, or the part of its key that differs from the other keys; the key itself
    if it is alone."""
    if not several:
        return key
    if chart.names:
        return next(name for pattern, name in zip(chart.keys, chart.names, strict=True) if fnmatchcase(key, pattern))
    head, _, rest = key.partition("/")
    if head in NAMED_BY_PEOPLE:
        return rest
    if head != "task":
        return (rest or key).replace("_", " ")
    for between in ("/reward/", "/weight/"):
        task, found, part = rest.partition(between)
        if found:
            return f"{task}: {part}"
    return rest.rpartition("/")[0]
