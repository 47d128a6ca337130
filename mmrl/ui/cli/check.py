"""`mmrl check ID`: run the conformance kit on a task, verifier or simulator; `mmrl check policy MODEL` on a model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import click

from mmrl.api.errors import UserError
from mmrl.api.settings import key_values
from mmrl.ui.cli.complete import ids
from mmrl.ui.cli.subprocess_call import run_in_fork

SCOPES = {"simulator": "of its spec's promises", "policy": "on pictures and completions of random numbers"}
"""Kind -> on what it was checked, for the last line."""


@click.command()
@click.argument("id", shell_complete=ids("tasks", "verifiers", "simulators"))
@click.argument("model", required=False)
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
def command(id: str, model: str | None, n: int, task: str | None, settings: tuple[str, ...], attack: bool, as_json: bool) -> None:
    """Check a task, verifier or simulator with the conformance kit; exit code 1 when a check fails.

    `mmrl check policy MODEL` checks a vision-language model: a folder, a hub name or tiny:FAMILY. Packed rows are compared with
    the model's own forward pass, sampling with an update, a saved model with the one in memory. --set takes dtype and
    trust_remote_code.
    """
    from mmrl.testing import check_id

    options = key_values(settings)
    if (id == "policy") != (model is not None):
        raise UserError("write mmrl check ID for a task, verifier or simulator, and mmrl check policy MODEL for a model")
    if model is not None and (attack or task):
        raise UserError("mmrl check policy takes no --attack and no --task")
    if attack:
        if task:
            raise UserError(f"--attack takes no --task: attack the task itself, with mmrl check --attack {task}")
        _attack(id, options, as_json)
        return
    if model is not None:
        reports = run_in_fork(lambda: [_checked_policy(model, options)], f"check of {model!r}")
    else:
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
            scope = SCOPES.get(report.kind, f"on up to {n} rows of each split; -n sets the number")
            click.echo(f"{failed} of {total} checks fail, {scope}\n" if failed else f"all {total} checks pass, {scope}\n")
    if not all(r.ok for r in reports):
        raise click.exceptions.Exit(1)


def _checked_policy(model: str, options: Mapping[str, Any]) -> Any:
    from mmrl.testing import check_policy
    from mmrl.ui.cli.terminal import silence_libraries

    silence_libraries()
    if unknown := sorted(options.keys() - {"dtype", "trust_remote_code"}):
        raise UserError(f"--set {unknown[0]}: mmrl check policy knows dtype and trust_remote_code")
    return check_policy(model, **options)


def _attack(id: str, options: Mapping[str, Any], as_json: bool) -> None:
    """Print what was tried, held and fell; exit code 1 if something fell."""
    from mmrl.testing.attack import attacks_on, run, show

    outcomes = run_in_fork(lambda: run(attacks_on(id, options)), f"attack on {id!r}")
    click.echo(json.dumps([o.as_json() for o in outcomes], indent=2) if as_json else show(outcomes))
    if any(o.fell for o in outcomes):
        raise click.exceptions.Exit(1)
