"""Compare runs on the held-out prompts that all of them answered, read from their run folders. No model is loaded."""

from __future__ import annotations

import math
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

from mmrl.api.errors import UserError
from mmrl.api.specs import VerifierSpec
from mmrl.evaluation.paired_tests import PairedDifference, paired_difference
from mmrl.evaluation.results import confidence_interval, known_sets, outcome_interval, range_of
from mmrl.run_folder.excerpt import read_excerpt
from mmrl.run_folder.figures import metric_name
from mmrl.run_folder.reader import item_files, read_items
from mmrl.run_folder.writer import MAY_CHANGE, RunFolder, with_defaults

NAMES = ("name", "seed")
"""Keys of a run file in which the runs of one group may differ, besides those that don't change what is learned."""
SHOWN = 3
"""Maximal number of differing keys to name."""
KINDS = ("kind", "id")
"""Keys that identify an entry of a list."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluatedRun:
    """A run with one of its evaluations."""

    path: Path
    config: Mapping[str, Any]
    """The resolved run file."""
    step: int
    rows: list[dict[str, Any]]
    """The evaluation's rows that could be scored."""

    @property
    def name(self) -> str:
        return str(self.path)

    @property
    def seed(self) -> int:
        return self.config.get("seed", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedGroup:
    """Runs of one configuration with different seeds."""

    name: str
    runs: tuple[int, ...]
    """Indices of the runs."""
    seeds: tuple[int, ...]
    mean: float
    lowest: float
    highest: float
    low: float
    """Bounds of the mean's 95% interval, with Student's t over the runs; infinite for equal graded means."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeComparison:
    """The comparison of what came of episodes, on the compared prompts of which every run has it."""

    name: str
    """Such as a part of the simulator."""
    n: int
    values: tuple[tuple[float, float, float], ...]
    """(mean, bounds of its 95% interval) of each run, see `outcome_interval`."""
    paired: PairedDifference | None
    """See `Comparison.paired`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The comparison of one task, on the prompts that have a score in every run."""

    task: str
    split: str
    verifier: str
    n: int
    values: tuple[tuple[float, float, float], ...]
    """(mean, bounds of its 95% interval over the prompts) of each run; infinite for one graded prompt, or equal graded values,
    unless the verifier's range is known."""
    paired: PairedDifference | None
    """The second run's values minus the first's; None unless there are two runs."""
    groups: tuple[SeedGroup, ...]
    """Groups of runs; empty for two runs."""
    outcomes: tuple[OutcomeComparison, ...] = ()
    """Of a task that acts, without the one that the verifier's values are."""


# -- reading ------------------------------------------------------------------------------------------------------------


def measured(path: Path, which: str, split: str | None, most: int = 0) -> EvaluatedRun:
    """A run with one of its evaluations. which: `last`, `best` or a step. split: only rows of this split. most: largest file of
    an evaluation in bytes, 0 for any. Raises UserError if there is no such evaluation or it has no scores."""
    files, config = item_files(path), RunFolder(path).config
    if not files:
        raise UserError(
            f"{path} has no evaluations/: evaluate.num_prompts was 0, none is finished, or an older mmrl wrote it: train again"
        )
    step = (
        max(files)
        if which == "last"
        else _best_step(path)
        if which == "best"
        else int(which)
        if re.fullmatch("[0-9]+", which)
        else None
    )
    if step is None or step not in files:
        what = "no best evaluation" if which == "best" else f"no evaluation {which!r}"
        raise UserError(f"{path} has {what} to compare: give last, best or one of {', '.join(map(str, files))}")
    rows = [row for row in read_items(files[step], most) if row["value"] is not None]
    splits = sorted({row["split"] for row in rows})
    if rows and split and split not in splits:
        raise UserError(f"{path} was not evaluated on split {split!r}, only on {', '.join(splits)}: leave --split out")
    if not rows:
        raise UserError(f"{path}: nothing was scored at step {step}: choose another --step")
    return EvaluatedRun(path=path, config=config, step=step, rows=[row for row in rows if split in (None, row["split"])])


def _best_step(path: Path) -> int | None:
    """The step with the best evaluation, by the mean over tasks; the first among equals."""
    data = read_excerpt(path)
    if data.summary:
        best = data.summary.get("best_step")
        return best if isinstance(best, int) else None
    figures: dict[int, list[float]] = {}
    for row in data.evals:
        figures.setdefault(row["step"], []).append(-math.inf if row["eval"]["value"] is None else row["eval"]["value"])
    return max(sorted(figures), key=lambda step: statistics.fmean(figures[step])) if figures else None


# -- comparing ----------------------------------------------------------------------------------------------------------


def compare_runs(measured: Sequence[EvaluatedRun]) -> tuple[list[Comparison], list[str]]:
    """(comparisons of the tasks that all runs have, names of the tasks that only some have). Raises UserError if nothing can be
    compared."""
    tables = [_by_task(run) for run in measured]
    tasks = [task for task in tables[0] if all(task in table for table in tables)]
    if not tasks:
        each = "; ".join(f"{run.name} has {', '.join(table)}" for run, table in zip(measured, tables, strict=True))
        raise UserError(f"the runs have no task in common: {each}: compare runs of the same tasks")
    missing = sorted({task for table in tables for task in table} - set(tasks))
    return [_task(measured, task, [table[task] for table in tables]) for task in tasks], missing


def _by_task(run: EvaluatedRun) -> dict[str, dict[str, dict[str, Any]]]:
    """Task -> id -> row."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in run.rows:
        items = found.setdefault(row["task"], {})
        if row["id"] in items:
            raise UserError(
                f"{run.name}: several prompts of task {row['task']!r} have the id {row['id']!r}, so they can't be matched: "
                "give each its own Prompt.id"
            )
        items[row["id"]] = row
    return found


def _task(measured: Sequence[EvaluatedRun], task: str, tables: Sequence[dict[str, dict[str, Any]]]) -> Comparison:
    for what in ("split", "verifier"):
        kinds = [", ".join(sorted({row[what] for row in table.values()})) for table in tables]
        if len(set(kinds)) > 1:
            other = next(i for i, kind in enumerate(kinds) if kind != kinds[0])
            raise UserError(
                f"task {task!r} was evaluated with {what} {kinds[0]!r} by {measured[0].name} and {kinds[other]!r} by "
                f"{measured[other].name}: figures of different {what}s can't be compared; evaluate both with the same"
            )
    ids = [id for id in tables[0] if all(id in table for table in tables)]
    if not ids:
        raise UserError(
            f"task {task!r}: the runs have no prompt in common: compare runs with the same task options, split and "
            "evaluate.num_prompts"
        )
    values = [[float(table[id]["value"]) for id in ids] for table in tables]
    sets = _sets(tables, ids)
    first = tables[0][ids[0]]
    every = [v for of_run in values for v in of_run]
    binary = all(v in (0.0, 1.0, None) for table in tables for id in ids for v in table[id]["values"])
    binary = binary and min(every) >= 0.0 and max(every) <= 1.0  # a damaged row may say otherwise
    spec = _spec(first["verifier"])
    binary = binary and (spec is None or metric_name(spec) != spec.id)  # what else it gives may not have occurred
    bounds = (0.0, 1.0) if binary else range_of(spec, every) if spec else (-math.inf, math.inf)
    return Comparison(
        task=task,
        split=first["split"],
        verifier=first["verifier"],
        n=len(ids),
        values=tuple((statistics.fmean(v), *confidence_interval(v, *bounds, counted=binary, sets=sets)) for v in values),
        paired=paired_difference(values[0], values[1], sets) if len(values) == 2 else None,
        groups=tuple(_group(measured, runs, [statistics.fmean(values[i]) for i in runs], bounds) for runs in _grouped(measured))
        if len(values) > 2
        else (),
        outcomes=tuple(_outcomes(tables, ids)),
    )


def _outcomes(tables: Sequence[dict[str, dict[str, Any]]], ids: Sequence[str]) -> Iterator[OutcomeComparison]:
    """tables: of each run, id -> row."""
    for name in sorted({name for id in ids for name in tables[0][id].get("outcome", {})}):
        own = [id for id in ids if all(name in table[id].get("outcome", {}) for table in tables)]
        values = [[float(table[id]["outcome"][name]) for id in own] for table in tables]
        if not own or (own == [*ids] and values == [[float(table[id]["value"]) for id in own] for table in tables]):
            continue
        sets = _sets(tables, own)
        every = [value for of_run in values for value in of_run]
        yield OutcomeComparison(
            name=name,
            n=len(own),
            values=tuple((statistics.fmean(v), *outcome_interval(name, v, sets, every)) for v in values),
            paired=paired_difference(values[0], values[1], sets) if len(values) == 2 else None,
        )


def _sets(tables: Sequence[dict[str, dict[str, Any]]], ids: Sequence[str]) -> list[int] | None:
    """The set of each of these prompts, by the first run that has them."""
    return next((found for table in tables if (found := known_sets(table[id].get("set") for id in ids))), None)


def _spec(verifier: str) -> VerifierSpec | None:
    """None if the verifier isn't installed."""
    from mmrl.registry.plugins import registry

    try:
        return registry().get("verifiers", verifier)
    except UserError:
        return None


def config_differences(one: EvaluatedRun, other: EvaluatedRun) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new) where two run files differ, except name, seed and keys that don't change what is learned. A key
    that an older mmrl didn't have yet counts as its default."""
    found = _sections(one.config, other.config)
    if not any(None in pair for pair in found.values()):  # nothing is missing: the schema needn't be imported
        return found
    return _sections(with_defaults(one.config), with_defaults(other.config))


