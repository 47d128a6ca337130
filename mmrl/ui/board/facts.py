"""What pages ask of one run: its index, and what stands in for it where the index isn't there yet."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mmrl.run_folder import validated
from mmrl.run_folder.files import contents
from mmrl.ui.board.columns import Columns
from mmrl.ui.board.places import index_file
from mmrl.ui.board.sketch import drawn, sketch
from mmrl.ui.board.state import State
from mmrl.ui.report.charts import arranged, name_of

POINTS = 800
"""Of a curve, where nobody says."""


@contextlib.contextmanager
def reading(run: Path) -> Iterator[sqlite3.Connection | None]:
    """A run's index, to be read; None while there is none."""
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


def fact(db: sqlite3.Connection, name: str) -> Any:
    """One of the index's own figures; 0 where it has none yet."""
    found = db.execute("SELECT value FROM facts WHERE name = ?", (name,)).fetchone()
    return found[0] if found else 0


def is_complete(db: sqlite3.Connection | None, run: Path) -> bool:
    """Whether the index has nearly all of the run's figures, so that nothing needs to stand in for it."""
    if db is None:
        return False
    try:
        return bool(fact(db, "at") >= 0.95 * (run / "metrics.jsonl").stat().st_size)
    except FileNotFoundError:
        return True


def curves(run: Path, state: State) -> dict[str, Any]:
    """What a page of curves is made of: {"run", "keys", "evals"}."""
    with reading(run) as db:
        if db is not None and is_complete(db, run):
            keys = Columns(db).keys()
            evals = [json.loads(row) for (row,) in db.execute("SELECT row FROM evals ORDER BY step")]
        else:
            rows = sketch(run / "metrics.jsonl")
            keys = sorted({key for row in rows for key in row.get("metrics", ())})
            evals = [row for row in rows if "eval" in row]
    about = {"name": state.name, "state": state.state, "steps": state.step, "planned": state.steps, "stages": stages(run)}
    return {"run": about, "keys": keys, "evals": validated.plain([{"step": row["step"], **row["eval"]} for row in evals])}


def sections(keys: Sequence[str]) -> list[dict[str, Any]]:
    """The charts that these metrics fill."""
    found = []
    for title, charts in arranged(keys):
        cards = []
        for chart, own in charts:
            about = {
                key: value for key, value in asdict(chart).items() if key in ("title", "hint", "unit", "zero", "spiky", "stacked")
            }
            names = [name_of(key, len(own) > 1) for key in own]
            cards.append({"id": own[0].replace("/", "-"), **about, "keys": own, "names": names})
        found.append({"title": title, "charts": cards})
    return found


def series(run: Path, keys: Sequence[str], low: float, high: float, points: int) -> dict[str, Any]:
    """The curves of these metrics between two steps."""
    with reading(run) as db:
        if db is not None and is_complete(db, run):
            found = Columns(db).series(keys, fact(db, "rows"), low, high, points)
            whole = True
        else:
            found = drawn(sketch(run / "metrics.jsonl"), keys, low, high)
            whole = False
    last = max((one.step[-1] for one in found.values() if one.step), default=0)
    return {"last": last, "whole": whole, "series": {key: one.as_json() for key, one in found.items()}}


def stages(run: Path) -> list[dict[str, Any]]:
    """The stages that the run file plans, each with its first and last step."""
    found, done = [], 0
    for stage in config(run).get("stages") or ():
        steps = stage.get("steps")
        if isinstance(steps, int):
            about = {"kind": str(stage.get("kind", "")), "algorithm": str(stage.get("algorithm") or "")}
            found.append({**about, "first": done + 1, "last": done + steps})
            done += steps
    return found


def config(run: Path) -> Mapping[str, Any]:
    """The resolved run file; empty where it can't be read."""
    try:
        return validated.config(tomllib.loads(contents(run / "config.toml").decode()))
    except (OSError, ValueError, RecursionError):
        return {}
