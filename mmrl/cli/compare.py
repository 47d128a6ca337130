"""`mmrl compare RUN RUN ...`: what each run's last evaluation says of the same held-out prompts. No model is loaded."""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmrl.errors import UserError

if TYPE_CHECKING:
    from mmrl.paired import Paired
    from mmrl.record import RunData

NAMES = ("name", "seed")
"""Keys of a run file in which the runs of one group differ, beside those that don't change what is learned."""
SHOWN = 3
"""Keys that are named of those in which runs differ."""
KINDS = ("kind", "id")
"""Keys that say what an entry of a list is."""
LIKELY = 0.05
"""A difference with a smaller p is shown as one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A run at one evaluation."""

    data: RunData
    step: int
    rows: list[dict[str, Any]]

    @property
    def name(self) -> str:
        return str(self.data.path)

    @property
    def seed(self) -> int:
        return self.data.config.get("seed", 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs of one configuration with several seeds."""

    name: str
    runs: tuple[int, ...]
    """Which of the runs, counted from 0."""
    seeds: tuple[int, ...]
    mean: float
    lowest: float
    highest: float
    low: float
    """Bounds of the mean's 95% interval, by Student's t over the runs."""
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One task, on the prompts that every run was scored on."""

    task: str
    split: str
    verifier: str
    n: int
    values: tuple[tuple[float, float, float], ...]
    """Of each run: the mean and its 95% interval over the prompts."""
    paired: Paired | None
    """Of two runs: what the second has over the first."""
    groups: tuple[Group, ...]
    """Of more than two runs."""


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN_DIR RUN_DIR ...")
@click.option("--split", help="Only evaluations on this split.")
@click.option("--step", default="last", show_default=True, help="Which evaluation of each run: last, best, or a step.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(runs: tuple[Path, ...], split: str | None, step: str, as_json: bool) -> None:
    """Compare runs on the held-out prompts that all of them answered.

    Two runs are compared prompt by prompt: the difference with its 95% interval, on how many prompts which is better, and how
    likely such a difference is by chance. Of three or more, those that differ only in seed and name are put together.
    """
    from mmrl.files import plain

    if len(runs) < 2 or len({path.resolve() for path in runs}) < len(runs):
        raise UserError(f"mmrl compare {' '.join(map(str, runs))}: give two different run folders or more")
    measured = [_measured(path, step, split) for path in runs]
    found, missing = _compared(measured)
    if as_json:
        import json

        click.echo(json.dumps(plain({"runs": [_run_json(run) for run in measured], "tasks": [_task_json(c) for c in found]})))
        return
    if len(measured) == 2:
        _print_pair(measured, found)
    else:
        _print_table(measured, found)
    for note in _notes(measured, found, missing, step):
        click.echo(f"note: {note}")


# -- reading ------------------------------------------------------------------------------------------------------------


def _measured(path: Path, which: str, split: str | None) -> Measured:
    """A run at its `last` or `best` evaluation or at that of a step. Raises UserError when there is none."""
    from mmrl.record import read_items, read_run, step_of

    data = read_run(path)
    files = {step_of(file): file for file in data.item_files}
    if not files:
        raise UserError(
            f"{path} has no evaluations/: evaluate.n was 0, none is finished yet, or an older mmrl made it: train again"
        )
    step = max(files) if which == "last" else _best_step(data) if which == "best" else int(which) if which.isdigit() else None
    if step is None or step not in files:
        what = "no best evaluation" if which == "best" else f"no evaluation {which!r}"
        raise UserError(f"{path} has {what} to compare: give last, best or one of {', '.join(map(str, files))}")
    rows = [row for row in read_items(files[step]) if row["value"] is not None]
    splits = sorted({row["split"] for row in rows})
    if rows and split and split not in splits:
        raise UserError(f"{path} was not evaluated on split {split!r}, only on {', '.join(splits)}: leave --split out")
    if not rows:
        raise UserError(f"{path}: nothing was scored at step {step}: choose another --step")
    return Measured(data=data, step=step, rows=[row for row in rows if split in (None, row["split"])])


def _best_step(data: RunData) -> int | None:
    """The step whose evaluation was the best, by the mean over tasks; of equals the first."""
    if data.summary:
        return data.summary.get("best_step")
    figures: dict[int, list[float]] = {}
    for row in data.evals:
        figures.setdefault(row["step"], []).append(-math.inf if row["eval"]["value"] is None else row["eval"]["value"])
    return max(sorted(figures), key=lambda step: statistics.fmean(figures[step])) if figures else None


# -- comparing ----------------------------------------------------------------------------------------------------------


def _compared(measured: Sequence[Measured]) -> tuple[list[Comparison], list[str]]:
    """The tasks that all runs have, and those that only some have. Raises UserError when nothing can be compared."""
    tables = [_by_task(run) for run in measured]
    tasks = [task for task in tables[0] if all(task in table for table in tables)]
    if not tasks:
        each = "; ".join(f"{run.name} has {', '.join(table)}" for run, table in zip(measured, tables, strict=True))
        raise UserError(f"the runs have no task in common: {each}: compare runs of the same tasks")
    missing = sorted({task for table in tables for task in table} - set(tasks))
    return [_task(measured, task, [table[task] for table in tables]) for task in tasks], missing


def _by_task(run: Measured) -> dict[str, dict[str, dict[str, Any]]]:
    """Task -> id -> row."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in run.rows:
        items = found.setdefault(row["task"], {})
        if row["id"] in items:
            raise UserError(
                f"{run.name}: several prompts of task {row['task']!r} have the id {row['id']!r}, so that they can't be matched: "
                "give each its own Prompt.id"
            )
        items[row["id"]] = row
    return found


def _task(measured: Sequence[Measured], task: str, tables: Sequence[dict[str, dict[str, Any]]]) -> Comparison:
    from mmrl.paired import compare

    for what in ("split", "verifier"):
        kinds = [", ".join(sorted({row[what] for row in table.values()})) for table in tables]
        if len(set(kinds)) > 1:
            other = next(i for i, kind in enumerate(kinds) if kind != kinds[0])
            raise UserError(
                f"task {task!r} was evaluated with {what} {kinds[0]!r} by {measured[0].name} and {kinds[other]!r} by "
                f"{measured[other].name}: figures of different {what}s can't be compared; evaluate both with one"
            )
    ids = [id for id in tables[0] if all(id in table for table in tables)]
    if not ids:
        raise UserError(
            f"task {task!r}: the runs have no prompt in common: compare runs with the same task options, split and evaluate.n"
        )
    values = [[float(table[id]["value"]) for id in ids] for table in tables]
    first = tables[0][ids[0]]
    binary = all(v in (0.0, 1.0, None) for table in tables for id in ids for v in table[id]["values"])
    bounds = (0.0, 1.0) if binary else (-math.inf, math.inf)
    return Comparison(
        task=task,
        split=first["split"],
        verifier=first["verifier"],
        n=len(ids),
        values=tuple(_with_interval(v, bounds) for v in values),
        paired=compare(*values) if len(values) == 2 else None,
        groups=tuple(_group(measured, runs, [statistics.fmean(values[i]) for i in runs], bounds) for runs in _grouped(measured))
        if len(values) > 2
        else (),
    )


def _with_interval(values: Sequence[float], bounds: tuple[float, float]) -> tuple[float, float, float]:
    """The mean and its interval: Wilson's for values of 0 and 1, else Student's within bounds."""
    from mmrl.intervals import wilson

    binary = all(v in (0.0, 1.0) for v in values)
    return statistics.fmean(values), *(wilson(sum(values), len(values)) if binary else _student(values, bounds))


def _student(values: Sequence[float], bounds: tuple[float, float]) -> tuple[float, float]:
    from mmrl.intervals import mean_interval

    low, high = mean_interval(values)
    return max(low, bounds[0]), min(high, bounds[1])


def _differing(one: Measured, other: Measured) -> dict[str, tuple[Any, Any]]:
    """Dotted keys of the run files in which two runs differ, but for name, seed and what doesn't change what is learned."""
    from mmrl.record import MAY_CHANGE

    old, new = one.data.config, other.data.config
    sections = sorted({*old, *new} - {*NAMES, *MAY_CHANGE})
    return {key: pair for section in sections for key, pair in _leaves(section, old.get(section), new.get(section))}


def _leaves(key: str, old: Any, new: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Where two values differ: in single values, lists of them, and whole entries that one run has in another's place."""
    if all(v is None or (isinstance(v, list) and v and isinstance(v[0], dict)) for v in (old, new)):
        for i, (entry, other) in enumerate(zip_longest(old or (), new or ())):
            yield from _entries(f"{key}.{i}", entry, other)
    elif (old or new) and all(v is None or isinstance(v, dict) for v in (old, new)):
        for name in sorted({*(old or {}), *(new or {})}):
            yield from _leaves(f"{key}.{name}", (old or {}).get(name), (new or {}).get(name))
    elif old != new:
        yield key, (old, new)


def _entries(key: str, old: Any, new: Any) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """The same of two entries of a list: one difference where they are of different kinds or only one is there."""
    kinds = [[v.get(name) for name in KINDS] if isinstance(v, dict) else v for v in (old, new)]
    if kinds[0] != kinds[1]:
        yield key, (old, new)
    else:
        yield from _leaves(key, old, new)


def _grouped(measured: Sequence[Measured]) -> list[tuple[int, ...]]:
    """Which runs differ only in seed and name, for those that have company; of several with one seed the first, since they say
    the same."""
    groups: list[list[int]] = []
    for i, run in enumerate(measured):
        home = next((g for g in groups if not _differing(measured[g[0]], run)), None)
        if home is None:
            groups.append([i])
        elif run.seed not in [measured[j].seed for j in home]:
            home.append(i)
    return [tuple(group) for group in groups if len(group) > 1]


def _group(measured: Sequence[Measured], runs: tuple[int, ...], means: Sequence[float], bounds: tuple[float, float]) -> Group:
    low, high = _student(means, bounds)
    names = [measured[i].data.path.name for i in runs]
    stems = {re.sub(r"([-_. ](seed|s)?)?[-_. ]?\d+$", "", name) for name in names}
    return Group(
        name=stems.pop() if len(stems) == 1 else names[0],
        runs=runs,
        seeds=tuple(measured[i].seed for i in runs),
        mean=statistics.fmean(means),
        lowest=min(means),
        highest=max(means),
        low=low,
        high=high,
    )


# -- showing ------------------------------------------------------------------------------------------------------------


def _print_pair(measured: Sequence[Measured], found: Sequence[Comparison]) -> None:
    """Two runs as A and B, and a paragraph for each task."""
    width = max(len(run.name) for run in measured)
    for letter, run in zip("AB", measured, strict=True):
        click.echo(f"{click.style(letter, bold=True)}  {run.name:{width}}  step {run.step}, seed {run.seed}")
    for one in found:
        assert one.paired is not None
        click.echo(f"\n{_title(one)}")
        for letter, (mean, low, high) in zip("AB", one.values, strict=True):
            click.echo(f"  {letter}      {mean:7.3f}  {_interval(low, high)}")
        pair = one.paired
        line = f"  B - A  {pair.difference:+7.3f}  {_interval(pair.low, pair.high, sign='+')}  p {_p(pair.p)}, {pair.test}"
        shown = pair.p < LIKELY
        click.echo(click.style(line, bold=True, fg=("green" if pair.difference > 0 else "red") if shown else None))
        click.echo(f"  {_verdict(pair)}: {pair.wins} prompts better, {pair.losses} worse, {pair.ties} alike")
    click.echo()


def _verdict(pair: Paired) -> str:
    if pair.p >= LIKELY:
        return "no difference is shown"
    return f"B is {'better' if pair.difference > 0 else 'worse'}"


def _print_table(measured: Sequence[Measured], found: Sequence[Comparison]) -> None:
    """A table for each task: a row per run, then a row per group of seeds."""
    from mmrl.cli.table import escape, print_table

    columns = ("run", "seed", "step", "mean", "95% interval", "lowest to highest")
    for one in found:
        rows: list[tuple[str, ...]] = [
            (escape(run.name), str(run.seed), str(run.step), f"{mean:.3f}", _interval(low, high, brackets=False), "")
            for run, (mean, low, high) in zip(measured, one.values, strict=True)
        ]
        rows += [("",) * len(columns)] if one.groups else []
        for group in one.groups:
            seeds = f"{len(group.seeds)} seeds"
            spread = f"{group.lowest:.3f} to {group.highest:.3f}"
            bounds = _interval(group.low, group.high, brackets=False)
            rows.append((f"[bold]{escape(group.name)}[/]", seeds, "", f"[bold]{group.mean:.3f}[/]", bounds, spread))
        click.echo(_title(one))  # as the table's own title it would be broken to the table's width
        print_table("", columns, rows)
    if any(one.groups for one in found):
        click.echo("A run's interval is over the prompts; that of several seeds is over the runs, by Student's t.")


def _title(one: Comparison) -> str:
    prompts = "prompts" if one.n > 1 else "prompt"
    return f"{click.style(one.task, bold=True)}  {one.split}  {one.verifier}, {one.n} {prompts} in common"


def _interval(low: float, high: float, sign: str = "", brackets: bool = True) -> str:
    text = f"{low:{sign}.3f} to {high:{sign}.3f}" if math.isfinite(low) else "unknown"
    return f"({text})" if brackets else text


def _p(p: float) -> str:
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"


def _notes(measured: Sequence[Measured], found: Sequence[Comparison], missing: Sequence[str], step: str) -> list[str]:
    """What a reader of the figures must know."""
    notes = []
    differing = [_differing(measured[0], run) for run in measured[1:]]
    values: dict[str, list[str]] = {}  # key -> the first run's value, then the others' where they have another
    for key, (old, new) in (item for found_of_one in differing for item in found_of_one.items()):
        known = values.setdefault(key, [_short(old)])
        if len(measured) == 2 or _short(new) not in known:
            known.append(_short(new))
    if values:
        told = [f"{key} ({', '.join(known[:4])}{', ...' * (len(known) > 4)})" for key, known in list(values.items())[:SHOWN]]
        more = f" and {len(values) - SHOWN} more" if len(values) > SHOWN else ""
        notes.append(f"the runs differ in {', '.join(told)}{more}")
    if len(measured) == 2 and measured[0].seed != measured[1].seed:
        notes.append("the seeds differ: a task that draws its held-out prompts from the seed posed others under the same ids")
    if step == "best":
        notes.append("the best evaluation was chosen by these very prompts, so that its value is too high on average")
    elif len({run.step for run in measured}) > 1:
        notes.append(f"the runs are at different steps: {', '.join(f'{run.name} at {run.step}' for run in measured)}")
    if missing:
        notes.append(f"left out, because not every run has it: {', '.join(missing)}")
    for one in found:
        most = max(sum(row["task"] == one.task for row in run.rows) for run in measured)
        if one.n < most:
            notes.append(f"{one.task}: {one.n} of up to {most} scored prompts are common to all runs; the others don't count")
    if len(measured) == 2 and len(found) > 1:
        notes.append("each p is of one task alone: of twenty tasks without a difference, one shows p < 0.05")
    return notes


def _short(value: Any) -> str:
    """A value as in a run file; of an entry or a table, what it is."""
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


def _run_json(run: Measured) -> dict[str, Any]:
    return {"path": run.name, "name": run.data.config.get("name"), "seed": run.seed, "step": run.step}


def _task_json(one: Comparison) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(one), "values": [{"value": mean, "low": low, "high": high} for mean, low, high in one.values]}
