"""Rules for tasks: rows are reproducible and don't use global random generators."""

from __future__ import annotations

from mmrl.api.types import Prompt
from mmrl.testing.checks import CheckFailed
from mmrl.testing.other_process import rows_in_subprocess
from mmrl.testing.sample import fingerprint, other_random_states, random_states
from mmrl.testing.task_subject import TaskSubject

OWN_GENERATOR = 'random.Random(f"{split} {seed}") or a numpy.random.default_rng(...) of its own'
"""What a task draws from. The split is part of it: by the seed alone, all splits would have the same rows."""


def same_seed_gives_same_rows(subject: TaskSubject) -> None:
    """The same split and seed give the same rows: from the same task again, and from a new task, with other states of the global
    random generators."""
    for split, rows in subject.rows.items():
        first = [fingerprint(p) for p in rows]
        task = subject.make()
        subject.take(split, task)
        for seed, whose in ((1, "a new task"), (2, "the same task again")):
            with other_random_states(seed):
                again = subject.take(split, task if seed == 2 else None)
            _compare(
                split, rows, first, [fingerprint(p) for p in again], whose, f"draw from {OWN_GENERATOR}, made inside prompts()"
            )


def same_in_another_process(subject: TaskSubject) -> str | None:
    """Another process, with another hash seed, gives the same rows."""
    if not subject.registered:
        return "skipped: another process does not find this task by its id"
    theirs = rows_in_subprocess(subject.spec.id, subject.options, list(subject.rows), subject.n)
    try:
        same_seed_gives_same_rows(subject)
        cure = "the order of a set or of a folder's files is not fixed: sort it"
    except CheckFailed:
        cure = "they differ in one process already: correct that first"
    for split, rows in subject.rows.items():
        _compare(split, rows, [fingerprint(p) for p in rows], theirs[split], "another process", cure)
    return None


def global_random_state_is_untouched(subject: TaskSubject) -> None:
    """Making rows neither draws from nor seeds the global random generators."""
    before = random_states()
    for split in subject.rows:
        subject.take(split)
    for library, state in random_states().items():
        if library in before and before[library] != state:
            raise CheckFailed(f"prompts() changed the global generator of {library}: draw from {OWN_GENERATOR}")


def _compare(split: str, rows: list[Prompt], first: list[str], again: list[str], whose: str, cure: str) -> None:
    if len(first) != len(again):
        raise CheckFailed(f"split {split!r} gave {len(first)} rows, then {len(again)} from {whose}: {cure}")
    for row, a, b in zip(rows, first, again, strict=True):
        if a != b:
            raise CheckFailed(f"row {row.id!r} of {split!r} differs from {whose}: {cure}")
