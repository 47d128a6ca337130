"""Comparison of two runs on the same held-out prompts, sorted by difference."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mmrl.evaluation import comparison
from mmrl.evaluation.comparison import Comparison, EvaluatedRun
from mmrl.run_folder import validated

ITEMS = 32 << 20
"""Largest file of an evaluation in bytes that is compared on a page."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptDifference:
    """A prompt that both runs answered."""

    task: str
    id: str
    first: Mapping[str, Any]
    """The first run's row in `evaluations/`."""
    second: Mapping[str, Any]

    @property
    def difference(self) -> float:
        """The second run's score minus the first's."""
        return float(self.second["value"]) - float(self.first["value"])


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two runs, each at one evaluation."""

    runs: tuple[EvaluatedRun, EvaluatedRun]
    tasks: Sequence[Comparison]
    notes: Sequence[str]
    """Remarks on the figures, one sentence each."""
    items: Sequence[PromptDifference]
    """Prompts by absolute difference, largest first; equal ones in the order of the first run's file."""


def pair(first: Path, second: Path, steps: tuple[str, str], names: tuple[str, str]) -> Pair:
    """Compare two run folders. steps: `last`, `best` or a step of each run. names: their names on the board. Raises UserError if
    they have no evaluation in common, or one is too large for a page."""
    measured = comparison.measured(first, steps[0], None, ITEMS), comparison.measured(second, steps[1], None, ITEMS)
    runs = replace(measured[0], path=Path(names[0])), replace(measured[1], path=Path(names[1]))
    tasks, missing = comparison.compare_runs(runs)
    notes = comparison.notes(runs, tasks, missing, steps[0] if steps[0] == steps[1] else "")
    known = {task.task for task in tasks}
    first_rows, second_rows = ([validated.row(validated.to_storable(row)) or row for row in run.rows] for run in runs)
    other = {(row["task"], row["id"]): row for row in second_rows}
    items = [
        PromptDifference(task=row["task"], id=row["id"], first=row, second=other[row["task"], row["id"]])
        for row in first_rows
        if row["task"] in known and (row["task"], row["id"]) in other
    ]
    return Pair(runs=runs, tasks=tasks, notes=notes, items=sorted(items, key=lambda item: -abs(item.difference)))
