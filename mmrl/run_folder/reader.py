"""Read a run folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError, is_finite
from mmrl.run_folder.bounded import count_values, json_object, toml_table
from mmrl.run_folder.files import contents

_STEP = re.compile(r"step-(\d{6,12})(?:\.jsonl)?")
ENTRIES = 200_000
"""Largest number of entries of a folder that are looked at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """The content of a run folder, as plain data."""

    path: Path
    config: dict[str, Any]
    """The resolved run file."""
    manifest: dict[str, Any]
    """Versions, plugins, git, machine, seed."""
    steps: list[dict[str, Any]]
    """`{"step", "stage", "time", "metrics"}`, in order."""
    evals: list[dict[str, Any]]
    """`{"step", "stage", "time", "eval"}`, in order."""
    errors: list[dict[str, Any]]
    """`{"step", "where", "what"}`, in order."""
    summary: dict[str, Any] | None
    """`summary.json`; None while the run goes on, or if it was killed."""
    rollout_files: list[Path]
    """`rollouts/step-*.jsonl`, in order; `read_jsonl` reads one."""
    item_files: list[Path]
    """`evaluations/step-*.jsonl`, in order; `read_items` reads one."""
    episode_folders: list[Path]
    """`episodes/step-*`, in order; `read_jsonl` reads the `episodes.jsonl` of one."""
    every: int = 1
    """Of how many steps one is in `steps`: 1 except in an excerpt of a long run."""
    left_out: list[str] = field(default_factory=list)
    """What an excerpt does not have, one line each; pages add what they leave out."""


def read_run(path: str | os.PathLike[str]) -> RunData:
    """Read a run folder, also of a run that still goes on. Raises UserError if it is no run folder or is damaged."""
    path = Path(path)
    _check_run(path)
    rows = read_jsonl(path / "metrics.jsonl")
    # a run that was killed between an evaluation and the next checkpoint evaluates again: the later row counts
    evals = {(row["step"], *(row["eval"][key] for key in ("task", "split", "metric"))): row for row in rows if "eval" in row}
    summary = path / "summary.json"
    return RunData(
        path=path,
        config=_read_toml(path / "config.toml"),
        manifest=_read_json(path / "manifest.json"),
        steps=[row for row in rows if "metrics" in row],
        evals=list(evals.values()),
        errors=read_jsonl(path / "errors.jsonl"),
        summary=_read_json(summary) if summary.exists() else None,
        rollout_files=_by_step(path / "rollouts"),
        item_files=_by_step(path / "evaluations"),
        episode_folders=_by_step(path / "episodes"),
    )


def read_jsonl(path: Path, most: int = 0) -> list[dict[str, Any]]:
    """The rows of a JSONL file; empty if there is no file. A last line that was truncated by a kill is left out. most: largest
    size of the file in bytes, which has one value in 32 bytes at most; 0 for any. Raises UserError for a damaged or larger
    file."""
    try:
        data = contents(path, most)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if most and count_values(data) > most // 32:
        raise UserError(f"cannot read {path}: it has more than {most // 32:,} values")
    lines = data.split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    rows = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            if number < len(lines):
                raise UserError(f"{path} line {number} is not JSON: the file is damaged; remove that line") from error
            break
        if not is_row(row):
            raise UserError(f"{path} line {number} is not a row of a run: the file is damaged; remove that line")
        rows.append(row)
    return rows


def item_files(path: Path) -> dict[int, Path]:
    """Step -> its file of `evaluations/` with the scores of prompts, the earliest first. Raises UserError if the folder isn't a
    run folder."""
    _check_run(path)
    return {step_of(file): file for file in _by_step(path / "evaluations")}


def read_items(path: Path, most: int = 0) -> list[dict[str, Any]]:
    """The rows of a file of `evaluations/`: `{"step", "task", "split", "verifier", "id", "value", "values"}`, `set` in a task
    with sets, and `outcome` in one that acts. most: see `read_jsonl`."""
    rows = read_jsonl(path, most)
    for number, row in enumerate(rows, 1):
        named = all(isinstance(row.get(key), str) for key in ("task", "split", "verifier", "id"))
        named = named and isinstance(row.get("set"), int | None)
        if not named or not isinstance(row.get("value", ""), int | float | None) or not isinstance(row.get("values"), list):
            raise UserError(f"{path} line {number} is not an item of an evaluation: the file is damaged; remove that line")
        outcome = row.get("outcome", {})
        if not isinstance(outcome, dict) or not all(is_finite(v) and abs(v) <= 1e30 for v in outcome.values()):
            raise UserError(f"{path} line {number}: its outcome must have a number for each name: remove that line")
        if any(v is not None and not (is_finite(v) and abs(v) <= 1e30) for v in (row.get("value"), *row["values"])):
            raise UserError(f"{path} line {number}: {row['value']!r:.40} is no valid score: remove that line")
    return rows


