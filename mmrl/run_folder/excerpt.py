"""Read a run folder for a page, whoever wrote it: validated, within bounds of memory and time, and with what was left out.

A run that continues, resumes or is compared is read by `mmrl.run_folder.reader`, which leaves nothing out and refuses what is
damaged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrl.run_folder import validated
from mmrl.run_folder.bounded import LINE, Budget, json_object, lines, toml_table
from mmrl.run_folder.files import open_regular_file, reason, size_text
from mmrl.run_folder.reader import RunData, _by_step, _check_run
from mmrl.run_folder.validated import parsed

STEPS, STEP_VALUES = 20_000, 1_000_000
"""Largest number of rows of steps, and of values in them; those of a longer run are spread evenly over it."""
METRICS, NAME = 1000, 300
"""Largest number of metrics of a run, and of characters of a metric's name."""
EVAL_VALUES = 1_000_000
"""Largest number of values in the rows of evaluations."""
ERRORS = 4 << 20
"""Bytes at the end of `errors.jsonl` that are read."""


def read_excerpt(path: str | os.PathLike[str]) -> RunData:
    """The content of a run folder as far as pages show it. Raises UserError if it is no run folder."""
    path = Path(path)
    _check_run(path)
    left_out: list[str] = []
    steps, evals = _metrics(path / "metrics.jsonl", left_out)
    summary = path / "summary.json"
    return RunData(
        path=path,
        config=validated.config(_object(toml_table, path / "config.toml", left_out)),
        manifest=validated.manifest(_object(json_object, path / "manifest.json", left_out)),
        steps=steps.rows,
        evals=evals,
        errors=_errors(path / "errors.jsonl", left_out),
        summary=validated.summary(_object(json_object, summary, left_out)) if os.path.lexists(summary) else None,
        rollout_files=_by_step(path / "rollouts"),
        item_files=_by_step(path / "evaluations"),
        episode_folders=_by_step(path / "episodes"),
        every=steps.every,
        left_out=left_out,
    )


def rows(path: Path, budget: Budget, left_out: list[str]) -> list[dict[str, Any]]:
    """The validated rows of a JSONL file; empty if there is no file. budget: what may be read of this and other files. left_out:
    gets a line for what is not among the rows."""
    found, count, over, broken, end = [], 0, 0, 0, 0
    for at, length, line in _lines(path, left_out):
        if budget.size <= 0:
            break
        count, end = count + 1, at + length
        if line is None:
            budget.size -= length
            over += 1
        elif not budget.take(line):
            over += 1
        elif (row := parsed(line, thorough=True)) is not None:
            found.append(row)
        else:
            broken += _is_whole(line)
    name = f"{path.parent.name}/{path.name}"
    left_out += _lines_left(name, count, over, broken, size_of(path) - end)
    return found


def tail(path: Path, size: int) -> list[dict[str, Any]]:
    """The validated rows in the last `size` bytes of a JSONL file; unreadable ones are left out. Raises OSError if it is no
    regular file."""
    try:
        with open_regular_file(path) as read:
            end = read.seek(0, os.SEEK_END)
            read.seek(max(0, end - size))
            data = read.read(size)
    except FileNotFoundError:
        return []
    whole = data[: data.rfind(b"\n") + 1].split(b"\n")[end > size :]
    return [row for line in whole if (row := parsed(line)) is not None]


