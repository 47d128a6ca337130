"""What is on a run's pages beside its rollouts: curves, alarms, episodes, the comparison with another run, the settings."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError
from mmrl.run_folder import episodes as recorded
from mmrl.run_folder import files, validated
from mmrl.run_folder.files import contents
from mmrl.run_folder.reader import item_files, step_entries
from mmrl.ui.board import compare as comparing
from mmrl.ui.board import facts, rollouts, search
from mmrl.ui.board.pages import address, other_run, table
from mmrl.ui.board.state import State, tail
from mmrl.ui.report import alarms as alarming
from mmrl.ui.report import cards
from mmrl.ui.report import episodes as watched
from mmrl.ui.report.sources import Pictures
from mmrl.ui.report.svg import number
from mmrl.ui.report.text import count, esc

ITEMS = 200
"""Prompts of a comparison that are listed."""
LONGEST = 1500
"""Characters of what a run said to one of them."""
ERRORS = 4 << 20
"""Bytes of `errors.jsonl` that are looked at, from its end."""


def curves(state: State, runs: Sequence[str], others: Sequence[str]) -> str:
    """The frame that the curves are drawn into."""
    chosen = "".join(f'<input type="hidden" name="run" value="{esc(run)}">' for run in runs)
    options = "".join(f"<option>{esc(one)}</option>" for one in others)
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
    """What fired, when, and the rollouts that show why."""
    found = alarming.alarms(tail(run / "errors.jsonl", ERRORS))
    if not found:
        return '<p class="hint" id="none">Nothing went wrong or looked wrong so far.</p>'
    with facts.reading(run) as db:
        return "".join(_alarm(name, run, alarm, n, db) for n, alarm in enumerate(found))


def _alarm(name: str, run: Path, alarm: alarming.Alarm, number: int, db: sqlite3.Connection | None) -> str:
    groups = [] if db is None else search.witnesses(db, run, alarm)
    shown = [rollouts.card(name, run, members, place=f"a{number}") for members in groups]
    step = groups[0][0][1]["step"] if groups else None
    return alarming.card(alarm, shown, step, address("/curves", run=name, step=alarm.steps[0]) if alarm.steps else "")


def episodes(name: str, run: Path) -> str:
    """The episodes of every evaluation that kept some, the newest first."""
    panels = []
    for step, entry in sorted(step_entries(run / "episodes"), key=lambda one: -one[0]):
        folder = Path(entry.path)
        rows = [row for row in validated.rows(folder / recorded.ROWS) if isinstance(row.get("outcome"), dict)]
        if rows:
            html = watched.panel(rows, rollouts.linked(name, run, f"episodes/{entry.name}"))
            title = f"Evaluation after step {step:,}" if step else "Evaluation before any training"
            panels.append(f"<section><h2>{title}</h2>{html}</section>")
    return (
        "".join(panels)
        or '<p class="hint" id="none">This run kept no episodes: its tasks don\'t act, or none was evaluated yet.</p>'
    )


def compare(name: str, run: Path, other: str, folder: Path | None, steps: tuple[str, str], names: Sequence[str]) -> str:
    """Two runs on the same held-out prompts."""
    form = other_run("/compare", name, other, names)
    if folder is None:
        said = "Choose the run to put beside this one: both are compared on the held-out prompts that both answered."
        return f'{form}<p class="hint">{said}</p>'
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
        ("Task", f"A: {esc(name, 80)}", f"B: {esc(other, 80)}", "B - A", "p", "B better, worse, alike"),
        [_task(one) for one in pair.tasks],
        "Held-out figures of both runs",
    )
    notes = f'<ul class="notes">{"".join(f"<li>{esc(note, 600)}</li>" for note in pair.notes)}</ul>' if pair.notes else ""
    pictures = rollouts.linked(name, run, "rollouts")
    items = "".join(_item(item, pictures, n) for n, item in enumerate(pair.items[:ITEMS]))
    more = (
        f'<p class="hint">{count(len(pair.items) - ITEMS, "more prompt")}, on which they differ less.</p>'
        if len(pair.items) > ITEMS
        else ""
    )
    differ = sum(abs(item.difference) > 1e-9 for item in pair.items)
    return (
        f"{form}{ask}{figures}{notes}<h2>Prompt by prompt</h2>"
        f'<p class="hint">{count(len(pair.items), "prompt")} in common; the runs differ on {differ:,}, which come first. '
        "What was asked was kept of the first record.items of each task.</p>"
        f'<ol class="pairs">{items}</ol>{more}'
    )


def _steps(run: Path, label: str, field: str, chosen: int) -> str:
    options = "".join(f"<option{' selected' if step == chosen else ''}>{step}</option>" for step in item_files(run))
    return f'<label>{esc(label, 80)} at step <select name="{field}">{options}</select></label>'


def _task(one: comparing.Comparison) -> list[str]:
    pair = one.paired
    assert pair is not None
    cells = [f"<b>{number(mean)}</b><small>{number(low)} to {number(high)}</small>" for mean, low, high in one.values]
    css = "" if pair.p >= 0.05 else "up" if pair.difference > 0 else "down"
    gap = f'<b class="{css}">{pair.difference:+.3f}</b><small>{number(pair.low)} to {number(pair.high)}</small>'
    p = f"{pair.p:.3f}" if pair.p >= 0.001 else "&lt; 0.001"
    counts = f"{pair.wins:,}, {pair.losses:,}, {pair.ties:,}"
    return [
        f"{esc(one.task, 120)}<small>{esc(one.split, 60)}, {esc(one.verifier, 80)}, n = {one.n:,}</small>",
        *cells,
        gap,
        p,
        counts,
    ]


def _item(item: comparing.Item, pictures: Pictures, number: int) -> str:
    """A prompt with what both said. pictures: of the first run, which kept the prompt or didn't."""
    css = "up" if item.difference > 0 else "down" if item.difference < 0 else ""
    sides = "".join(_side(letter, row) for letter, row in (("A", item.first), ("B", item.second)))
    said = f'<b class="{css}">{item.difference:+.2f}</b><div class="halves">{sides}</div>'
    row = {**item.first, "prompt_id": item.id}
    if not item.first.get("messages"):
        return f'<li class="card pair">{cards.prompt(row, pictures)}{said}</li>'
    return f'<li class="card group wide pair">{cards.prompt(row, pictures, f"c{number}")}<div>{said}</div></li>'


