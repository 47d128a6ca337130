"""`mmrl check ID`: run the conformance kit on a task, verifier or simulator."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from mmrl.api.errors import UserError
from mmrl.api.settings import key_values
from mmrl.ui.cli.complete import ids
from mmrl.ui.cli.subprocess_call import run_in_fork


@click.command()
@click.argument("id", shell_complete=ids("tasks", "verifiers", "simulators"))
@click.option("-n", default=32, show_default=True, type=click.IntRange(min=2), help="Rows to check in each split.")
@click.option(
    "--task",
    metavar="TASK",
    shell_complete=ids("tasks"),
    help="Check a verifier on rows of this task; default: the tasks that name it.",
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Option of the task or simulator, with a TOML value.")
@click.option("--attack", is_flag=True, help="Hand it bad input instead: completions, options, turns, actions.")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of reports.")
def command(id: str, n: int, task: str | None, settings: tuple[str, ...], attack: bool, as_json: bool) -> None:
    """Check a task, verifier or simulator with the conformance kit; exit code 1 when a check fails."""
    from mmrl.testing import check_id

    options = key_values(settings)
    if attack:
        if task:
            raise UserError(f"--attack takes no --task: attack the task itself, with mmrl check --attack {task}")
        _attack(id, options, as_json)
        return
    reports = run_in_fork(lambda: check_id(id, n=n, task=task, options=options), f"check of {id!r}")
    if as_json:
        click.echo(json.dumps([r.as_json() for r in reports], indent=2))
    else:
        from mmrl.ui.cli.table import escape, print_table

        for report in reports:
            print_table(
                f"{report.kind} {report.id}",
                ["check", "", "observed"],
                [
                    [
                        r.name.replace("_", " "),
                        "[green]ok[/green]" if r.ok else "[red]FAIL[/red]",
                        escape(r.told) if not r.ok else f"[dim]{escape(r.note)}[/dim]",
                    ]
                    for r in report.results
                ],
            )
            failed, total = sum(not r.ok for r in report.results), len(report.results)
            scope = (
                f"on up to {n} rows of each split; -n sets the number" if report.kind != "simulator" else "of its spec's promises"
            )
            click.echo(f"{failed} of {total} checks fail, {scope}\n" if failed else f"all {total} checks pass, {scope}\n")
    if not all(r.ok for r in reports):
        raise click.exceptions.Exit(1)


def _attack(id: str, options: Mapping[str, Any], as_json: bool) -> None:
    """Print what was tried, held and fell; exit code 1 if something fell."""
    from mmrl.testing.attack import attacks_on, run, show

    outcomes = run_in_fork(lambda: run(attacks_on(id, options)), f"attack on {id!r}")
    click.echo(json.dumps([o.as_json() for o in outcomes], indent=2) if as_json else show(outcomes))
    if any(o.fell for o in outcomes):
        raise click.exceptions.Exit(1)
