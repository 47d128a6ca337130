"""The report of a run: one self-contained HTML file without external links."""

from __future__ import annotations

import datetime
import os
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError
from mmrl.run_folder.bounded import CONFIG
from mmrl.run_folder.excerpt import read_excerpt
from mmrl.run_folder.figures import SHARES, has_scale, help_text, unit_of
from mmrl.run_folder.files import contents, reason
from mmrl.run_folder.metrics import PARTS
from mmrl.run_folder.reader import RunData
from mmrl.run_folder.writer import ENDED, RunFolder
from mmrl.ui.report import alarms, episodes, evaluations, smoke
from mmrl.ui.report.charts import boundaries, curves, evaluation_card, stages
from mmrl.ui.report.document import document
from mmrl.ui.report.gallery import gallery
from mmrl.ui.report.svg import number
from mmrl.ui.report.text import count, duration, esc

CARDS = 6
"""Maximal number of tasks that get a card each; with more tasks the table replaces the cards."""
NOTES, CHAIN, BARS = 20, 100, 50
"""Maximal number of lines about what is left out, of stages in the header, and of figures in a row."""
PACKAGES = ("torch", "transformers", "torchvision", "peft", "vllm", "numpy", "pillow", "datasets")


def write_report(run_dir: str | os.PathLike[str]) -> Path:
    """Write `report.html` into the folder of a finished or running run and return its path. Raises UserError if it is no run."""
    run = read_excerpt(run_dir)
    return RunFolder(run.path).report(page(run))


def page(run: RunData) -> str:
    """The whole report as HTML."""
    name = run.path.resolve().name
    parts = [
        smoke.section(run),
        _headline(run),
        evaluations.section(run),
        episodes.section(run),
        alarms.section(run),
        curves(run.steps, run.config.get("stages") or ()),
        gallery(run),
        _details(run),
    ]
    parts[:0] = [_header(run, name), _left_out(run)]  # the parts before have noted what they leave out
    written = f"Written by mmrl {esc(run.manifest.get('mmrl', ''), 100)}. All numbers are in <code>metrics.jsonl</code>."
    return document(name, "\n".join(parts), written)


def _header(run: RunData, name: str) -> str:
    ended = any(row.get("where") == ENDED for row in run.errors)
    status = str(run.summary.get("status", "finished")) if run.summary is not None else "failed" if ended else "not finished"
    kind = {"finished": "good", "failed": "bad"}.get(status, "warn")
    ran = stages(run.steps, run.config.get("stages") or (), run.every)
    chain = "".join(
        f"<li>{', '.join(esc(name, 200) for name in (stage, algorithm) if name)}, <b>{count(n, 'step')}</b></li>"
        for stage, algorithm, n in ran[:CHAIN]
    )
    chain += f"<li>{count(len(ran) - CHAIN, 'more stage')}</li>" if len(ran) > CHAIN else ""
    chain = f'<ol class="chain">{chain}</ol>' if chain else '<p class="hint">No step is recorded yet.</p>'
    machine = run.manifest.get("machine") or {}
    gpus = [str(gpu) for gpu in machine.get("gpus") or []]
    where = f"{len(gpus)} x {gpus[0]}" if gpus else f"{machine.get('cpu')}, {machine.get('cores')} cores"
    when, seed = _date(run.manifest.get("started")), run.manifest.get("seed")
    return (
        f'<header><p class="brand">mmrl run</p><h1>{esc(name)} <span class="status {kind}">{esc(status, 100)}</span></h1>{chain}'
        f'<p class="hint">{esc(when)} on {esc(where, 300)}, seed {esc(seed, 100)}</p></header>'
    )


def _left_out(run: RunData) -> str:
    """What the report does not show of the run folder, because it is damaged or too large; empty if it shows all."""
    lines = list(dict.fromkeys(run.left_out))
    more = [f"and {len(lines) - NOTES:,} more"] if len(lines) > NOTES else []
    items = "".join(f"<li>{esc(line, 600)}</li>" for line in (*lines[:NOTES], *more))
    return f'<section class="card left-out"><h2>Left out</h2><ul>{items}</ul></section>' if items else ""


def _headline(run: RunData) -> str:
    """The top of the report: metrics before and after training, wall time and its parts. Runs with many tasks have a table
    below instead of cards."""
    results = _results(run)
    marks = boundaries(run.steps, run.config.get("stages") or ())
    evaluations = evaluation_card(run.evals, marks, run.config.get("evaluate") or {})
    cards = "".join(_intervals(task, rows) for task, rows in results.items()) if len(results) <= CARDS else ""
    return f'<section class="headline">{cards}{evaluations}{_tiles(run)}</section>'


