"""Two runs beside each other: what each scored on the same held-out prompts, where they differ most first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmrl.evaluation import comparison
from mmrl.evaluation.comparison import Comparison, Measured
from mmrl.run_folder import validated


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """A prompt that both runs answered."""

    task: str
    id: str
    first: Mapping[str, Any]
    """The first run's row of `evaluations/`."""
    second: Mapping[str, Any]

    @property
    def difference(self) -> float:
        """What the second scored above the first."""
        return float(self.second["value"]) - float(self.first["value"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs, each at one evaluation."""

    runs: tuple[Measured, Measured]
    tasks: Sequence[Comparison]
    notes: Sequence[str]
    """What a reader of these figures must know."""
    items: Sequence[Item]
    """Where the two differ most first; of equals in the order of the first's file."""


def pair(first: Path, second: Path, steps: tuple[str, str], names: tuple[str, str]) -> Pair:
    """Raises UserError where nothing can be compared. steps: `last`, `best` or a step of each. names: as they are called."""
    one, two = comparison.measured(first, steps[0], None), comparison.measured(second, steps[1], None)
    runs = replace(one, path=Path(names[0])), replace(two, path=Path(names[1]))
    tasks, missing = comparison.compared(runs)
    notes = comparison.notes(runs, tasks, missing, steps[0] if steps[0] == steps[1] else "")
    known = {task.task for task in tasks}
    first_rows, second_rows = ([validated.row(validated.plain(row)) or row for row in one.rows] for one in runs)
    other = {(row["task"], row["id"]): row for row in second_rows}
    items = [
        Item(task=row["task"], id=row["id"], first=row, second=other[row["task"], row["id"]])
        for row in first_rows
        if row["task"] in known and (row["task"], row["id"]) in other
    ]
    return Pair(runs=runs, tasks=tasks, notes=notes, items=sorted(items, key=lambda one: -abs(one.difference)))
