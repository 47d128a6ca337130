"""Fast approximate curves of a long run before it is indexed: a few hundred rows spread evenly over `metrics.jsonl`."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmrl.run_folder.excerpt import MetricNames, tail
from mmrl.run_folder.files import open_regular_file
from mmrl.run_folder.validated import parsed
from mmrl.ui.board.column_store import Series, figure
from mmrl.ui.board.index import READ, read_lines
from mmrl.ui.board.state import TAIL

LINES = 400
"""Number of places at which a long file is read."""
LONGEST = 1 << 17
"""Maximal length of a line in bytes, thousands of metrics."""


def sample_rows(file: Path) -> list[dict[str, Any]]:
    """Rows of `metrics.jsonl` in order: all rows of a short file, some of a long one with the last step."""
    rows, names = _sampled(file), MetricNames()
    return [{**row, "metrics": names.kept(row["metrics"])} if "metrics" in row else row for row in rows]


def _sampled(file: Path) -> list[dict[str, Any]]:
    try:
        size = os.stat(file).st_size
        if size <= READ:
            return read_lines(file, 0)[0]
        sampled = {}
        with open_regular_file(file) as read:
            for i in range(LINES):
                read.seek(i * size // LINES)
                if i:
                    read.readline(LONGEST)  # skip the rest of the current line
                at, line = read.tell(), read.readline(LONGEST)
                if line.endswith(b"\n") and (row := parsed(line)) is not None:
                    sampled[at] = row
    except FileNotFoundError:
        return []
    rows = list(sampled.values())
    known = rows[-1]["step"] if rows else 0
    steps = [row for row in tail(file, TAIL) if "metrics" in row and row["step"] > known]
    return rows + steps[-1:]


def row_curves(rows: Sequence[dict[str, Any]], keys: Sequence[str], low: float, high: float) -> dict[str, Series]:
    """Key -> its curve from these rows between steps `low` and `high`."""
    steps = [row for row in rows if "metrics" in row and low <= row["step"] <= high]
    curves = {}
    for key in keys:
        values = array("d", [figure(row["metrics"][key]) if key in row["metrics"] else math.nan for row in steps])
        curves[key] = Series(
            step=[row["step"] for row in steps],
            time=[row["time"] for row in steps],
            value=[v if math.isfinite(v) else None for v in values],
            gaps=[i for i, v in enumerate(values) if math.isinf(v)],
        )
    return curves