def _results(run: RunData) -> dict[str, list[tuple[str, Mapping[str, Any]]]]:
    """Task -> ("before" | "best" | "last" | "so far", result), from the summary or from the evaluations so far."""
    by_task: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
    if run.summary:
        for when in ("before", "best", "last"):
            for task, result in (run.summary.get(when) or {}).items():
                by_task.setdefault(task, []).append((when, result))
    else:
        evals: dict[str, list[Mapping[str, Any]]] = {}
        for row in run.evals:
            evals.setdefault(row["eval"]["task"], []).append(row["eval"])
        for task, rows in evals.items():
            best = max(rows, key=lambda row: -1e9 if row["value"] is None else row["value"])
            by_task[task] = [("before", rows[0]), ("best", best), ("last", rows[-1])] if len(rows) > 1 else [("so far", rows[0])]
    return {task: known for task, rows in by_task.items() if (known := [(w, r) for w, r in rows if r.get("value") is not None])}


def _range(metric: Any) -> tuple[float, float] | None:
    """(low, high) bounds of a metric: 0 and 1 for a share, the spec's for a verifier; None if they are no scale or the verifier
    is not installed here."""
    from mmrl.registry import plugins

    if metric in SHARES:
        return 0.0, 1.0
    try:
        spec = plugins.registry().get("verifiers", str(metric))
    except UserError:
        return None
    return (spec.low, spec.high) if has_scale(spec) else None


def _scale(rows: Sequence[tuple[str, Mapping[str, Any]]]) -> tuple[float, float]:
    """(low, high) of a card's axis: the metric's bounds, so that cards can be compared, else the range of the values."""
    bounds = [float(b) for _, r in rows for b in (r.get("low"), r["value"], r.get("high")) if b is not None]
    low, high = min(bounds), max(bounds)
    known = _range(rows[-1][1].get("metric"))
    if known and known[0] <= low and high <= known[1]:
        return known
    room = (high - low) * 0.06 or abs(high) * 0.05 or 1.0
    return low - room, high + room


