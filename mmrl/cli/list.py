"""`mmrl list`: what can be named in a run file, and all about one of them."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from mmrl.cli.complete import ids
from mmrl.contract import KINDS, SINGULAR
from mmrl.specs import AlgorithmSpec, Spec, TaskSpec, VerifierSpec


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
@click.argument("id", required=False, shell_complete=ids())
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of objects.")
def command(kind: str | None, id: str | None, as_json: bool) -> None:
    """List tasks, verifiers, simulators, policies and algorithms, or one KIND of them.

    With an ID, say all about that one, its options among it; only this imports what the id stands for.
    """
    from mmrl import plugins

    registry = plugins.registry()
    if kind and id:
        _one(registry, kind, id, as_json)
        return
    kinds = [kind] if kind else list(KINDS)
    if as_json:
        rows = [_row(registry, k, spec) for k in kinds for spec in registry.specs(k).values()]
        click.echo(json.dumps(rows, indent=2, default=list))
        return

    from mmrl.cli.table import escape, print_table

    for k in kinds:
        if specs := registry.specs(k):
            cells = [[escape(text) for text in (s.id, s.summary, _details(s))] for s in specs.values()]
            print_table(k, ["id", "what it is", "details"], cells)
        elif kind:
            click.echo(f"There are no {kind} yet: see `mmrl plugins` for what is installed.")
    if any(registry.specs(k) for k in kinds):
        click.echo(f"`mmrl list {kind or 'tasks'} ID` says all about one, its options among it.")
    if failed := [p for p in registry.plugins if p.error]:
        click.echo(f"mmrl: not loaded: {', '.join(p.name for p in failed)}; `mmrl plugins` says why", err=True)


def _one(registry: Any, kind: str, id: str, as_json: bool) -> None:
    """One spec in full."""
    from mmrl.cli.options import first_line, options_of

    spec = registry.get(kind, id)
    target = registry.target(spec)
    options = options_of(kind, spec, target)
    row = _row(registry, kind, spec)
    row["summary"] = row["summary"] or first_line(target)
    if as_json:
        click.echo(json.dumps([row | {"accepts": [dataclasses.asdict(o) for o in options]}], indent=2, default=str))
        return

    from mmrl.cli.table import escape, print_table

    click.echo(f"{row.pop('kind')} {row.pop('id')}: {row.pop('summary') or 'it has no summary'}\n")
    row.pop("options")  # the table's defaults
    if isinstance(spec, TaskSpec):
        row["verifiers"] = _details(spec)
    for name, value in row.items():
        click.echo(f"  {name:<13} {_text(value)}")
    click.echo()
    if options:
        cells = [[o.name, o.type, "required" if o.required else _text(o.default), o.meaning] for o in options]
        print_table("options", ["name", "type", "default", "what it is"], [[escape(text) for text in c] for c in cells])
    else:
        click.echo("It has no options.")


def _text(value: Any) -> str:
    """A value for people: lists and tables as in JSON, nothing as a dash."""
    if value is None or value == "" or value == [] or value == {}:
        return "-"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _row(registry: Any, kind: str, spec: Spec) -> dict[str, Any]:
    plugin = next(p.name for p in registry.plugins if spec.id in p.specs.get(kind, ()))
    fields = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    return {"kind": SINGULAR[kind], "plugin": plugin} | {
        name: dict(value) if hasattr(value, "items") else sorted(value) if isinstance(value, frozenset) else value
        for name, value in fields.items()
    }


def _details(spec: Spec) -> str:
    """What one wants to know beside the summary, by kind."""
    if isinstance(spec, TaskSpec):
        return ", ".join(name if weight == 1 else f"{weight:g} x {name}" for name, weight in spec.verifiers.items())
    if isinstance(spec, VerifierSpec):
        return f"{spec.low:g} to {spec.high:g}"
    return spec.paper if isinstance(spec, AlgorithmSpec) else spec.target
