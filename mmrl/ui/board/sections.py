"""HTML of a run's pages other than its rollouts: curves, alarms, episodes, comparison with another run, settings."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError
from mmrl.evaluation.comparison import Comparison, OutcomeComparison
from mmrl.evaluation.paired_tests import PairedDifference
from mmrl.run_folder import files
from mmrl.run_folder.bounded import CONFIG, Budget
from mmrl.run_folder.excerpt import ERRORS, size_of, tail
from mmrl.run_folder.files import contents, reason, size_text
from mmrl.run_folder.reader import item_files, step_entries
from mmrl.run_folder.writer import with_defaults
from mmrl.ui.board import compare as comparing
from mmrl.ui.board import rollouts, run_queries, search
from mmrl.ui.board.pages import address, notes, other_run, table
from mmrl.ui.board.state import State
from mmrl.ui.report import alarms as alarming
from mmrl.ui.report import cards
from mmrl.ui.report import episodes as watched
from mmrl.ui.report.evaluations import plain
from mmrl.ui.report.media_sources import Decoding, MediaSource
from mmrl.ui.report.svg import number
from mmrl.ui.report.text import count, esc

ITEMS = 200
"""Maximal number of prompts listed in a comparison."""
LONGEST = 1500
"""Maximal characters of a completion in a comparison."""
ALARMS, EPISODES, DIFFERENCES = 300, 50, 1000
"""Maximal number of alarms and warnings, of evaluations with episodes, and of differences of settings on a page."""


def curves(state: State, runs: Sequence[str], others: Sequence[str]) -> str:
    """The page of curves, which `curves.js` fills. runs: the runs it shows. others: runs that can be added."""
    chosen = "".join(f'<input type="hidden" name="run" value="{esc(run)}">' for run in runs)
    options = "".join(f"<option>{esc(run)}</option>" for run in others)
    add = (
        f'<form class="overlay" action="/curves" method="get">{chosen}<label>Overlay <select name="run"><option value="">'
        f'another run</option>{options}</select></label><button type="submit">Add</button></form>'
        if others
        else ""
    )
    why = f'<p class="card failure">{esc(state.why, 600)}</p>' if state.why else ""
    shown = esc(json.dumps(list(runs)))
    return f'{why}{add}<div id="curves" data-runs="{shown}"><noscript>The curves need JavaScript.</noscript></div>'


def alarms(name: str, run: Path) -> str:
    """The alarms of a run, each with the rollouts that show its cause."""
    errors = run / "errors.jsonl"
    listed = alarming.alarms(tail(errors, ERRORS))
    if not listed:
        return '<p class="hint" id="none">Nothing went wrong or looked wrong so far.</p>'
    left_out = []
    if (size := size_of(errors)) > ERRORS:
        left_out.append(f"errors.jsonl: the first {size_text(size - ERRORS)} of {size_text(size)} are left out")
    if len(listed) > ALARMS:
        left_out.append(f"{len(listed) - ALARMS:,} more kinds of warnings are in errors.jsonl")
    budget, decoding = rollouts.page_budget(), Decoding()
    with run_queries.open_index(run) as db:
        shown = [
            _alarm(name, run, alarm, n, db if n < alarming.CARDS else None, budget, decoding)
            for n, alarm in enumerate(listed[:ALARMS])
        ]
    return "".join(shown) + notes(left_out)


def _alarm(
    name: str, run: Path, alarm: alarming.Alarm, number: int, db: sqlite3.Connection | None, budget: Budget, decoding: Decoding
) -> str:
    groups = [] if db is None else search.witnesses(db, run, alarm, budget)
    shown = [rollouts.card(name, run, members, f"a{number}", decoding) for members in groups]
    step = groups[0][0][1]["step"] if groups else None
    return alarming.card(alarm, shown, step, address("/curves", run=name, step=alarm.steps[0]) if alarm.steps else "")


def episodes(name: str, run: Path) -> str:
    """The recorded episodes of every evaluation, newest first."""
    panels, left_out = [], list[str]()
    found = sorted(step_entries(run / "episodes"), key=lambda pair: -pair[0])
    if len(found) > EPISODES:
        left_out.append(f"the episodes of {count(len(found) - EPISODES, 'earlier evaluation')} are left out")
    budget, decoding = rollouts.page_budget(), Decoding()
    for step, entry in found[:EPISODES]:
        rows = watched.rows_of(Path(entry.path), budget, left_out)
        if rows:
            html = watched.panel(rows, rollouts.linked(name, run, f"episodes/{entry.name}", decoding))
            title = f"Evaluation after step {step:,}" if step else "Evaluation before any training"
            panels.append(f"<section><h2>{title}</h2>{html}</section>")
    none = '<p class="hint" id="none">No episodes: this run has no acting tasks, or none was evaluated yet.</p>'
    return ("".join(panels) or none) + notes(left_out)


def compare(name: str, run: Path, other: str, folder: Path | None, steps: tuple[str, str], names: Sequence[str]) -> str:
    """The comparison of two runs on the same held-out prompts. folder: of the other run, None if none is selected. steps: `last`,
    `best` or a step of each run. names: all runs."""
    form = other_run("/compare", name, other, names)
    if folder is None:
        return f'{form}<p class="hint">Select a second run to compare both on the held-out prompts that they have in common.</p>'
    try:
        pair = comparing.pair(run, folder, steps, (name, other))
    except UserError as error:
        return f'{form}<p class="card failure" role="alert">{esc(str(error), 1000)}</p>'
    choose = "".join(
        _steps(path, label, field, measured.step)
        for path, label, field, measured in zip((run, folder), (name, other), ("step", "with-step"), pair.runs, strict=True)
    )
    ask = (
        f'<form class="bar-of-tools" action="/compare" method="get"><input type="hidden" name="run" value="{esc(name)}">'
        f'<input type="hidden" name="with" value="{esc(other)}">{choose}<button type="submit">Show</button></form>'
    )
    figures = table(
        ("Task", f"A: {esc(name, 80)}", f"B: {esc(other, 80)}", "B - A", "p", "B better, worse, equal"),
        [row for task in pair.tasks[:ITEMS] for row in (_task(task), *map(_outcome, task.outcomes[:ITEMS]))],
        "Held-out figures of both runs",
    )
    remarks = [*pair.notes]
    if len(pair.tasks) > ITEMS:
        remarks.insert(0, f"{count(len(pair.tasks) - ITEMS, 'more task')} left out")
    pictures = rollouts.linked(name, run, "rollouts")
    items = "".join(_item(item, pictures, n) for n, item in enumerate(pair.items[:ITEMS]))
    more = (
        f'<p class="hint">{count(len(pair.items) - ITEMS, "more prompt")} with smaller differences.</p>'
        if len(pair.items) > ITEMS
        else ""
    )
    differ = sum(abs(item.difference) > 1e-9 for item in pair.items)
    return (
        f"{form}{ask}{figures}{notes(remarks, len(remarks))}<h2>Prompt by prompt</h2>"
        f'<p class="hint">{count(len(pair.items), "prompt")} in common, largest difference first; the runs differ on {differ:,}. '
        "A run records the messages of the first record.evaluation_prompts prompts of each task.</p>"
        f'<ol class="pairs">{items}</ol>{more}'
    )


def _steps(run: Path, label: str, field: str, chosen: int) -> str:
    options = "".join(f"<option{' selected' if step == chosen else ''}>{step}</option>" for step in item_files(run))
    return f'<label>{esc(label, 80)} at step <select name="{field}">{options}</select></label>'


def _task(task: Comparison) -> list[str]:
    pair = task.paired
    assert pair is not None
    css = "" if pair.p >= 0.05 else "up" if pair.difference > 0 else "down"
    p = f"{pair.p:.3f}" if pair.p >= 0.001 else "&lt; 0.001"
    counts = f"{pair.wins:,}, {pair.losses:,}, {pair.ties:,}"
    name = f"{esc(task.task, 120)}<small>{esc(task.split, 60)}, {esc(task.verifier, 80)}, n = {task.n:,}</small>"
    return [name, *_values(task.values, pair, css), p, counts]


def _outcome(outcome: OutcomeComparison) -> list[str]:
    """A row below that of its task. Without p: there are many of them."""
    assert outcome.paired is not None
    return [f"<small>{esc(plain(outcome.name), 80)}, n = {outcome.n:,}</small>", *_values(outcome.values, outcome.paired), "", ""]


def _values(values: Sequence[tuple[float, float, float]], pair: PairedDifference, css: str = "") -> list[str]:
    """The cells of both runs' means and of their difference. css: of the latter."""
    cells = [f"<b>{number(mean)}</b><small>{_interval(low, high)}</small>" for mean, low, high in values]
    return [*cells, f'<b class="{css}">{pair.difference:+.3f}</b><small>{_interval(pair.low, pair.high)}</small>']


