"""`mmrl plugins`: list the installed plugins and the errors of those that fail to load."""

from __future__ import annotations

import json
import traceback

import click

from mmrl.registry.contract import SINGULAR
from mmrl.registry.distributions import foreign_owners
from mmrl.registry.plugin_info import PluginInfo
from mmrl.registry.plugins import registry


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print a JSON list of objects.")
@click.option("--errors", is_flag=True, help="List only plugins that failed, with tracebacks; exit code 1 if any did.")
def command(as_json: bool, errors: bool) -> None:
    """List plugins with their tasks, verifiers and so on, or with the error of one that failed to load."""
    for line in foreign_owners():
        click.echo(f"mmrl: warning: {line}", err=True)
    listed = [p for p in registry().plugins if p.error or not errors]
    if as_json:
        click.echo(json.dumps([p.as_json() for p in listed], indent=2))
    elif errors:
        for p in listed:
            if p.cause:
                click.echo("".join(traceback.format_exception(p.cause)), nl=False)
            click.echo(f"{p.label} {p.error}\n")
        if not listed:
            click.echo("All plugins load.")
    else:
        _print(listed)
    if errors and listed:
        raise click.exceptions.Exit(1)


def _print(listed: list[PluginInfo]) -> None:
    from mmrl.ui.cli.table import escape, print_table

    print_table(
        "plugins",
        ["name", "version", "contract", "from", "brings"],
        [
            [
                escape(p.name),
                p.version or "",
                str(p.contract or ""),
                escape(p.dist or p.target),
                f"[red]{escape(p.error)}[/red]" if p.error else _brings(p),
            ]
            for p in listed
        ],
    )
    if any(p.error for p in listed):
        click.echo("`mmrl plugins --errors` shows the tracebacks.")


def _brings(plugin: PluginInfo) -> str:
    """`2 tasks, 1 verifier, observes runs`."""
    named = {kind: (SINGULAR[kind], kind.replace("_", " ")) for kind in plugin.specs}
    parts = [f"{len(ids)} {named[kind][len(ids) != 1]}" for kind, ids in plugin.specs.items() if ids]
    if "mmrl_commands" in plugin.hooks:
        parts.append("commands")
    if any(h in plugin.hooks for h in ("mmrl_run_started", "mmrl_step_finished", "mmrl_run_finished")):
        parts.append("observes runs")
    return ", ".join(parts)
