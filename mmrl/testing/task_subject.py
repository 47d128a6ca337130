"""A task under test, and its rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmrl.api.interfaces import Task
from mmrl.api.specs import TaskSpec
from mmrl.api.types import Prompt
from mmrl.testing.sample import prompt_hash, sample_rows

OVERLAP_ROWS = 1000
"""Largest number of rows of each split that are compared with the other splits."""
OVERLAP_S = 10.0
"""Time limit in seconds for making these rows; at least `n` rows of each split are made."""


@dataclass
class TaskSubject:
    """A task under test, and its rows."""

    spec: TaskSpec
    make: Callable[[], Task]
    """Makes a new task, as a run does."""
    n: int
    options: Mapping[str, Any]
    registered: bool
    """Whether another process finds the task by its id."""
    rows: dict[str, list[Prompt]] = field(default_factory=dict)
    """Split -> at most n rows, filled by the first check."""
    broken: list[str] = field(default_factory=list)
    """Messages of the rows that can't be used; the checks go on without them."""
    seconds: float = 0.0
    """Average time to make a row."""
    compared: dict[str, list[tuple[str, str, int]]] = field(default_factory=dict)
    """Split -> (id, hash of the messages, seed) of the rows that are compared with other splits, filled by `seen`."""

    @property
    def many(self) -> int:
        """Number of rows of each split that are compared: at most `OVERLAP_ROWS` or as many as `OVERLAP_S` allow, at least n."""
        affordable = OVERLAP_S / max(self.seconds * len(self.rows), OVERLAP_S / OVERLAP_ROWS)
        return max(self.n, min(OVERLAP_ROWS, int(affordable)))

    def take(self, split: str, task: Task | None = None) -> list[Prompt]:
        """n rows of a split, without broken ones."""
        return sample_rows(task or self.make(), split, self.n, broken=[])

    def seen(self) -> dict[str, list[tuple[str, str, int]]]:
        """Split -> (id, hash of the messages, seed) of `many` rows. The seed is 0 unless the task has environments, which begin
        by it."""
        for split in self.rows if not self.compared else ():
            task = self.make()
            rows = sample_rows(task, split, self.many, broken=[]) if self.many > self.n else self.rows[split]
            begins = type(task).environment is not Task.environment
            self.compared[split] = [(row.id, prompt_hash(row), row.seed if begins else 0) for row in rows]
        return self.compared

    def few(self) -> str | None:
        """A note if fewer than `OVERLAP_ROWS` rows are compared because making them takes too long."""
        if self.many == OVERLAP_ROWS or all(len(rows) < self.many for rows in self.seen().values()):
            return None
        return f"{self.many} rows of each split are compared, since making one takes {self.seconds:.2g} s"

    def all_rows(self) -> list[tuple[str, Prompt]]:
        return [(split, p) for split, rows in self.rows.items() for p in rows]
