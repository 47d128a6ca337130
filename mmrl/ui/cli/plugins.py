"""`mmrl plugins`: what is installed, and why a part of it does not load."""

from __future__ import annotations

import json
import traceback

import click

from mmrl.registry.contract import SINGULAR
from mmrl.registry.plugins import PluginInfo, registry


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of objects.")
@click.option("--errors", is_flag=True, help="Only plugins that failed, with tracebacks; exit code 1 if there are any.")
def command(as_json: bool, errors: bool) -> None:
    """List plugins, with what each brings or why it does not load."""
    found = [p for p in registry().plugins if p.error or not errors]
    if as_json:
        click.echo(json.dumps([p.as_json() for p in found], indent=2))
    elif errors:
        for p in found:
            if p.cause:
                click.echo("".join(traceback.format_exception(p.cause)), nl=False)
            click.echo(f"{p.label} {p.error}\n")
        if not found:
            click.echo("Every plugin loads.")
    else:
        _print(found)
    if errors and found:
        raise click.exceptions.Exit(1)


def _print(found: list[PluginInfo]) -> None:
    from mmrl.ui.cli.table import escape, print_table

    print_table(
        "plugins",
        ["name", "version", "from", "brings"],
        [
            [
                escape(p.name),
                p.version or "",
                escape(p.dist or p.target),
                f"[red]{escape(p.error)}[/red]" if p.error else _brings(p),
            ]
            for p in found
        ],
    )
    if any(p.error for p in found):
        click.echo("`mmrl plugins --errors` shows the tracebacks.")


def _brings(plugin: PluginInfo) -> str:
    """`2 tasks, 1 verifier, run observers`."""
    named = {kind: (SINGULAR[kind], kind.replace("_", " ")) for kind in plugin.specs}
    parts = [f"{len(ids)} {named[kind][len(ids) != 1]}" for kind, ids in plugin.specs.items() if ids]
    if "mmrl_commands" in plugin.hooks:
        parts.append("commands")
    if any(h in plugin.hooks for h in ("mmrl_run_started", "mmrl_step_finished", "mmrl_run_finished")):
        parts.append("observes runs")
    return ", ".join(parts)
