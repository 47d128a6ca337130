"""State of a run: whether it is running, its progress, remaining time, last reward and evaluations. Only the ends of its files
are read, so that a list of many long runs is fast."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrl.api.errors import shorten
from mmrl.run_folder import validated
from mmrl.run_folder.bounded import LINE, json_object, toml_table
from mmrl.run_folder.excerpt import size_of, tail
from mmrl.run_folder.files import contents, reason
from mmrl.run_folder.writer import ENDED
from mmrl.ui.board.run_paths import NotFound, NotShown, RunPaths

TAIL = 1 << 18
"""Bytes at the end of `metrics.jsonl` that are read, enough for hundreds of steps."""
TASKS, TEXT = 64, 200
"""Largest number of tasks and of evaluations of a state, and of characters of their names."""
KEPT = 4096
"""Runs whose states are remembered until a file of theirs changes."""
PACE = 30
"""Number of last steps whose mean duration predicts the remaining time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """The state of a run in the list."""

    name: str
    state: str
    """`running`, `finished`, `stopped`, `failed`, or `unreadable`."""
    why: str = ""
    """Error of a failed or unreadable run."""
    started: str = ""
    """Start time, UTC, ISO 8601."""
    mmrl: str = ""
    """Version of mmrl that wrote it."""
    step: int = 0
    """Last finished step."""
    steps: int = 0
    """Planned steps; 0 if unknown."""
    stage: str = ""
    """Stage of the next step in words."""
    tasks: tuple[str, ...] = ()
    seconds: float = 0.0
    """Seconds since the run's start, at its last step."""
    left: float | None = None
    """Predicted seconds until the last step; None if the run is not running."""
    reward: float | None = None
    """Last mean reward."""
    evals: tuple[Mapping[str, Any], ...] = ()
    """The last evaluation of each task, of the first tasks."""
    more_evals: int = 0
    """Number of tasks whose evaluation is not among them."""
    alarms: int = 0
    """Number of lines in the end of `errors.jsonl` that was read."""


