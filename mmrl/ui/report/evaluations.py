"""A report's table of evaluations: one row per task with its value, interval and episode outcomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from mmrl.run_folder.figures import line_of, title_of, unit_of
from mmrl.run_folder.reader import RunData
from mmrl.ui.report.svg import number
from mmrl.ui.report.text import esc

ROWS = 500
"""Maximal number of rows of the table."""
EPISODE = (
    ("episode/success", "At any time", "%"),
    ("episode/success_at_end", "At the end", "%"),
    ("episode/steps", "Steps", ""),
    ("episode/return", "Return", ""),
)
"""(key of `eval.extra`, column title, unit): outcomes of episodes in simulators. Others, as a simulator's parts, follow."""
PARTED, MOST = 20, 24
"""Maximal number of tasks whose parts have rows, and of these rows for each."""
HELPED = ("episode/intervened", "episode/intervened_share", "episode/success_alone")
"""What is said of a task in words where another took over."""

Figure = Mapping[str, Any]


def section(run: RunData) -> str:
    """The table as HTML; empty for a run with a single task that does not act, which has a card instead."""
    tasks = [(first, last) for first, last in _first_and_last(run.evals).values() if _is_number(last.get("value"))]
    acts = any(_extra(last, key) is not None for _, last in tasks for key, _, _ in EPISODE)
    if not tasks or (len(tasks) == 1 and not acts):
        return ""
    tasks.sort(key=lambda pair: (-pair[1]["value"], str(pair[1]["task"])))
    columns = [column for column in EPISODE if any(_extra(last, column[0]) is not None for _, last in tasks)]
    scale = _scale(tasks)
    metrics = {str(last.get("metric")) for _, last in tasks}
    ways = {_sampling(last, run.config) for _, last in tasks}
    varying = [*(["Metric"] if len(metrics) > 1 else []), *(["Sampling"] if len(ways) > 1 else [])]
    ends = "".join(f"<span>{f'{end:.0%}' if scale == (0.0, 1.0) else number(end)}</span>" for end in scale)
    value = "Value" if len(metrics) > 1 else esc(title_of(min(metrics)))
    if columns and all(_extra(last, columns[0][0]) == last["value"] for _, last in tasks):  # usually the metric itself
        value += f", {columns.pop(0)[1].lower()}"
    heads = ["Task", *varying, f'<div class="ends">{ends}</div>', value, *(title for _, title, _ in columns), "n"]
    rows = "".join(
        _row(first, last, columns, scale, len(metrics) > 1, len(ways) > 1, run)
        + (_parts(first, last, scale, len(varying), len(columns)) if len(tasks) <= PARTED else "")
        for first, last in tasks[:ROWS]
    )
    more = f'<p class="hint">{len(tasks) - ROWS:,} more tasks in metrics.jsonl.</p>' if len(tasks) > ROWS else ""
    common = f"{next(iter(ways)).capitalize()}. " if len(ways) == 1 else ""
    return (
        f'<section class="by-task"><h2>Evaluation by task</h2><p class="hint">{common}Held-out prompts, best task first, with '
        "95% intervals. Grey: first evaluation; blue: last.</p>"
        f'<div class="card scroll"><table class="figures"><thead><tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr></thead>'
        f"<tbody>{rows}</tbody></table></div>{more}</section>"
    )


def plain(key: str) -> str:
    """The name of an outcome in words."""
    return key.removeprefix("episode/").replace("_", " ")


def bounds_of(figure: Figure, key: str) -> tuple[float, float] | None:
    """The 95% interval of a key of `eval.extra`; None if it is unknown."""
    found = (figure.get("intervals") or {}).get(key) if isinstance(figure.get("intervals"), Mapping) else None
    return (found[0], found[1]) if isinstance(found, Sequence) and len(found) == 2 and all(map(_is_number, found)) else None


def _first_and_last(evals: Sequence[Mapping[str, Any]]) -> dict[tuple[str, ...], tuple[Figure, Figure]]:
    """`line_of` -> its first and last evaluation."""
    ends: dict[tuple[str, ...], tuple[Figure, Figure]] = {}
    for row in evals:
        figure, key = row["eval"], line_of(row["eval"])
        ends[key] = (ends[key][0] if key in ends else figure, figure)
    return ends


def _sampling(figure: Figure, config: Mapping[str, Any]) -> str:
    """How answers were sampled, in words; older runs have it only in their settings."""
    settings = {**(config.get("evaluate") or {}), **figure}
    temperature, samples = settings.get("temperature"), settings.get("samples")
    if not _is_number(temperature) or not temperature:
        return "greedy"
    return f"sampled at temperature {temperature:g}" + (f", {samples} times each" if _is_number(samples) and samples > 1 else "")