def is_row(row: Any) -> bool:
    """Whether a value has the shape of a row: a step, and the types of the fields that readers use."""
    if not isinstance(row, dict) or not isinstance(row.get("step", ""), int | None):
        return False
    if not all(isinstance(row.get(key, {}), dict) for key in ("metrics", "eval", "score")):
        return False
    if not isinstance(row.get("messages", []), list):
        return False
    timed = "metrics" in row or "eval" in row
    figure = row.get("eval", {})
    whole = "eval" not in row or {"value", "low", "high", "n"} <= figure.keys()
    named = "eval" not in row or all(isinstance(figure.get(key), str) for key in ("task", "split", "metric"))
    return whole and named and (not timed or (isinstance(time := row.get("time"), int | float) and abs(time) < 1e15))


def step_of(path: Path) -> int:
    """The step in the name of a file of rollouts or items, or of a checkpoint."""
    match = _STEP.fullmatch(path.name)
    if not match:
        raise ValueError(f"{path.name} is not named step-000123")
    return int(match[1])


def step_entries(folder: Path) -> Iterator[tuple[int, os.DirEntry[str]]]:
    """(step, entry) of the first `ENTRIES` entries of a folder that are named by a step, unordered; empty if there is no
    folder."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in islice(entries, ENTRIES):
            if match := _STEP.fullmatch(entry.name):
                yield int(match[1]), entry


def _by_step(folder: Path) -> list[Path]:
    return [Path(entry.path) for _, entry in sorted(step_entries(folder), key=lambda one: one[0])]


def _check_run(path: Path) -> None:
    if not path.is_dir():
        raise UserError(f"{path} is not a folder: give the folder of a run, such as runs/demo")
    missing = [name for name in ("config.toml", "manifest.json") if not (path / name).is_file()]
    if missing:
        raise UserError(f"{path} is not a run folder: it has no {' and no '.join(missing)}: give one, such as runs/demo")


def is_run(path: Path) -> bool:
    """Whether a folder is a run folder and can be read."""
    try:
        return all((path / name).is_file() for name in ("config.toml", "manifest.json")) and not path.is_symlink()
    except OSError:  # no permission, or a path that is too long
        return False


def is_unstarted(path: Path) -> bool:
    """Whether the run in a folder ended before its first figure, so that nothing is lost with it."""
    figures = path / "metrics.jsonl"
    if not is_run(path) or any((path / "checkpoints").glob("step-*")):
        return False
    return not figures.exists() or figures.stat().st_size == 0


OWN_NAMES = frozenset(
    (
        *("config.toml", "manifest.json", "metrics.jsonl", "errors.jsonl", "summary.json", "report.html", ".lock"),
        *("rollouts", "evaluations", "episodes", "checkpoints", "tensorboard", "wandb", "mlflow", "trackio"),
    )
)
"""Names in a run folder that a run writes."""
_LEFT = re.compile(r"\.(.+?)(?:\.[0-9a-f]{16})?\.tmp")
"""A temporary file that a kill has left, see `mmrl.run_folder.files.replace_file`; its group is the name of the file."""


def check_removable(path: Path) -> None:
    """Raise UserError if a run folder has anything that no run wrote, which `--overwrite` would remove too."""
    others = sorted(entry.name for entry in path.iterdir() if _LEFT.sub(r"\1", entry.name) not in OWN_NAMES)
    if others or "mmrl" not in _read_json(path / "manifest.json"):
        what = f"{others[0]}, which no run wrote" if others else "a manifest.json that no run wrote"
        raise UserError(f"--overwrite would remove {path} with {what}: move it away, or choose another name for the run")


def _read_json(path: Path) -> dict[str, Any]:
    try:
        return json_object(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return toml_table(path)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
