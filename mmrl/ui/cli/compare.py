"""`mmrl compare RUN RUN ...`: what each run's last evaluation says of the same held-out prompts. No model is loaded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    from mmrl.evaluation.comparison import Comparison, Measured
    from mmrl.evaluation.paired import Paired

LIKELY = 0.05
"""A difference with a smaller p is shown as one."""


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
    from mmrl.evaluation import comparison
    from mmrl.run_folder.files import plain

    if len(runs) < 2 or len({path.resolve() for path in runs}) < len(runs):
        raise UserError(f"mmrl compare {' '.join(map(str, runs))}: give two different run folders or more")
    measured = [comparison.measured(path, step, split) for path in runs]
    found, missing = comparison.compared(measured)
    if as_json:
        import json

        click.echo(json.dumps(plain({"runs": [_run_json(run) for run in measured], "tasks": [_task_json(c) for c in found]})))
        return
    if len(measured) == 2:
        _print_pair(measured, found)
    else:
        _print_table(measured, found)
    for note in comparison.notes(measured, found, missing, step):
        click.echo(f"note: {note}")


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
    from mmrl.ui.cli.table import escape, print_table

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


def _run_json(run: Measured) -> dict[str, Any]:
    return {"path": run.name, "name": run.config.get("name"), "seed": run.seed, "step": run.step}


def _task_json(one: Comparison) -> dict[str, Any]:
    from dataclasses import asdict

    return {**asdict(one), "values": [{"value": mean, "low": low, "high": high} for mean, low, high in one.values]}