@dataclass(slots=True)
class Ends:
    """Rows at the ends of a run's files."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    evals: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)


def state(name: str, path: Path) -> State:
    """The state of a run folder of any version, damaged ones included. It is remembered until a file changes. Raises
    FileNotFoundError if the folder does not exist."""
    files = ("config.toml", "manifest.json", "metrics.jsonl", "errors.jsonl", "summary.json")
    return _state(name, path, is_held(path / ".lock"), tuple(_stamp(path / file) for file in files))


def state_in_list(name: str, places: RunPaths) -> State | None:
    """The state of a run for the list, which shows what is wrong with a run in its row; None if there is no such run."""
    try:
        return state(name, places.run(name))
    except NotShown as error:
        return unreadable(name, str(error))
    except (FileNotFoundError, NotFound):
        return None
    except Exception as error:  # noqa: BLE001  one run must not break the list; its row shows the error
        traceback.print_exc()
        return unreadable(name, f"a bug in the board: {type(error).__name__}: {shorten(error)}")


def unreadable(name: str, why: str) -> State:
    """The state of a run that cannot be shown. why: the reason."""
    return State(name=name, state="unreadable", why=shorten(why, 300))


def _stamp(file: Path) -> tuple[int, ...]:
    """Numbers that change when a file changes; empty if there is none."""
    try:
        about = file.stat(follow_symlinks=False)
    except OSError:
        return ()
    return about.st_ino, about.st_size, about.st_mtime_ns, about.st_ctime_ns


@functools.lru_cache(maxsize=KEPT)
def _state(name: str, path: Path, running: bool, stamps: tuple[tuple[int, ...], ...]) -> State:
    try:
        config = validated.config(toml_table(path / "config.toml"))
        manifest = validated.manifest(json_object(path / "manifest.json"))
        summary, ends = _summary(path), _ends(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        return unreadable(name, reason(error))
    ended = next((row for row in reversed(ends.errors) if row.get("where") == ENDED), None)
    how = "running" if running else "finished" if summary is not None else "failed" if ended else "stopped"
    plan = config["stages"]
    last = ends.steps[-1] if ends.steps else {}
    done = last.get("step") or 0
    wanted = sum(n for stage in plan if isinstance(n := stage.get("steps"), int))
    evals = [{"step": row["step"], **row["eval"]} for row in ends.evals.values()] or _last(summary)
    return State(
        name=name,
        state=how,
        why=str(ended.get("what"))[:500] if ended and how == "failed" else "",
        started=manifest["started"][:TEXT],
        mmrl=manifest["mmrl"][:TEXT],
        step=done,
        steps=wanted,
        stage=stage_at(plan, done)[:TEXT],
        tasks=tuple(str(task.get("name") or task.get("id"))[:TEXT] for task in config["tasks"][:TASKS]),
        seconds=last.get("time") or 0.0,
        left=_left(ends.steps, wanted - done) if running else None,
        reward=next((v for row in reversed(ends.steps) if (v := row["metrics"].get("reward/mean")) is not None), None),
        evals=tuple(map(_figure, evals[:TASKS])),
        more_evals=max(0, len(evals) - TASKS),
        alarms=len(ends.errors),
    )


def _figure(found: Mapping[str, Any]) -> dict[str, Any]:
    """What the list shows of an evaluation."""
    texts = {key: found[key][:TEXT] for key in ("task", "split", "metric")}
    return {**texts, **{key: found.get(key) for key in ("step", "value", "low", "high", "n")}}


def stage_at(plan: Sequence[Mapping[str, Any]], step: int) -> str:
    """The stage of the step after `step`, or the last stage, in words: `2 of 2: rl, grpo`."""
    ends = 0
    for number, stage in enumerate(plan, 1):
        ends += n if isinstance(n := stage.get("steps"), int) else 0
        if step < ends or number == len(plan):
            names = ", ".join(str(stage[key]) for key in ("kind", "algorithm") if stage.get(key))
            return f"{number} of {len(plan)}: {names}" if len(plan) > 1 else names
    return ""


def is_held(lock: Path) -> bool:
    """Whether a process holds a lock file. The lock itself is not tried, since a starting run must get it. Where its locks can't
    be seen, on another machine or a system without /proc/locks, a run counts as running for ten minutes after it last wrote
    metrics."""
    try:
        inode = os.stat(lock).st_ino
    except OSError:
        return False
    try:
        with open("/proc/locks", encoding="ascii") as file:
            if any(line.split()[-3].endswith(f":{inode}") for line in file if " FLOCK " in line and "->" not in line):
                return True
        place = contents(lock, LINE)
    except OSError:
        return _written(lock.with_name("metrics.jsonl"))
    return place not in (b"", platform.node().encode()) and _written(lock.with_name("metrics.jsonl"))


def _written(file: Path) -> bool:
    import time

    with contextlib.suppress(OSError):
        return time.time() - file.stat().st_mtime < 600
    return False


def _ends(path: Path) -> Ends:
    ends = Ends(errors=tail(path / "errors.jsonl", TAIL))
    metrics = path / "metrics.jsonl"
    rows = tail(metrics, TAIL)
    if not any("metrics" in row for row in rows) and size_of(metrics) > TAIL:  # a longer line, or an evaluation of many tasks
        rows = tail(metrics, LINE)
    for row in rows:
        if "metrics" in row:
            ends.steps.append(row)
        elif "eval" in row:
            ends.evals[f"{row['eval']['task']}\n{row['eval']['split']}"] = row
    return ends


def _summary(path: Path) -> dict[str, Any] | None:
    try:
        return validated.summary(json_object(path / "summary.json"))
    except FileNotFoundError:
        return None


def _last(summary: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """The summary's last evaluations, for a run whose evaluation lies before the part of metrics.jsonl that was read."""
    last = (summary or {}).get("last") or {}
    return [{**row, "task": task, "step": None} for task, row in last.items()]


def _left(steps: Sequence[Mapping[str, Any]], left: int) -> float | None:
    last = steps[-PACE - 1 :]
    if len(last) < 2 or last[-1]["step"] <= last[0]["step"]:
        return None
    return max(0, left) * max(0.0, last[-1]["time"] - last[0]["time"]) / (last[-1]["step"] - last[0]["step"])
