"""Data of one run for the board's pages: from its index, or from a sample of its files while the index is incomplete."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmrl.run_folder import validated
from mmrl.run_folder.bounded import toml_table
from mmrl.run_folder.excerpt import METRICS, size_of
from mmrl.ui.board.column_store import Columns
from mmrl.ui.board.run_paths import index_file
from mmrl.ui.board.sampled_curves import row_curves, sample_rows
from mmrl.ui.board.state import State
from mmrl.ui.report.charts import arranged, name_of

EVALS = 20_000
"""Largest number of evaluations of a run that are drawn: the newest ones."""
POINTS = 800
"""Default number of points of a curve."""


@contextlib.contextmanager
def open_index(run: Path) -> Iterator[sqlite3.Connection | None]:
    """A run's index, opened for reading; None if it does not exist yet."""
    db = None
    try:
        with contextlib.suppress(sqlite3.OperationalError):
            opened = sqlite3.connect(f"file:{index_file(run)}?mode=ro", uri=True, timeout=5)
            opened.execute("SELECT 1 FROM facts").fetchone()
            db = opened
        yield db
    finally:
        if db:
            db.close()


def index_value(db: sqlite3.Connection, name: str) -> Any:
    """A value of the index's table `facts`; 0 if it is not set yet."""
    row = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return row[0] if row else 0


def is_complete(db: sqlite3.Connection | None, run: Path) -> bool:
    """Whether the index has at least 95% of the run's metrics; below that, pages show a sample (`sample_rows`)."""
    if db is None:
        return False
    return bool(index_value(db, "full") or index_value(db, "at") >= 0.95 * size_of(run / "metrics.jsonl"))


def curves(run: Path, state: State) -> dict[str, Any]:
    """Data of a run's curves: {"run": about it, "keys": its metrics, "evals": its evaluations, "left_out": lines about what it
    does not have}."""
    with open_index(run) as db:
        if db is not None and is_complete(db, run):
            keys, left_out = Columns(db).keys(), json.loads(index_value(db, "left_out") or "[]")
            newest = db.execute("SELECT row FROM evals ORDER BY step DESC LIMIT ?", (EVALS,)).fetchall()
            evals = [json.loads(row) for (row,) in reversed(newest)]
        else:
            rows = sample_rows(run / "metrics.jsonl")
            keys, left_out = sorted({key for row in rows for key in row.get("metrics", ())})[:METRICS], []
            evals = [row for row in rows if "eval" in row]
    about = {"name": state.name, "state": state.state, "steps": state.step, "planned": state.steps, "stages": stages(run)}
    figures = validated.to_storable([{"step": row["step"], **row["eval"]} for row in evals])
    return {"run": about, "keys": keys, "evals": figures, "left_out": left_out}


def sections(keys: Sequence[str]) -> list[dict[str, Any]]:
    """Sections of charts for these metrics, as JSON data."""
    sections = []
    for title, charts in arranged(keys):
        cards = []
        for chart, metrics in charts:
            about = {
                key: value for key, value in asdict(chart).items() if key in ("title", "hint", "unit", "zero", "spiky", "stacked")
            }
            names = [name_of(chart, key, len(metrics) > 1) for key in metrics]
            cards.append({"id": metrics[0].replace("/", "-"), **about, "keys": metrics, "names": names})
        sections.append({"title": title, "charts": cards})
    return sections


def series(run: Path, keys: Sequence[str], low: float, high: float, points: int) -> dict[str, Any]:
    """The curves of these metrics between steps `low` and `high`, in about `points` points at most, as JSON data:
    {"last": the last step, "whole": whether no rows are missing, "series": metric -> curve}."""
    with open_index(run) as db:
        if db is not None and is_complete(db, run):
            curves = Columns(db).series(keys, index_value(db, "rows"), low, high, points)
            whole = True
        else:
            curves = row_curves(sample_rows(run / "metrics.jsonl"), keys, low, high)
            whole = False
    last = max((curve.step[-1] for curve in curves.values() if curve.step), default=0)
    return {"last": last, "whole": whole, "series": {key: curve.as_json() for key, curve in curves.items()}}


def stages(run: Path) -> list[dict[str, Any]]:
    """The stages of the run file, each with its first and last step."""
    planned, done = [], 0
    for stage in config(run).get("stages") or ():
        steps = stage.get("steps")
        if isinstance(steps, int):
            about = {"kind": str(stage.get("kind", "")), "algorithm": str(stage.get("algorithm") or "")}
            planned.append({**about, "first": done + 1, "last": done + steps})
            done += steps
    return planned


def config(run: Path) -> Mapping[str, Any]:
    """The resolved run file; empty if it is unreadable."""
    try:
        return validated.config(toml_table(run / "config.toml"))
    except (OSError, ValueError):
        return {}
