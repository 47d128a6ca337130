"""State of a run: whether it is running, its progress, remaining time, last reward and evaluations. Only the ends of its files
are read, so that a list of many long runs is fast."""

from __future__ import annotations

import contextlib
import json
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrl.run_folder import validated
from mmrl.run_folder.files import contents, open_regular_file
from mmrl.run_folder.validated import parsed
from mmrl.run_folder.writer import ENDED

TAIL = 1 << 18
"""Bytes at the end of `metrics.jsonl` that are read, enough for hundreds of steps."""
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
    """The last evaluation of each task."""
    alarms: int = 0
    """Number of lines in the end of `errors.jsonl` that was read."""


@dataclass(slots=True)
class Ends:
    """Rows at the ends of a run's files."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    evals: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)


def state(name: str, path: Path) -> State:
    """The state of a run folder of any version, damaged ones included. Raises FileNotFoundError if it does not exist."""
    try:
        config = validated.config(tomllib.loads(contents(path / "config.toml").decode()))
        manifest = json.loads(contents(path / "manifest.json"))
        summary = _summary(path)
        if not isinstance(manifest, dict):
            raise ValueError("manifest.json is not a JSON object")
        manifest, ends = validated.manifest(manifest), _ends(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        return State(name=name, state="unreadable", why=" ".join(str(error).split())[:300])
    running = is_held(path / ".lock")
    ended = next((row for row in reversed(ends.errors) if row.get("where") == ENDED), None)
    how = "running" if running else "finished" if summary is not None else "failed" if ended else "stopped"
    plan = config["stages"]
    last = ends.steps[-1] if ends.steps else {}
    done = last.get("step") or 0
    wanted = sum(n for stage in plan if isinstance(n := stage.get("steps"), int))
    return State(
        name=name,
        state=how,
        why=str(ended.get("what"))[:500] if ended and how == "failed" else "",
        started=str(manifest.get("started") or ""),
        mmrl=str(manifest.get("mmrl") or ""),
        step=done,
        steps=wanted,
        stage=stage_at(plan, done),
        tasks=tuple(str(task.get("name") or task.get("id")) for task in config["tasks"]),
        seconds=last.get("time") or 0.0,
        left=_left(ends.steps, wanted - done) if running else None,
        reward=next((v for row in reversed(ends.steps) if (v := row["metrics"].get("reward/mean")) is not None), None),
        evals=tuple({"step": row["step"], **row["eval"]} for row in ends.evals.values()) or _last(summary),
        alarms=len(ends.errors),
    )


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
    """Whether a process holds a lock file. The lock itself is not tried, since a starting run must get it. On systems without
    /proc/locks a run counts as running for ten minutes after it last wrote metrics."""
    try:
        inode = os.stat(lock).st_ino
    except OSError:
        return False
    try:
        with open("/proc/locks", encoding="ascii") as file:
            return any(line.split()[-3].endswith(f":{inode}") for line in file if " FLOCK " in line and "->" not in line)
    except OSError:
        return _written(lock.with_name("metrics.jsonl"))


def _written(file: Path) -> bool:
    import time

    with contextlib.suppress(OSError):
        return time.time() - file.stat().st_mtime < 600
    return False


def tail(file: Path, size: int = TAIL) -> list[dict[str, Any]]:
    """The rows in the last `size` bytes of a JSONL file; unreadable ones are left out."""
    try:
        with open_regular_file(file) as read:
            end = read.seek(0, os.SEEK_END)
            read.seek(max(0, end - size))
            data = read.read(size)
    except FileNotFoundError:
        return []
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[end > size :]
    return [row for line in lines if (row := parsed(line)) is not None]


def _ends(path: Path) -> Ends:
    ends = Ends(errors=tail(path / "errors.jsonl"))
    for row in tail(path / "metrics.jsonl"):
        if "metrics" in row:
            ends.steps.append(row)
        elif "eval" in row:
            ends.evals[f"{row['eval']['task']}\n{row['eval']['split']}"] = row
    return ends


def _summary(path: Path) -> dict[str, Any] | None:
    try:
        summary = json.loads(contents(path / "summary.json"))
    except FileNotFoundError:
        return None
    return validated.summary(summary if isinstance(summary, dict) else {})


def _last(summary: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], ...]:
    """The summary's last evaluations, for a run whose evaluation lies before the part of metrics.jsonl that was read."""
    last = (summary or {}).get("last") or {}
    return tuple({**row, "task": task, "step": None} for task, row in last.items())


def _left(steps: Sequence[Mapping[str, Any]], left: int) -> float | None:
    last = steps[-PACE - 1 :]
    if len(last) < 2 or last[-1]["step"] <= last[0]["step"]:
        return None
    return max(0, left) * max(0.0, last[-1]["time"] - last[0]["time"]) / (last[-1]["step"] - last[0]["step"])
