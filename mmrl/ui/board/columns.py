"""Columns of numbers on disk: one value for each step and metric, read again as a curve of so many points."""

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
"""Rows whose values of one key are stored together."""
STEP, TIME = "#step", "#time"
"""Columns beside the metrics: the step, and seconds since the run began."""


@dataclass(slots=True)
class Series:
    """A curve. Of several rows in one point there are the mean, the smallest and the largest; a gap is None."""

    step: list[int] = field(default_factory=list)
    time: list[float | None] = field(default_factory=list)
    value: list[float | None] = field(default_factory=list)
    low: list[float | None] = field(default_factory=list)
    high: list[float | None] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        whole = {"step": self.step, "time": self.time, "value": self.value}
        return {**whole, "low": self.low, "high": self.high} if self.low else whole


class Columns:
    """The columns in an index. Rows are numbered from 0 in the order of the file; the last chunk is rewritten as it grows."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db

    @staticmethod
    def create(db: sqlite3.Connection) -> None:
        db.execute("CREATE TABLE columns (key TEXT, chunk INTEGER, data BLOB, PRIMARY KEY (key, chunk)) WITHOUT ROWID")

    def append(self, first: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows of `{"step", "time", "metrics"}`, of which the first is number `first`."""
        for start in range(first - first % CHUNK, first + len(rows), CHUNK):
            some = rows[max(0, start - first) : max(0, start + CHUNK - first)]
            at = max(start, first) % CHUNK
            self._append(start // CHUNK, at, some)

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
            column.extend(array("d", [math.nan]) * (at - len(column)))  # of a metric that wasn't there before
            column.extend(values)
            self.db.execute("INSERT OR REPLACE INTO columns VALUES (?, ?, ?)", (key, chunk, column.tobytes()))

    def keys(self) -> list[str]:
        """The metrics, sorted."""
        return [key for (key,) in self.db.execute("SELECT DISTINCT key FROM columns ORDER BY key") if not key.startswith("#")]

    def column(self, key: str, length: int, first: int = 0) -> array[float]:
        """Rows `first` to `length` of a column; NaN where it has none."""
        found = array("d", [math.nan]) * (length - first)
        start = first // CHUNK
        for chunk, data in self.db.execute("SELECT chunk, data FROM columns WHERE key = ? AND chunk >= ?", (key, start)):
            values = array("d", data)
            at = chunk * CHUNK - first
            if at < 0:
                values, at = values[-at:], 0
            values = values[: max(0, len(found) - at)]
            found[at : at + len(values)] = values
        return found

    def series(self, keys: Iterable[str], length: int, low: float, high: float, points: int) -> dict[str, Series]:
        """The curves between two steps, of at most about so many points. length: rows that there are."""
        steps = self.column(STEP, length)
        first, last = _between(steps, low, high)
        times = self.column(TIME, last, first)
        edges: list[int] = []
        if last - first > 2 * points:  # the last row stands alone: its values are what is measured now
            edges = [first + round(i * (last - 1 - first) / (points - 1)) for i in range(points)] + [last]
        found = {}
        for key in keys:
            values = self.column(key, last, first)
            found[key] = _reduced(steps, times, values, first, edges) if edges else _whole(steps, times, values, first)
        return found


def _flat(row: Mapping[str, Any]) -> Iterable[tuple[str, float]]:
    yield STEP, float(row["step"])
    yield TIME, number(row.get("time"))
    for key, value in row["metrics"].items():
        if not key.startswith("#"):
            yield key, number(value)


def number(value: Any) -> float:
    """A float; NaN for what is none."""
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _between(steps: array[float], low: float, high: float) -> tuple[int, int]:
    """The rows from the first at or after `low` to the last at or before `high`, and one more on each side, so that a curve
    leaves the picture at its edge."""
    first, last = bisect.bisect_left(steps, low), bisect.bisect_right(steps, high)
    return max(0, first - 1), min(len(steps), last + 1)


def _whole(steps: array[float], times: array[float], values: array[float], first: int) -> Series:
    found = Series()
    for i, value in enumerate(values):
        found.step.append(int(steps[first + i]))
        found.time.append(_or_none(times[i]))
        found.value.append(_or_none(value))
    return found


def _reduced(steps: array[float], times: array[float], values: array[float], first: int, edges: Sequence[int]) -> Series:
    found = Series()
    for start, stop in pairwise(edges):
        some = values[start - first : stop - first]
        if not math.isfinite(sum(some)):  # one that is not finite makes the sum so
            some = array("d", [v for v in some if math.isfinite(v)])
        found.step.append(int(steps[stop - 1]))
        found.time.append(_or_none(times[stop - 1 - first]))
        found.value.append(sum(some) / len(some) if some else None)
        found.low.append(min(some) if some else None)
        found.high.append(max(some) if some else None)
    return found


def _or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