def size_of(path: Path) -> int:
    """The size of a file in bytes; 0 if there is none."""
    try:
        return path.stat(follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0


# -- metrics.jsonl --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class MetricNames:
    """The metrics of a run that pages show: its first `METRICS`, of names that are not too long."""

    known: set[str] = field(default_factory=set)
    left: int = 0
    """Largest number of metrics that one row had to leave out."""

    def kept(self, metrics: dict[str, Any]) -> dict[str, Any]:
        """The values of those metrics that are shown."""
        if metrics.keys() <= self.known:
            return metrics
        for key in metrics:
            if len(self.known) == METRICS:
                break
            if len(key) <= NAME:
                self.known.add(key)
        kept = {key: value for key, value in metrics.items() if key in self.known}
        self.left = max(self.left, len(metrics) - len(kept))
        return kept

    @property
    def left_out(self) -> list[str]:
        """A line for what is left out, if anything is."""
        whole = len(self.known) + self.left
        return [f"metrics.jsonl: {self.left:,} of {whole:,} metrics are left out"] if self.left else []


@dataclass(slots=True)
class _Steps:
    """Rows of steps: all, or every second, fourth, ... if they are too many."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    every: int = 1
    seen: int = 0
    values: int = 0

    @property
    def is_due(self) -> bool:
        """Whether the next row is kept."""
        return self.seen % self.every == 0

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.seen += 1
        self.values += _size(row)
        while len(self.rows) > 1 and (len(self.rows) > STEPS or self.values > STEP_VALUES):
            self.rows, self.every = self.rows[::2], 2 * self.every
            self.values = sum(map(_size, self.rows))


def _size(row: dict[str, Any]) -> int:
    return 4 + len(row["metrics"])


def _metrics(path: Path, left_out: list[str]) -> tuple[_Steps, list[dict[str, Any]]]:
    """(rows of steps, the last row of each evaluation)."""
    steps, names, evals = _Steps(), MetricNames(), dict[tuple[Any, ...], dict[str, Any]]()
    budget = Budget(values=EVAL_VALUES)
    last, count, over, broken, end = None, 0, 0, 0, 0
    for at, length, line in _lines(path, left_out):
        count, end = count + 1, at + length
        evaluated = line is not None and b'"eval"' in line
        if line is None or (evaluated and not budget.take(line)):
            over += 1
        elif not evaluated and not steps.is_due:
            steps.seen, last = steps.seen + 1, line
        elif (row := parsed(line, thorough=evaluated)) is None:
            broken += _is_whole(line)
        elif "eval" in row:
            figure = row["eval"]
            evals[row["step"], figure["task"], figure["split"], figure["metric"]] = row
        elif "metrics" in row:
            steps.add(_step(row, names))
            last = None
    if last is not None and (row := parsed(last)) is not None and "metrics" in row:  # the newest values are always shown
        steps.rows.append(_step(row, names))
    if steps.every > 1:
        left_out.append(f"metrics.jsonl: of {steps.seen:,} steps, one in {steps.every:,} is shown")
    left_out += names.left_out
    left_out += _lines_left(path.name, count, over, broken, size_of(path) - end)
    return steps, list(evals.values())


def _step(row: dict[str, Any], names: MetricNames) -> dict[str, Any]:
    return {**{key: row[key] for key in ("step", "stage", "time")}, "metrics": names.kept(row["metrics"])}


# -- parts ----------------------------------------------------------------------------------------------------------------


def _errors(path: Path, left_out: list[str]) -> list[dict[str, Any]]:
    try:
        found = tail(path, ERRORS)
    except OSError as error:
        left_out.append(reason(error))
        return []
    if (size := size_of(path)) > ERRORS:
        left_out.append(f"{path.name}: the first {size_text(size - ERRORS)} of {size_text(size)} are left out")
    return found


def _object(read: Callable[[Path], dict[str, Any]], path: Path, left_out: list[str]) -> dict[str, Any]:
    """The content of a whole file; empty, with a line about it, if it can't be read."""
    try:
        return read(path)
    except (OSError, ValueError) as error:
        left_out.append(reason(error))
        return {}


def _lines(path: Path, left_out: list[str]) -> Iterator[tuple[int, int, bytes | None]]:
    try:
        yield from lines(path)
    except FileNotFoundError:
        return
    except OSError as error:
        left_out.append(reason(error))


def _is_whole(line: bytes) -> bool:
    """Whether a line that can't be read should be one: the last line may still be written."""
    return line.endswith(b"\n") and bool(line.strip())


def _lines_left(name: str, count: int, over: int, broken: int, unread: int) -> Iterable[str]:
    """Lines about what was left out of a file. count: its lines that were looked at. over: too large ones. broken: unreadable
    ones. unread: bytes that were not looked at."""
    if over:
        yield f"{name}: {over:,} of {count:,} lines are left out, being too large (one may have {size_text(LINE)})"
    if broken:
        yield f"{name}: {broken:,} of {count:,} lines can't be read"
    if unread > 0:
        yield f"{name}: {size_text(unread)} at its end are left out"
