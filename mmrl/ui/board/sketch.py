"""A long run at once: curves from some hundred lines of `metrics.jsonl`, taken evenly over the file, while the index grows."""

from __future__ import annotations

import math
import os
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mmrl.run_folder.files import opened
from mmrl.run_folder.validated import parsed
from mmrl.ui.board.columns import Series, number
from mmrl.ui.board.index import READ, read_lines
from mmrl.ui.board.state import tail

LINES = 400
"""Places of a long file that are looked at."""
LONGEST = 1 << 20
"""Bytes that a line may have here."""


def sketch(file: Path) -> list[dict[str, Any]]:
    """Rows of `metrics.jsonl` in order: all of a short file, of a long one some, the last among them."""
    try:
        size = os.stat(file).st_size
        if size <= READ:
            return read_lines(file, 0)[0]
        found = {}
        with opened(file) as read:
            for i in range(LINES):
                read.seek(i * size // LINES)
                if i:
                    read.readline(LONGEST)  # the rest of the line that the place is in
                at, line = read.tell(), read.readline(LONGEST)
                if line.endswith(b"\n") and (row := parsed(line)) is not None:
                    found[at] = row
    except FileNotFoundError:
        return []
    rows = list(found.values())
    known = rows[-1]["step"] if rows else 0
    steps = [row for row in tail(file) if "metrics" in row and row["step"] > known]
    return rows + steps[-1:]


def drawn(rows: Sequence[dict[str, Any]], keys: Sequence[str], low: float, high: float) -> dict[str, Series]:
    """The curves of these rows between two steps."""
    steps = [row for row in rows if "metrics" in row and low <= row["step"] <= high]
    found = {}
    for key in keys:
        values = array("d", [number(row["metrics"].get(key)) for row in steps])
        found[key] = Series(
            step=[row["step"] for row in steps],
            time=[row["time"] for row in steps],
            value=[v if math.isfinite(v) else None for v in values],
        )
    return found
