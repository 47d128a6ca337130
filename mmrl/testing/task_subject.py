"""A task under test, and its rows: what the rules for tasks are checked with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mmrl.api.interfaces import Task
from mmrl.api.specs import TaskSpec
from mmrl.api.types import Prompt
from mmrl.testing.sample import prompt_hash, sample_rows

OVERLAP_ROWS = 1000
"""Rows of each split that are compared with those of the others."""
OVERLAP_S = 10.0
"""Seconds after which no more of them are made; `n` of each split are in any case."""


@dataclass
class TaskSubject:
    """A task under test, and its rows."""

    spec: TaskSpec
    make: Callable[[], Task]
    """A fresh task, as a run would build it."""
    n: int
    options: Mapping[str, Any]
    registered: bool
    """Another process finds the task by its id."""
    rows: dict[str, list[Prompt]] = field(default_factory=dict)
    """Split -> at most n rows, filled by the first check."""
    broken: list[str] = field(default_factory=list)
    """What is said of each of the n rows of a split that can't be used; the checks go on without them."""
    seconds: float = 0.0
    """What a row took to make, on average."""
    compared: dict[str, list[tuple[str, str]]] = field(default_factory=dict)
    """Split -> (id, hash of what is shown) of the rows that are compared with each other, filled by `seen`."""

    @property
    def many(self) -> int:
        """Rows of each split that are compared with each other: `OVERLAP_ROWS`, or as many as `OVERLAP_S` allow; n at least."""
        affordable = OVERLAP_S / max(self.seconds * len(self.rows), OVERLAP_S / OVERLAP_ROWS)
        return max(self.n, min(OVERLAP_ROWS, int(affordable)))

    def take(self, split: str, task: Task | None = None) -> list[Prompt]:
        """The n rows of a split, without broken ones."""
        return sample_rows(task or self.make(), split, self.n, broken=[])

    def seen(self) -> dict[str, list[tuple[str, str]]]:
        """Split -> (id, hash of what is shown) of `many` rows."""
        for split in self.rows if not self.compared else ():
            rows = sample_rows(self.make(), split, self.many, broken=[]) if self.many > self.n else self.rows[split]
            self.compared[split] = [(row.id, prompt_hash(row)) for row in rows]
        return self.compared

    def few(self) -> str | None:
        """A note where rows take too long for `OVERLAP_ROWS` of them."""
        if self.many == OVERLAP_ROWS or all(len(rows) < self.many for rows in self.seen().values()):
            return None
        return f"{self.many} rows of each split are compared, since making one takes {self.seconds:.2g} s"

    def all_rows(self) -> list[tuple[str, Prompt]]:
        return [(split, p) for split, rows in self.rows.items() for p in rows]
