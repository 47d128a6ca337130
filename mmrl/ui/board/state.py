"""How a run stands: whether it goes, how far it is, how long it will take, what was measured last. Read from the ends of its
files, so that the list of many long runs costs little."""

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
from mmrl.run_folder.files import contents, opened
from mmrl.run_folder.validated import parsed
from mmrl.run_folder.writer import ENDED

TAIL = 1 << 18
"""Bytes at the end of `metrics.jsonl` that are read: hundreds of steps."""
PACE = 30
"""Steps whose seconds say how long the rest will take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """A run in the list."""

    name: str
    state: str
    """`running`, `finished`, `stopped`, `failed`, or `unreadable`."""
    why: str = ""
    """What it failed of, or why it can't be read."""
    started: str = ""
    """When it began, UTC, ISO 8601."""
    mmrl: str = ""
    step: int = 0
    steps: int = 0
    """That it will have; 0 where that isn't known."""
    stage: str = ""
    tasks: tuple[str, ...] = ()
    seconds: float = 0.0
    left: float | None = None
    """Seconds until the last step, at the pace of the newest ones; None where nothing goes on."""
    reward: float | None = None
    evals: tuple[Mapping[str, Any], ...] = ()
    """The newest evaluation of each task."""
    alarms: int = 0
    """Lines of `errors.jsonl` in the part of it that was read."""


@dataclass(slots=True)
class Ends:
    """What the ends of a run's files say."""

    steps: list[dict[str, Any]] = field(default_factory=list)
    evals: dict[str, dict[str, Any]] = field(default_factory=dict)
    errors: list[dict[str, Any]] = field(default_factory=list)


def state(name: str, path: Path) -> State:
    """Of a run folder, of any version and in any condition. Raises FileNotFoundError when it is gone."""
    try:
        config = validated.config(tomllib.loads(contents(path / "config.toml").decode()))
        manifest = json.loads(contents(path / "manifest.json"))
        summary = _summary(path)
        if not isinstance(manifest, dict):
            raise ValueError("manifest.json holds no object")
        manifest, ends = validated.manifest(manifest), _ends(path)
    except FileNotFoundError:
        raise
    except (OSError, ValueError, RecursionError) as error:
        return State(name=name, state="unreadable", why=" ".join(str(error).split())[:300])
    going = is_held(path / ".lock")
    ended = next((row for row in reversed(ends.errors) if row.get("where") == ENDED), None)
    how = "running" if going else "finished" if summary is not None else "failed" if ended else "stopped"
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
        left=_left(ends.steps, wanted - done) if going else None,
        reward=next((v for row in reversed(ends.steps) if (v := row["metrics"].get("reward/mean")) is not None), None),
        evals=tuple({"step": row["step"], **row["eval"]} for row in ends.evals.values()) or _last(summary),
        alarms=len(ends.errors),
    )


def stage_at(plan: Sequence[Mapping[str, Any]], step: int) -> str:
    """The stage of the step after `step`, or the last: `2 of 2: rl, grpo`."""
    ends = 0
    for number, stage in enumerate(plan, 1):
        ends += n if isinstance(n := stage.get("steps"), int) else 0
        if step < ends or number == len(plan):
            names = ", ".join(str(stage[key]) for key in ("kind", "algorithm") if stage.get(key))
            return f"{number} of {len(plan)}: {names}" if len(plan) > 1 else names
    return ""


def is_held(lock: Path) -> bool:
    """Whether a process holds the lock, without touching it: a run that begins at this moment must get it. Where the system
    doesn't tell, a run counts as going for ten minutes after it last wrote."""
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
    """The rows at the end of a JSONL file; those that can't be read are left out."""
    try:
        with opened(file) as read:
            end = read.seek(0, os.SEEK_END)
            read.seek(max(0, end - size))
            data = read.read(size)
    except FileNotFoundError:
        return []
    lines = data[: data.rfind(b"\n") + 1].split(b"\n")[end > size :]
    return [row for line in lines if (row := parsed(line)) is not None]


def _ends(path: Path) -> Ends:
    found = Ends(errors=tail(path / "errors.jsonl"))
    for row in tail(path / "metrics.jsonl"):
        if "metrics" in row:
            found.steps.append(row)
        elif "eval" in row:
            found.evals[f"{row['eval']['task']}\n{row['eval']['split']}"] = row
    return found


def _summary(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(contents(path / "summary.json"))
    except FileNotFoundError:
        return None
    return validated.summary(found if isinstance(found, dict) else {})


def _last(summary: Mapping[str, Any] | None) -> tuple[Mapping[str, Any], ...]:
    """Of a run whose last steps are so many that the evaluation lies before them."""
    last = (summary or {}).get("last") or {}
    return tuple({**row, "task": task, "step": None} for task, row in last.items())


def _left(steps: Sequence[Mapping[str, Any]], left: int) -> float | None:
    some = steps[-PACE - 1 :]
    if len(some) < 2 or some[-1]["step"] <= some[0]["step"]:
        return None
    return max(0, left) * max(0.0, some[-1]["time"] - some[0]["time"]) / (some[-1]["step"] - some[0]["step"])