def _side(letter: str, row: Mapping[str, Any]) -> str:
    said = row.get("completion")
    kept = cards.written(said, LONGEST) if isinstance(said, str) else '<p class="hint">What it said was not kept.</p>'
    return f"<div><h3>{letter}: {number(float(row['value']))}</h3>{kept}</div>"


def settings(name: str, run: Path, other: str, folder: Path | None, names: Sequence[str]) -> str:
    """The resolved run file, and in what another run's differs."""
    form = other_run("/settings", name, other, names)
    try:
        text = contents(run / "config.toml").decode(errors="replace")
    except FileNotFoundError:
        text = ""
    difference = ""
    if folder is not None:
        found = files.differences(facts.config(run), facts.config(folder))
        rows = [[f"<code>{esc(key, 200)}</code>", *(_value(value) for value in pair)] for key, pair in found.items()]
        difference = (
            "<h2>What differs</h2>" + table(("Key", esc(name, 80), esc(other, 80)), rows, "Settings that differ")
            if rows
            else '<h2>What differs</h2><p class="hint">Nothing: both have the same settings.</p>'
        )
    return f'{form}{difference}<h2>Settings</h2><pre class="card" tabindex="0">{esc(text, 200_000)}</pre>'


def _value(value: Any) -> str:
    return '<span class="hint">unset</span>' if value is None else f"<code>{esc(value, 400)}</code>"