def _interval(low: float, high: float) -> str:
    return f"{number(low)} to {number(high)}" if math.isfinite(low) else "interval unknown"


def _item(item: comparing.PromptDifference, pictures: MediaSource, number: int) -> str:
    """A prompt with both completions as a list item. pictures: the first run's media. number: makes element ids unique."""
    css = "up" if item.difference > 0 else "down" if item.difference < 0 else ""
    sides = "".join(_side(letter, row) for letter, row in (("A", item.first), ("B", item.second)))
    both = f'<b class="{css}">{item.difference:+.2f}</b><div class="halves">{sides}</div>'
    row = {**item.first, "prompt_id": item.id}
    if not item.first.get("messages"):
        return f'<li class="card pair">{cards.prompt(row, pictures)}{both}</li>'
    return f'<li class="card group wide pair">{cards.prompt(row, pictures, f"c{number}")}<div>{both}</div></li>'


def _side(letter: str, row: Mapping[str, Any]) -> str:
    completion = row.get("completion")
    text = cards.written(completion, LONGEST) if isinstance(completion, str) else '<p class="hint">completion not recorded</p>'
    return f"<div><h3>{letter}: {number(float(row['value']))}</h3>{text}</div>"


def settings(name: str, run: Path, other: str, folder: Path | None, names: Sequence[str]) -> str:
    """The resolved run file and its differences from another run's. folder: of the other run, None if none is selected."""
    form = other_run("/settings", name, other, names)
    try:
        text = contents(run / "config.toml", CONFIG).decode(errors="replace")
    except OSError as error:
        text = reason(error)
    difference = ""
    if folder is not None:
        differences = files.differences(*(with_defaults(run_queries.config(path)) for path in (run, folder)))
        rows = [
            [f"<code>{esc(key, 200)}</code>", *(_value(value) for value in pair)]
            for key, pair in islice(differences.items(), DIFFERENCES)
        ]
        difference = "<h2>Differences</h2>" + (
            table(("Key", esc(name, 80), esc(other, 80)), rows, "Settings that differ")
            if rows
            else '<p class="hint">None: both runs have the same settings.</p>'
        )
        if len(differences) > DIFFERENCES:
            difference += notes([f"{len(differences) - DIFFERENCES:,} more differences are left out"])
    return f'{form}{difference}<h2>Settings</h2><pre class="card" tabindex="0">{esc(text, 200_000)}</pre>'


def _value(value: Any) -> str:
    return '<span class="hint">unset</span>' if value is None else f"<code>{esc(value, 400)}</code>"
