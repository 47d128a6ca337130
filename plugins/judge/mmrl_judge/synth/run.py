"""What `mmrl synth` does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mmrl import UserError
from mmrl.api.endpoints.client import ChatEndpoint
from mmrl.api.endpoints.messages import ChatEncoder
from mmrl.api.errors import display_path
from mmrl_judge.answered_tables import check_out, write_rows
from mmrl_judge.synth.models import Models
from mmrl_judge.synth.rules import Limits
from mmrl_judge.synth.table import Columns, Synthesis, open_synthesis


def run(
    table: str,
    out: Path,
    *,
    writer: str,
    writer_url: str,
    solver: str,
    solver_url: str,
    key_variable: str,
    rollouts: int,
    seed_passes: int,
    least: int,
    harder_by: int,
    quality: int,
    attempts: int,
    n: int | None,
    question_column: str,
    answer_column: str,
    only_new: bool,
    cache: Path | None,
    concurrency: int,
    max_calls: int | None,
    max_pixels: int | None,
    overwrite: bool,
) -> Iterator[str]:
    """Write OUT; yields the lines to print. The arguments are the command's options. Raises UserError for ones that can't work,
    and if no question could be asked."""
    check_out(out, overwrite)
    if not least + harder_by <= seed_passes <= rollouts:
        raise UserError(
            f"--seed-passes {seed_passes} must be from --least + --harder-by = {least + harder_by} to --rollouts = {rollouts}: "
            "no harder question could be accepted otherwise"
        )
    shared: dict[str, Any] = dict(key_variable=key_variable, concurrency=concurrency, max_calls=max_calls, cache=cache)
    models = Models(
        writer=ChatEndpoint(model=writer, base_url=writer_url, **shared),
        solver=ChatEndpoint(model=solver, base_url=solver_url, **shared),
        encoder=ChatEncoder(max_pixels=max_pixels),
    )
    limits = Limits(rollouts=rollouts, least=least, harder_by=harder_by, seed=seed_passes, quality=quality, attempts=attempts)
    work = open_synthesis(table, models, limits, Columns(question=question_column, answer=answer_column))
    numbers = range(min(n or len(work.table), len(work.table)))
    written = write_rows(_rows(work, numbers, out, only_new), out)
    yield f"{display_path(out)}: {written} rows, {work.counts['harder']} of them new questions"
    yield from (f"{name}: {count}" for name, count in sorted(work.counts.items()) if name != "harder")
    yield from (f"failed: {why}" for why in work.reasons)


def _rows(work: Synthesis, numbers: range, out: Path, only_new: bool) -> Iterator[Mapping[str, Any]]:
    """The table's own rows, then the new ones."""
    new = [work.new_row(seed, out) for seed in work(numbers)]
    if work.counts["rows: failed"] and work.counts["rows: failed"] + work.counts["rows: with options"] == work.counts["rows"]:
        raise UserError(f"the solver answered no question: {work.reasons[0]}")
    if not only_new:
        yield from (work.old_row(number, out) for number in numbers)
    yield from new
