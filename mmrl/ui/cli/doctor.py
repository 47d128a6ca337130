"""`mmrl doctor`: print the findings of `mmrl.ui.doctor` with their fixes."""

from __future__ import annotations

import json
from pathlib import Path

import click

from mmrl.api.errors import UserError
from mmrl.ui import doctor
from mmrl.ui.cli.terminal import status_line

COLOURS = {"ok": "green", "note": "yellow", "missing": "dim", "broken": "bold red"}


@click.command()
@click.argument("names", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print JSON: ok, and the findings.")
@click.option("--runs", type=click.Path(path_type=Path), default=Path("runs"), show_default=True, help="Folder of runs.")
def command(names: tuple[str, ...], as_json: bool, runs: Path) -> None:
    """Check the installation: what works, what is broken, how to fix it. With NAMES, show only the items that have one of them in
    their name, such as `libero`.

    The exit code is 1 when something is broken that the core or training needs.
    """
    status_line("checking the installation, for some seconds ...")
    findings = _named(doctor.diagnose(runs), names)
    if as_json:
        click.echo(json.dumps(doctor.as_json(findings), indent=2))
    else:
        _print(findings)
    if not doctor.is_healthy(findings):
        raise click.exceptions.Exit(1)


def _named(findings: list[doctor.Finding], names: tuple[str, ...]) -> list[doctor.Finding]:
    """The findings that are asked for. Raises UserError for a name that none has."""
    for name in names:
        if not any(name in f.name for f in findings):
            raise UserError(f"mmrl doctor checks nothing called {name!r}: it checks {', '.join(f.name for f in findings)}")
    return [f for f in findings if not names or any(name in f.name for name in names)]


def _print(findings: list[doctor.Finding]) -> None:
    from mmrl.ui.cli.table import escape, print_table

    def label(f: doctor.Finding) -> str:
        return f"{f.group} {f.name}" if f.group in ("extra", "plugin") else f.name

    def mark(f: doctor.Finding) -> str:
        return f"[{COLOURS[f.state]}]{f.state.upper() if f.state == 'broken' else f.state}[/]"

    print_table("doctor", ["item", "state", "details"], [[label(f), mark(f), escape(f.detail)] for f in findings])
    for title, states in (("To fix:", ["broken"]), ("Optional:", ["note", "missing"])):
        cures = [f for f in findings if f.state in states and f.cure]
        if cures:  # outside the table, so that a command can be copied in one piece
            click.echo("\n".join([title, *(f"  {label(f):<20} {f.cure}" for f in cures)]))
