"""`mmrl list [KIND [ID]]`: list what a run file can name, or describe one of them in full."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

from mmrl.api.errors import UserError, did_you_mean
from mmrl.api.specs import AlgorithmSpec, FamilySpec, Spec, TaskSpec, TrackerSpec, VerifierSpec
from mmrl.registry.contract import KINDS, SINGULAR
from mmrl.ui.cli.complete import ids

DETAILS = {
    "tasks": "verifiers",
    "verifiers": "values",
    "simulators": "target",
    "policies": "target",
    "families": "model type",
    "algorithms": "paper",
    "sampling_rules": "target",
    "stages": "target",
    "alarms": "target",
    "trackers": "requires",
}
"""Kind -> title of the column beside the summary in its table."""


class Kind(click.Choice[str]):
    """The first argument, of which errors say what to write in place of an id."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value in KINDS:
            return str(value)
        from mmrl.registry import plugins

        registry = plugins.registry()
        if found := [kind for kind in KINDS if value in registry.specs(kind)]:
            raise UserError(f"{value!r} is one of the {found[0]}: mmrl list {found[0]} {value}")
        if "/" in value:  # an id that is misspelt, or whose plugin isn't there
            registry.get(next((kind for kind in KINDS if did_you_mean(value, registry.specs(kind))), "tasks"), value)
        raise UserError(f"no kind {value!r}.{did_you_mean(value, KINDS)} There are {', '.join(KINDS)}")


@click.command()
@click.argument("kind", type=Kind(list(KINDS)), required=False, metavar="[KIND]")
@click.argument("id", required=False, shell_complete=ids())
@click.option("--json", "as_json", is_flag=True, help="Print JSON, a list of objects.")
def command(kind: str | None, id: str | None, as_json: bool) -> None:
    """List tasks, verifiers, simulators, policies, families of models, algorithms, sampling rules, stages, alarms and trackers,
    or one KIND.

    With an ID, describe that one in full, with its options or settings; only this imports its code.
    """
    from mmrl.registry import plugins

    registry = plugins.registry()
    if kind and id:
        _print_one(registry, kind, id, as_json)
        return
    kinds = [kind] if kind else list(KINDS)
    if as_json:
        rows = [_row(registry, k, spec) for k in kinds for spec in registry.specs(k).values()]
        click.echo(json.dumps(rows, indent=2, default=list))
        return

    for k in kinds:
        if specs := registry.specs(k):
            _table(k, ["id", "summary", DETAILS[k]], [[s.id, s.summary, _details(s)] for s in specs.values()])
        elif kind:
            click.echo(f"There are no {kind}: `mmrl plugins` lists what is installed.")
    if any(registry.specs(k) for k in kinds):
        arguments = "settings" if kind == "algorithms" else "options"
        click.echo(f"`mmrl list {kind or 'tasks'} ID` describes one in full, with its {arguments}.")
    if failed := [p for p in registry.plugins if p.error]:
        click.echo(f"mmrl: not loaded: {', '.join(p.name for p in failed)}; `mmrl plugins` shows why", err=True)


def _print_one(registry: Any, kind: str, id: str, as_json: bool) -> None:
    """Print one spec in full."""
    from mmrl.ui.cli.options import first_line, options_of, settings_of, signals_of

    spec = registry.get(kind, id)
    more: dict[str, Any] = {}
    if isinstance(spec, AlgorithmSpec):
        from mmrl.algorithms.presets import functions_of  # imports torch

        target, loss = functions_of(spec)
        options, more["needs"] = settings_of(spec, target, loss), signals_of(target)
    else:
        target = registry.target(spec)
        options = options_of(kind, spec, target)
    row = _row(registry, kind, spec)
    row["summary"] = row["summary"] or first_line(target)
    if as_json:
        click.echo(json.dumps([row | {"accepts": [dataclasses.asdict(o) for o in options]} | more], indent=2, default=str))
        return

    click.echo(f"{row.pop('kind')} {row.pop('id')}: {row.pop('summary') or 'no summary'}\n")
    row.pop("options")  # the table below shows them as defaults
    if isinstance(spec, TaskSpec):
        row["verifiers"] = _details(spec)
    if isinstance(spec, AlgorithmSpec):
        divisor = "generate.max_tokens" if spec.constant is None else spec.constant
        normalise = f"constant, {_text(divisor)}" if spec.normalise == "constant" else spec.normalise
        row = {"plugin": row["plugin"], "paper": spec.paper, "advantage": spec.target, "loss": spec.loss, "normalise": normalise}
    for name, value in row.items():
        click.echo(f"  {name:<13} {_text(value)}")
    click.echo()
    if isinstance(spec, AlgorithmSpec):
        _table("needs", ["signal", "meaning"], more["needs"].items())
    if options:
        cells = [[o.name, _type(o.type), "required" if o.required else _text(o.default), o.meaning] for o in options]
        title = "settings, in stages.settings" if isinstance(spec, AlgorithmSpec) else "options"
        _table(title, ["name", "type", "default", "meaning"], cells)
    else:
        click.echo("It has no options.")
    if isinstance(spec, AlgorithmSpec) and spec.stage_defaults:
        from mmrl.config.sections import RlStage

        keys = {name: field.description or "" for name, field in RlStage.model_fields.items()}
        cells = [[name, _text(value), keys.get(name, "not a key of an rl stage")] for name, value in spec.stage_defaults.items()]
        _table("defaults of its stage in the run file", ["key", "value", "meaning"], cells)


def _table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    from mmrl.ui.cli.table import escape, print_table

    print_table(title, columns, [[escape(text) for text in row] for row in rows])


def _type(annotation: str) -> str:
    """An annotation to display: the choices of a Literal become `a | b`."""
    return re.sub(r"Literal\[([^\[\]]*)\]", lambda m: m[1].replace(", ", " | "), annotation)


def _text(value: Any) -> str:
    """A value to display: lists and tables as JSON, an empty value as a dash."""
    if value is None or value == "" or value == [] or value == {}:
        return "-"
    if isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False, default=str)


def _row(registry: Any, kind: str, spec: Spec) -> dict[str, Any]:
    plugin = next(p.name for p in registry.plugins if spec.id in p.specs.get(kind, ()))
    fields = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec)}
    return {"kind": SINGULAR[kind], "plugin": plugin} | {name: _plain(value) for name, value in fields.items()}


def _plain(value: Any) -> Any:
    """The value as JSON data."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return sorted(value) if isinstance(value, frozenset) else value


def _details(spec: Spec) -> str:
    """The cell beside the summary, see `DETAILS`."""
    if isinstance(spec, TaskSpec):
        return ", ".join(name if weight == 1 else f"{weight:g} x {name}" for name, weight in spec.verifiers.items())
    if isinstance(spec, VerifierSpec):
        return f"{spec.low:g} to {spec.high:g}"
    if isinstance(spec, FamilySpec):
        return spec.model_type
    if isinstance(spec, TrackerSpec):
        return ", ".join(spec.requires)
    return spec.paper if isinstance(spec, AlgorithmSpec) else spec.target
