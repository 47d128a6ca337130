"""`mmrl compare RUN RUN ...`: compare evaluations of runs on the same held-out prompts. No model is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    from mmrl.evaluation.comparison import Comparison, EvaluatedRun
    from mmrl.evaluation.paired_tests import PairedDifference

SIGNIFICANCE = 0.05
"""Significance level: a difference with a smaller p is coloured and called better or worse."""


@click.command()
@click.argument("runs", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RUN_DIR RUN_DIR ...")
@click.option("--split", help="Compare only evaluations on this split.")
@click.option("--step", default="last", show_default=True, help="Evaluation of each run: last, best or a step.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def command(runs: tuple[Path, ...], split: str | None, step: str, as_json: bool) -> None:
    """Compare runs on the held-out prompts that all of them answered.

    Two runs are compared prompt by prompt: the difference with its 95% interval, the numbers of prompts on which each run is
    better, and a p value. Among three or more runs, those that differ only in seed and name form a group.
    """
    from mmrl.evaluation import comparison
    from mmrl.run_folder.files import to_json_value

    if len(runs) < 2 or len({path.resolve() for path in runs}) < len(runs):
        raise UserError(f"mmrl compare {' '.join(map(str, runs))}: give two or more different run folders")
    measured = [comparison.measured(path, step, split) for path in runs]
    comparisons, missing = comparison.compare_runs(measured)
    if as_json:
        import json

        click.echo(
            json.dumps(
                to_json_value({"runs": [_run_json(run) for run in measured], "tasks": [_task_json(c) for c in comparisons]})
            )
        )
        return
    if len(measured) == 2:
        _print_pair(measured, comparisons)
    else:
        _print_table(measured, comparisons)
    for note in comparison.notes(measured, comparisons, missing, step):
        click.echo(f"note: {note}")


# -- showing ------------------------------------------------------------------------------------------------------------


def _print_pair(measured: Sequence[EvaluatedRun], comparisons: Sequence[Comparison]) -> None:
    """Print two runs as A and B, and a paragraph for each task."""
    width = max(len(run.name) for run in measured)
    for letter, run in zip("AB", measured, strict=True):
        click.echo(f"{click.style(letter, bold=True)}  {run.name:{width}}  step {run.step}, seed {run.seed}")
    for task in comparisons:
        assert task.paired is not None
        click.echo(f"\n{_title(task)}")
        for letter, (mean, low, high) in zip("AB", task.values, strict=True):
            click.echo(f"  {letter}      {mean:7.3f}  {_interval(low, high)}")
        pair = task.paired
        line = f"  B - A  {pair.difference:+7.3f}  {_interval(pair.low, pair.high, sign='+')}  p {_p(pair.p)}, {pair.test}"
        significant = pair.p < SIGNIFICANCE
        click.echo(click.style(line, bold=True, fg=("green" if pair.difference > 0 else "red") if significant else None))
        better = f"{pair.wins} {'prompt' if pair.wins == 1 else 'prompts'} better"
        click.echo(f"  {_verdict(pair)}: {better}, {pair.losses} worse, {pair.ties} equal")
        for outcome in task.outcomes:
            assert outcome.paired is not None
            each = zip("AB", outcome.values, strict=True)
            both = [f"{letter} {mean:.3f} {_interval(low, high)}" for letter, (mean, low, high) in each]
            gap = f"B - A {outcome.paired.difference:+.3f} {_interval(outcome.paired.low, outcome.paired.high, sign='+')}"
            click.echo(f"  {outcome.name}: {'  '.join([*both, gap])}")
    click.echo()


def _verdict(pair: PairedDifference) -> str:
    if pair.p >= SIGNIFICANCE:
        return "no significant difference"
    return f"B is {'better' if pair.difference > 0 else 'worse'}"


def _print_table(measured: Sequence[EvaluatedRun], comparisons: Sequence[Comparison]) -> None:
    """Print a table for each task: a row per run, then a row per group of seeds."""
    from mmrl.ui.cli.table import escape, print_table

    columns = ("run", "seed", "step", "mean", "95% interval", "range")
    for task in comparisons:
        rows: list[tuple[str, ...]] = [
            (escape(run.name), str(run.seed), str(run.step), f"{mean:.3f}", _interval(low, high, brackets=False), "")
            for run, (mean, low, high) in zip(measured, task.values, strict=True)
        ]
        rows += [("",) * len(columns)] if task.groups else []
        for group in task.groups:
            seeds = f"{len(group.seeds)} seeds"
            spread = f"{group.lowest:.3f} to {group.highest:.3f}"
            bounds = _interval(group.low, group.high, brackets=False)
            rows.append((f"[bold]{escape(group.name)}[/]", seeds, "", f"[bold]{group.mean:.3f}[/]", bounds, spread))
        click.echo(_title(task))  # rich would wrap a table's own title to the table's width
        print_table("", columns, rows)
        if task.outcomes:
            each = [[f"{mean:.3f} {_interval(low, high)}" for mean, low, high in outcome.values] for outcome in task.outcomes]
            named = [[escape(outcome.name), *cells] for outcome, cells in zip(task.outcomes, each, strict=True)]
            print_table("", ("outcome", *(escape(run.name) for run in measured)), named)
    if any(task.groups for task in comparisons):
        click.echo("A run's interval is over its prompts; a group's is over its runs, by Student's t.")


def _title(task: Comparison) -> str:
    prompts = "prompts" if task.n > 1 else "prompt"
    return f"{click.style(task.task, bold=True)}  {task.split}  {task.verifier}, {task.n} {prompts} in common"


def _interval(low: float, high: float, sign: str = "", brackets: bool = True) -> str:
    text = f"{low:{sign}.3f} to {high:{sign}.3f}" if math.isfinite(low) else "unknown"
    return f"({text})" if brackets else text


def _p(p: float) -> str:
    return f"= {p:.3f}" if p >= 0.001 else "< 0.001"


def _run_json(run: EvaluatedRun) -> dict[str, Any]:
    return {"path": run.name, "name": run.config.get("name"), "seed": run.seed, "step": run.step}


def _task_json(task: Comparison) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        **asdict(task),
        "values": _values_json(task.values),
        "outcomes": [{**asdict(outcome), "values": _values_json(outcome.values)} for outcome in task.outcomes],
    }


def _values_json(values: Sequence[tuple[float, float, float]]) -> list[dict[str, float]]:
    return [{"value": mean, "low": low, "high": high} for mean, low, high in values]