def _scale(tasks: Sequence[tuple[Figure, Figure]]) -> tuple[float, float]:
    """(low, high) of the axis of all intervals: 0 and 1 if every value lies between them."""
    bounds = [float(f[key]) for pair in tasks for f in pair for key in ("low", "value", "high") if _is_number(f.get(key))]
    low, high = min(bounds), max(bounds)
    if low >= 0 and high <= 1:
        return 0.0, 1.0
    return low, high if high > low else low + 1.0


def _row(
    first: Figure,
    last: Figure,
    columns: Sequence[tuple[str, str, str]],
    scale: tuple[float, float],
    with_metric: bool,
    with_way: bool,
    run: RunData,
) -> str:
    unit = unit_of(str(last.get("metric")))
    cells = [f"<th scope='row'>{esc(last['task'], 200)}</th>"]
    cells += [f"<td>{esc(last.get('metric'), 80)}</td>"] if with_metric else []
    cells += [f"<td>{esc(_sampling(last, run.config))}</td>"] if with_way else []
    marks = (_mark("before", first, scale) if first is not last else "") + _mark("last", last, scale)
    cells.append(f'<td class="bars"><div class="interval">{marks}</div></td>')
    cells.append(f"<td>{_cell(last['value'], (last.get('low'), last.get('high')), unit)}</td>")
    for key, _, column_unit in columns:
        extra = _extra(last, key)
        cells.append(f"<td>{'' if extra is None else _cell(extra, bounds_of(last, key), column_unit)}</td>")
    cells.append(f"<td>{esc(last.get('n'))}</td>")
    return f"<tr>{''.join(cells)}</tr>"


def _parts(first: Figure, last: Figure, scale: tuple[float, float], varying: int, columns: int) -> str:
    """A row for each other outcome, such as a simulator's parts, with a bar if all of a part is on the scale. varying, columns:
    numbers of the cells before the bar and behind the value that stay empty."""
    rows = []
    keys = [key for key in last.get("extra") or {} if key.startswith("episode/") and key not in HELPED]
    for key in [key for key in keys if key not in [known for known, *_ in EPISODE] and _extra(last, key) is not None][:MOST]:
        both = [_part(figure, key) for figure in ([first] if first is not last else []) + [last]]
        on = all(scale[0] <= end <= scale[1] for part in both for end in part.values())
        marks = "".join(_mark(css, part, scale) for css, part in zip(("before", "last")[-len(both) :], both, strict=True) if part)
        value = _cell(both[-1]["value"], bounds_of(last, key), "")
        bar = f'<div class="interval">{marks}</div>' if on else ""
        cells = [f"<th scope='row'>{esc(plain(key), 80)}</th>", *["<td></td>"] * varying, f'<td class="bars">{bar}</td>']
        rows.append(f'<tr class="part">{"".join([*cells, f"<td>{value}</td>", *["<td></td>"] * (columns + 1)])}</tr>')
    return "".join(rows)


def _part(figure: Figure, key: str) -> dict[str, float]:
    """The value of an outcome, and the bounds if they are known; empty without it."""
    value, bounds = _extra(figure, key), bounds_of(figure, key)
    return ({} if value is None else {"value": value}) | ({} if bounds is None else {"low": bounds[0], "high": bounds[1]})


def _cell(value: float, bounds: Any, unit: str) -> str:
    """A number, with its interval if it has one."""
    html = f"<b>{number(value, unit)}</b>"
    if isinstance(bounds, Sequence) and len(bounds) == 2 and all(map(_is_number, bounds)):
        html += f"<small>{number(bounds[0], unit)} to {number(bounds[1], unit)}</small>"
    return html


def _mark(css: str, figure: Figure, scale: tuple[float, float]) -> str:
    if not _is_number(figure.get("value")):
        return ""
    ends = [figure["value"] if not _is_number(figure.get(key)) else figure[key] for key in ("low", "value", "high")]
    a, v, b = (min(max(100 * (end - scale[0]) / (scale[1] - scale[0]), 0.0), 100.0) for end in ends)
    return f'<i class="{css}" style="left:{a:.1f}%;width:{b - a:.1f}%"></i><u class="{css}" style="left:{v:.1f}%"></u>'


def _extra(figure: Figure, key: str) -> float | None:
    value = (figure.get("extra") or {}).get(key)
    return float(value) if _is_number(value) else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
