"""`mmrl list`: what can be named in a run file."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import click

from mmrl.contract import KINDS, SINGULAR
from mmrl.specs import AlgorithmSpec, Spec, TaskSpec, VerifierSpec


@click.command()
@click.argument("kind", type=click.Choice(list(KINDS)), required=False)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of objects.")
def command(kind: str | None, as_json: bool) -> None:
    """List tasks, verifiers, simulators, policies and algorithms, or one KIND of them."""
    from mmrl import plugins

    registry = plugins.registry()
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
    if failed := [p for p in registry.plugins if p.error]:
        click.echo(f"mmrl: not loaded: {', '.join(p.name for p in failed)}; `mmrl plugins` says why", err=True)


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