def _apart(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    """ "up" or "down" if the two intervals do not overlap, else empty. An unknown bound counts as the value."""
    (low, high), (other_low, other_high) = (
        [r["value"] if r.get(end) is None else r[end] for end in ("low", "high")] for r in (first, last)
    )
    return "up" if other_low > high else "down" if other_high < low else ""


def _intervals(task: str, rows: Sequence[tuple[str, Mapping[str, Any]]]) -> str:
    """A task's card: its last value in large type; the values before training, best and last as dots on their intervals."""
    unit = unit_of(str(rows[-1][1].get("metric")))
    low, high = _scale(rows)
    lines = []
    for when, r in rows:
        ends = [r["value"] if r.get(key) is None else r[key] for key in ("low", "value", "high")]
        a, v, b = (100 * (end - low) / (high - low) for end in ends)
        value = number(ends[1], unit)
        if ends[0] < ends[2]:
            value += f"<small>{number(ends[0], unit)} to {number(ends[2], unit)}</small>"
        bar = f'<i style="left:{a:.1f}%;width:{b - a:.1f}%"></i><u style="left:{v:.1f}%"></u>'
        lines.append(f'<li class="{esc(when)}"><span>{esc(when)}</span><div class="interval">{bar}</div><b>{value}</b></li>')
    lines.append(f'<li class="ends"><span>{number(low, unit)}</span><span>{number(high, unit)}</span></li>')
    first, last = rows[0][1], rows[-1][1]
    change = last["value"] - first["value"]
    points = f"{change * 100:+.1f} points" if unit else f"{change:+.3g}"
    moved = f'<span class="{_apart(first, last)}">{points}</span>' if len(rows) > 1 else ""
    n = f", {count(last['n'], 'prompt')}" if isinstance(last.get("n"), int) else ""
    extra = "".join(
        f"<span>{esc(evaluations.plain(name))} <b>{number(value)}</b>{_bounds(last, name)}</span>"
        for name, value in islice((last.get("extra") or {}).items(), BARS)
        if isinstance(value, int | float)
    )
    helped = f'<p class="hint">{esc(helped)}</p>' if (helped := help_text(last.get("extra") or {})) else ""
    facts = f'<p class="facts">{extra}</p>' if extra else ""
    return (
        f'<article class="card result"><h3>{esc(task)}</h3>'
        f'<p class="hint">{esc(last.get("metric", ""))}{n}, 95% intervals</p>{helped}'
        f'<p class="figure">{number(last["value"], unit)} {moved}</p><ul>{"".join(lines)}</ul>{facts}</article>'
    )


def _bounds(figure: Mapping[str, Any], name: str) -> str:
    """The interval of an extra figure; empty if it has none."""
    found = evaluations.bounds_of(figure, name)
    return f" <small>{number(found[0])} to {number(found[1])}</small>" if found else ""


def _tiles(run: RunData) -> str:
    """The card of small figures (time, steps, reward, memory, errors) and the bar of time by part."""
    summary = run.summary or {}
    seconds = summary.get("seconds") or _seconds(run.steps, run.every)
    seconds = {key: value for key, value in seconds.items() if isinstance(value, int | float)}
    total = seconds.pop("total", None) or (run.steps[-1]["time"] if run.steps else 0.0)
    if seconds and not run.summary and total > sum(seconds.values()):
        seconds["between steps"] = total - sum(seconds.values())  # evaluations and checkpoints
    rewards = [y for row in run.steps if isinstance(y := row["metrics"].get("reward/mean"), int | float)]
    tiles = [("Wall time", duration(total)), ("Steps", f"{len(run.steps) * run.every:,}")]
    if rewards:
        some = max(len(rewards) // 10, 1)
        tiles.append(("Reward, first to last", f"{_mean(rewards[:some]):.2f} &rarr; {_mean(rewards[-some:]):.2f}"))
    for key, name in (("peak_memory_mb", "Peak memory"), ("peak_gpu_memory_mb", "Peak GPU memory")):
        if isinstance(summary.get(key), int | float):
            tiles.append((name, f"{summary[key] / 1024:.1f} GB"))
    if run.errors:
        tiles.append(("Errors and warnings", f'<a href="#errors">{len(run.errors):,}</a>'))
    figures = "".join(f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in tiles)
    return f'<article class="card tiles"><dl>{figures}</dl>{_time_bar(seconds)}</article>'


def _time_bar(seconds: Mapping[str, float]) -> str:
    whole = sum(seconds.values())
    if whole <= 0:
        return ""
    names = [*(name for name in PARTS if name in seconds), *(name for name in seconds if name not in PARTS)][:BARS]
    parts = [(name, seconds[name], min(i + 1, 8)) for i, name in enumerate(names) if seconds[name] > 0]
    bar = "".join(
        f'<i class="s{color}" style="flex-grow:{value / whole:.4f}" title="{esc(name)}"></i>' for name, value, color in parts
    )
    keys = "".join(
        f'<li><i class="key s{color}"></i><span>{esc(name)}</span><b>{duration(value)}</b> {value / whole:.0%}</li>'
        for name, value, color in parts
    )
    return f'<h3>Where the time went</h3><div class="bar">{bar}</div><ul class="legend">{keys}</ul>'


def _seconds(steps: Sequence[Mapping[str, Any]], every: int) -> dict[str, float]:
    """Part -> seconds, summed over the steps' `time/...` metrics, for a run without a summary. every: of how many steps one is
    given."""
    sums: dict[str, float] = {}
    for row in steps:
        for key, value in row["metrics"].items():
            if key.startswith("time/") and key != "time/step" and isinstance(value, int | float):
                sums[key.removeprefix("time/")] = sums.get(key.removeprefix("time/"), 0.0) + every * value
    return sums


def _details(run: RunData) -> str:
    """What reproduces the run: settings, versions, machine."""
    manifest = run.manifest
    packages, machine, git = (manifest.get(key) or {} for key in ("packages", "machine", "git"))
    plugins = [f"{plugin.get('name')} {plugin.get('version') or ''}".strip() for plugin in manifest.get("plugins") or []]
    memory = machine.get("memory_mb")
    facts = {
        "mmrl": manifest.get("mmrl"),
        "Python": manifest.get("python"),
        **{name: packages[name] for name in PACKAGES if name in packages},
        "plugins": ", ".join(plugins) or "none",
        "git": f"{git['commit'][:12]}{', with uncommitted changes' if git.get('dirty') else ''}" if git.get("commit") else "none",
        "CPU": f"{machine.get('cpu')}, {machine.get('cores')} cores",
        "GPU": ", ".join(map(str, machine.get("gpus") or [])) or "none",
        "memory": f"{memory / 1024:.0f} GB" if isinstance(memory, int | float) else "unknown",
        "system": machine.get("system", "unknown"),
    }
    rows = "".join(f"<div><dt>{esc(name)}</dt><dd>{esc(str(value), 400)}</dd></div>" for name, value in facts.items())
    try:
        config = esc(contents(run.path / "config.toml", CONFIG).decode(errors="replace"), 50_000)
    except OSError as error:
        config = esc(reason(error))
    return (
        '<section class="details"><h2>Reproduce this run</h2>'
        f'<details class="card"><summary>Machine and versions</summary><dl class="facts-table">{rows}</dl></details>'
        f'<details class="card"><summary>Settings (config.toml)</summary><pre>{config}</pre></details></section>'
    )


def _date(started: Any) -> str:
    try:
        return datetime.datetime.fromisoformat(started).strftime("%d %B %Y, %H:%M %Z").lstrip("0").strip()
    except (TypeError, ValueError):
        return "start unknown"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