def _sections(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    sections = sorted({*old, *new} - {*NAMES, *MAY_CHANGE})
    return {key: pair for section in sections for key, pair in _leaves(section, old.get(section), new.get(section))}


def _leaves(key: str, old: Any, new: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The differences of two values: of single values, lists of them, and whole entries of lists."""
    if all(v is None or (isinstance(v, list) and v and isinstance(v[0], dict)) for v in (old, new)):
        for i, (entry, other) in enumerate(zip_longest(old or (), new or ())):
            yield from _entries(f"{key}.{i}", entry, other)
    elif (old or new) and all(v is None or isinstance(v, dict) for v in (old, new)):
        for name in sorted({*(old or {}), *(new or {})}):
            yield from _leaves(f"{key}.{name}", (old or {}).get(name), (new or {}).get(name))
    elif old != new:
        yield key, (old, new)


def _entries(key: str, old: Any, new: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The differences of two entries of a list: a single one if they are of different kinds or one is missing."""
    kinds = [[v.get(name) for name in KINDS] if isinstance(v, dict) else v for v in (old, new)]
    if kinds[0] != kinds[1]:
        yield key, (old, new)
    else:
        yield from _leaves(key, old, new)


def _grouped(measured: Sequence[EvaluatedRun]) -> list[tuple[int, ...]]:
    """Groups of at least two runs that differ only in seed and name; of runs with the same seed only the first."""
    groups: list[list[int]] = []
    for i, run in enumerate(measured):
        home = next((g for g in groups if not config_differences(measured[g[0]], run)), None)
        if home is None:
            groups.append([i])
        elif run.seed not in [measured[j].seed for j in home]:
            home.append(i)
    return [tuple(group) for group in groups if len(group) > 1]


def _group(
    measured: Sequence[EvaluatedRun], runs: tuple[int, ...], means: Sequence[float], bounds: tuple[float, float]
) -> SeedGroup:
    low, high = confidence_interval(means, *bounds, counted=False)
    names = [measured[i].path.name for i in runs]
    stems = {re.sub(r"([-_. ](seed|s)?)?[-_. ]?\d+$", "", name) for name in names}
    return SeedGroup(
        name=stems.pop() if len(stems) == 1 else names[0],
        runs=runs,
        seeds=tuple(measured[i].seed for i in runs),
        mean=statistics.fmean(means),
        lowest=min(means),
        highest=max(means),
        low=low,
        high=high,
    )


def notes(measured: Sequence[EvaluatedRun], found: Sequence[Comparison], missing: Sequence[str], step: str) -> list[str]:
    """Notes for the reader of the figures. missing: tasks that not all runs have. step: the evaluation that was chosen."""
    notes: list[str] = []
    differences = [config_differences(measured[0], run) for run in measured[1:]]
    values: dict[str, list[str]] = {}  # key -> the first run's value, then the other runs' different values
    for key, (old, new) in (item for of_run in differences for item in of_run.items()):
        known = values.setdefault(key, [_short(old)])
        if len(measured) == 2 or _short(new) not in known:
            known.append(_short(new))
    if values:
        named = [f"{key} ({', '.join(known[:4])}{', ...' * (len(known) > 4)})" for key, known in list(values.items())[:SHOWN]]
        more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
        notes.append(f"the runs differ in {', '.join(named)}{more}")
    if len(measured) == 2 and measured[0].seed != measured[1].seed:
        notes.append("the seeds differ: a task that draws its held-out prompts from the seed has others under the same ids")
    if step == "best":
        notes.append("the best evaluation was chosen on these same prompts, so its value is too high on average")
    elif len({run.step for run in measured}) > 1:
        notes.append(f"the runs are at different steps: {', '.join(f'{run.name} at {run.step}' for run in measured)}")
    if missing:
        notes.append(f"left out, as not every run has it: {', '.join(missing)}")
    counts = [Counter(row["task"] for row in run.rows) for run in measured]
    for one in found:
        most = max(count[one.task] for count in counts)
        if one.n < most:
            notes.append(f"{one.task}: {one.n} of up to {most} scored prompts are in all runs; only these are compared")
    if len(measured) == 2 and len(found) > 1:
        notes.append("each p is for one task alone: of twenty tasks without a difference, one has p < 0.05 on average")
    return notes


def _short(value: Any) -> str:
    """A value as in a run file; of a table its kind or id."""
    if isinstance(value, dict):
        named = next((value[name] for name in KINDS if isinstance(value.get(name), str)), None)
        text = named or ("a table" if value else "an empty table")
    elif isinstance(value, list):
        text = f"[{', '.join(map(_short, value))}]"
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = "unset" if value is None else str(value)
    return text if len(text) <= 40 else text[:37] + "..."
