"""Rewrites the questions of a table, and writes the accepted ones with where they come from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.errors import display_path
from mmrl.api.media.images import load_image
from mmrl.api.tasks.tables import IMAGE_COLUMNS, DataTable, read_table
from mmrl_judge.answered_tables import pictures_of, placed_row
from mmrl_judge.synth import rules
from mmrl_judge.synth.models import Failed, Models, Posed
from mmrl_judge.synth.rules import Evolution, Limits

AT_ONCE = 32
"""Questions that are rewritten side by side."""


@dataclass(kw_only=True)
class Columns:
    """Where a table has its questions."""

    question: str = "question"
    answer: str = "answer"
    options: str = "options"


@dataclass(kw_only=True)
class Seed:
    """A row of the table, and what came of it."""

    number: int
    row: Mapping[str, Any]
    column: str
    """Its column of pictures."""
    pictures: tuple[Any, ...]
    evolution: Evolution
    answer: str

    def posed(self, question: str) -> Posed:
        return Posed(question, self.answer, self.pictures)


@dataclass(kw_only=True)
class Synthesis:
    """The run of `mmrl synth`."""

    table: DataTable
    path: str
    models: Models
    limits: Limits
    columns: Columns = field(default_factory=Columns)
    counts: Counter[str] = field(default_factory=Counter)
    """What became of rows and of attempts, by the words that are printed."""
    reasons: list[str] = field(default_factory=list)
    """Why models failed, each once, at most 3."""

    def __call__(self, numbers: Sequence[int]) -> Iterator[Seed]:
        """Rewrite these rows; yields those with an accepted question, in their order."""
        for start in range(0, len(numbers), AT_ONCE):
            seeds = self._seeds(numbers[start : start + AT_ONCE])
            for attempt in range(1, self.limits.attempts + 1):
                self._attempt(seeds, attempt)
            for seed in seeds:
                self.counts["harder"] += seed.evolution.best is not None
            yield from (seed for seed in seeds if seed.evolution.best is not None)

    def _seeds(self, numbers: Sequence[int]) -> list[Seed]:
        """The rows whose questions are easy enough to be rewritten."""
        read = [seed for number in numbers if (seed := self._read(number)) is not None]
        found = self.models.passes([s.posed(s.evolution.question) for s in read], self.limits.rollouts)
        for seed, passes in zip(read, found, strict=True):
            if isinstance(passes, Failed):
                self._failed(passes, "rows: failed")
                continue
            seed.evolution.passes = passes
            self.counts["rows: not easy enough"] += not seed.evolution.is_seed
        return [seed for seed in read if seed.evolution.is_seed]

    def _read(self, number: int) -> Seed | None:
        """A row; None if it is a choice, whose options a rewritten question wouldn't fit. Raises UserError for one without a
        question, answer or picture."""
        row, columns = self.table[number], self.columns
        self.counts["rows"] += 1
        if row.get(columns.options):
            self.counts["rows: with options"] += 1
            return None
        question, answer = row.get(columns.question), row.get(columns.answer)
        column, pictures = pictures_of(self.path, row)
        if not isinstance(question, str) or not question.strip() or answer in (None, "") or column is None:
            raise UserError(
                f"{self.table.location(number)} must have a question in {columns.question!r}, an answer in {columns.answer!r} "
                f"and a picture in {IMAGE_COLUMNS[0]!r}; it has {', '.join(map(str, row))[:200]}"
            )
        for one in pictures:
            load_image(one, name=display_path(one) if isinstance(one, str) else self.table.location(number))
        own = Evolution(question=question.replace("<image>", "").strip(), passes=0, limits=self.limits)
        return Seed(number=number, row=row, column=column, pictures=tuple(pictures), evolution=own, answer=str(answer))

    def _attempt(self, seeds: Sequence[Seed], attempt: int) -> None:
        """One rewriting of each question. Where a model fails the attempt is lost, and the next one begins as this did."""
        olds = [seed.posed(seed.evolution.question) for seed in seeds]
        written: list[tuple[Seed, Posed, Posed]] = []
        for seed, old, reply in zip(seeds, olds, self.models.rewrite(olds, attempt), strict=True):
            question = reply if isinstance(reply, Failed) else rules.new_question(reply)
            if isinstance(question, Failed):
                self._failed(question)
            elif not question:
                self.counts["attempts: no question"] += 1
            else:
                written.append((seed, old, seed.posed(question)))
        asked: list[tuple[Seed, Posed, int]] = []
        grades = self.models.grade([(old, new) for _, old, new in written])
        for (seed, _, new), reply in zip(written, grades, strict=True):
            if isinstance(reply, Failed):
                self._failed(reply)
            elif (points := rules.quality(reply)) < self.limits.quality:
                self._take(seed, attempt, new, points, None)
            else:
                asked.append((seed, new, points))
        found = self.models.passes([new for _, new, _ in asked], self.limits.rollouts)
        for (seed, new, points), passes in zip(asked, found, strict=True):
            if isinstance(passes, Failed):
                self._failed(passes)
            else:
                self._take(seed, attempt, new, points, passes)

    def _take(self, seed: Seed, attempt: int, new: Posed, points: int, passes: int | None) -> None:
        taken = seed.evolution.take(attempt, new.question, points, passes)
        self.counts[f"attempts: {taken.verdict}"] += 1

    def _failed(self, failed: Failed, what: str = "attempts: failed") -> None:
        self.counts[what] += 1
        if failed.why not in self.reasons and len(self.reasons) < 3:
            self.reasons.append(failed.why)

    # -- what is written ----------------------------------------------------------------------------------------------------

    def new_row(self, seed: Seed, out: Path) -> dict[str, Any]:
        """The row of an accepted question: the old one with another question and id, and where it comes from."""
        best, row = seed.evolution.best, self.old_row(seed.number, out)
        assert best is not None
        row |= {self.columns.question: best.question}
        row["id"] = f"{seed.row.get('id', seed.number)}-harder"
        row["synth"] = {
            "from": seed.row.get("id", seed.number),
            "question": seed.row[self.columns.question],
            "passes": seed.evolution.passes,
            "harder_passes": best.passes,
            "rollouts": self.limits.rollouts,
            "quality": best.quality,
            "attempt": best.number,
            "writer": self.models.writer.model,
            "solver": self.models.solver.model,
        }
        return row

    def old_row(self, number: int, out: Path) -> dict[str, Any]:
        return placed_row(self.table, self.path, number, out)


def open_synthesis(path: str, models: Models, limits: Limits, columns: Columns) -> Synthesis:
    """Open the table. Raises UserError if it can't be read or has no rows."""
    table = read_table(path)
    if not len(table):
        raise UserError(f"{display_path(path)} has no rows: give a table of questions")
    return Synthesis(table=table, path=path, models=models, limits=limits, columns=columns)
