"""Columns of metrics in the index: one value per step and metric, read as curves of a given number of points."""

from __future__ import annotations

import bisect
import math
import sqlite3
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

CHUNK = 1024
"""Rows per stored chunk of a column."""
STEP, TIME = "#step", "#time"
"""Keys of the columns of steps and of seconds since the run's start."""


@dataclass(slots=True)
class Series:
    """A curve. If a point combines several rows, `value` is their mean, `low` and `high` are the extremes; else `low` and `high`
    are empty. None is a point without a value: the line goes on over it, unless `gaps` names its index."""

    step: list[int] = field(default_factory=list)
    time: list[float | None] = field(default_factory=list)
    value: list[float | None] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)
    gaps: list[int] = field(default_factory=list)
    """Points whose rows have the metric, with a value that is not a finite number."""

    def as_json(self) -> dict[str, Any]:
        whole = {"step": self.step, "time": self.time, "value": self.value}
        whole |= {"low": self.low, "high": self.high} if self.low else {}
        return {**whole, "gaps": self.gaps} if self.gaps else whole


class Columns:
    """The columns of an index. Rows are numbered from 0 in file order; the last chunk is rewritten as it grows."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    @staticmethod
    def create(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE columns (key TEXT, chunk INTEGER, data BLOB, PRIMARY KEY (key, chunk)) WITHOUT ROWID")

    def append(self, first: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Append rows `{"step", "time", "metrics"}`. first: number of the first of them."""
        for start in range(first - first % CHUNK, first + len(rows), CHUNK):
            part = rows[max(0, start - first) : max(0, start + CHUNK - first)]
            at = max(start, first) % CHUNK
            self._append(start // CHUNK, at, part)

    def _append(self, chunk: int, at: int, rows: Sequence[Mapping[str, Any]]) -> None:
        held: dict[str, array[float]] = {}
        if at:
            for key, data in self.db.execute("SELECT key, data FROM columns WHERE chunk = ?", (chunk,)):
                held[key] = array("d", data)
        new: dict[str, array[float]] = {}
        for i, row in enumerate(rows):
            for key, value in _flat(row):
                column = new.get(key)
                if column is None:
                    column = new[key] = array("d", [math.nan]) * len(rows)
                column[i] = value
        for key, values in new.items():
            column = held.get(key, array("d"))
            column.extend(array("d", [math.nan]) * (at - len(column)))  # a metric without earlier values
            column.extend(values)
            self.db.execute("INSERT OR REPLACE INTO columns VALUES (?, ?, ?)", (key, chunk, column.tobytes()))

    def keys(self) -> list[str]:
        """The metrics, sorted."""
        return [key for (key,) in self.db.execute("SELECT DISTINCT key FROM columns ORDER BY key") if not key.startswith("#")]

    def column(self, key: str, length: int, first: int = 0) -> array[float]:
        """Values of rows `first` up to `length` (exclusive); NaN where a row has none, infinity for one that is not a number."""
        column = array("d", [math.nan]) * (length - first)
        start = first // CHUNK
        for chunk, data in self.db.execute("SELECT chunk, data FROM columns WHERE key = ? AND chunk >= ?", (key, start)):
            values = array("d", data)
            at = chunk * CHUNK - first
            if at < 0:
                values, at = values[-at:], 0
            values = values[: max(0, len(column) - at)]
            column[at : at + len(values)] = values
        return column

    def series(self, keys: Iterable[str], length: int, low: float, high: float, points: int) -> dict[str, Series]:
        """Key -> its curve between steps `low` and `high`, in about `points` points at most. length: number of rows."""
        steps = self.column(STEP, length)
        first, last = _between(steps, low, high)
        times = self.column(TIME, last, first)
        edges: list[int] = []
        if last - first > 2 * points:  # the last row is a point of its own, which shows the latest values
            edges = [first + round(i * (last - 1 - first) / (points - 1)) for i in range(points)] + [last]
        curves = {}
        for key in keys:
            values = self.column(key, last, first)
            curves[key] = _reduced(steps, times, values, first, edges) if edges else _whole(steps, times, values, first)
        return curves


def _flat(row: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    yield STEP, float(row["step"])
    yield TIME, number(row.get("time"))
    for key, value in row["metrics"].items():
        if not key.startswith("#"):
            yield key, figure(value)


def figure(value: Any) -> float:
    """The value of a metric that a row has; infinity if it is not a finite number."""
    return found if math.isfinite(found := number(value)) else math.inf


def number(value: Any) -> float:
    """The value as a float; NaN if it is not a number."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _between(steps: array[float], low: float, high: float) -> tuple[int, int]:
    """(first, last) row numbers, last exclusive, of the steps from `low` to `high` and one more on each side, so that a curve
    reaches the edges of the chart."""
    first, last = bisect.bisect_left(steps, low), bisect.bisect_right(steps, high)
    return max(0, first - 1), min(len(steps), last + 1)


def _whole(steps: array[float], times: array[float], values: array[float], first: int) -> Series:
    series = Series()
    for i, value in enumerate(values):
        series.step.append(int(steps[first + i]))
        series.time.append(_or_none(times[i]))
        series.value.append(_or_none(value))
        if math.isinf(value):
            series.gaps.append(i)
    return series


def _reduced(steps: array[float], times: array[float], values: array[float], first: int, edges: Sequence[int]) -> Series:
    series = Series()
    for i, (start, stop) in enumerate(pairwise(edges)):
        bucket = values[start - first : stop - first]
        if not math.isfinite(sum(bucket)):  # one non-finite value makes the sum non-finite
            finite = array("d", [v for v in bucket if math.isfinite(v)])
            if not finite and math.inf in bucket:
                series.gaps.append(i)
            bucket = finite
        series.step.append(int(steps[stop - 1]))
        series.time.append(_or_none(times[stop - 1 - first]))
        series.value.append(sum(bucket) / len(bucket) if bucket else None)
        series.low.append(min(bucket) if bucket else None)
        series.high.append(max(bucket) if bucket else None)
    return series


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
