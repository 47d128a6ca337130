"""Pages of the Python reference, from the code: the names of `mmrl`, and each module that a plugin may import."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import mmrl
from mmrl.api.errors import UserError
from mmrl.api.specs import VerifierSpec
from mmrl.registry import plugins
from mmrl.registry.contract import KINDS
from mmrl.ui.cli.options import first_line

ROOT = Path(__file__).resolve().parents[2]


def modules() -> list[str]:
    """The public modules: `mmrl.api` and `mmrl.testing`, without those that only hold others."""
    found = []
    for path in sorted([*(ROOT / "mmrl/api").rglob("*.py"), *(ROOT / "mmrl/testing").rglob("*.py")]):
        if path.name == "moved.py" or (path.name[0] == "_" and path.name != "__init__.py"):
            continue
        if path.name == "__init__.py" and len(ast.parse(path.read_text("utf-8")).body) < 2:
            continue
        found.append(".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"))
    return found


def summary(module: str) -> str:
    """The first sentence of a module's docstring."""
    path = ROOT / module.replace(".", "/")
    path = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    said = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    if not said:
        raise UserError(f"{path.relative_to(ROOT)}:1: the module has no docstring, which the reference shows: write one")
    return " ".join(said.split("\n\n")[0].split()).partition(". ")[0].rstrip(".:") + "."


def names_page() -> str:
    """What a run file can name besides tasks and simulators, which the gallery shows, from the registry."""
    registry = plugins.registry()
    lines = [
        "# Names for run files",
        "",
        "What a run file can name, made from the installed plugins. [The gallery](../gallery/index.md) has tasks and simulators;",
        "`mmrl list KIND ID` shows the options of each.",
        "",
    ]
    for kind in KINDS:
        specs = registry.specs(kind)
        if kind in ("tasks", "simulators") or not specs:
            continue
        lines += [f"## {kind.replace('_', ' ').capitalize()}", "", "| id | plugin | what it is |", "|---|---|---|"]
        for spec in specs.values():
            said = spec.summary or first_line(registry.target(spec))
            if isinstance(spec, VerifierSpec):
                said = f"{said.rstrip('.')} ({spec.low:g} to {spec.high:g})"
            said = said.rstrip(".").replace("|", "\\|").replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*")
            lines.append(f"| `{spec.id}` | {registry.plugin_of(spec).name} | {said} |")
        lines.append("")
    return "\n".join(lines)


def pages() -> dict[str, str]:
    """Path in the site -> Markdown."""
    names = []
    for name in mmrl.__all__:
        value = getattr(mmrl, name)
        home = getattr(value, "__module__", "")
        if name in ("CONTRACT", "hookimpl"):
            home = "mmrl.api.hooks"
        elif not isinstance(value, type) and not inspect.isfunction(value):
            home = "mmrl.api.types"  # an alias of a type
        said = "" if isinstance(value, int) else " ".join((value.__doc__ or "").split("\n\n")[0].split()).partition(". ")[0]
        if name == "hookimpl":
            said = "Decorator: marks a function as the implementation of a hook"
        elif name == "CONTRACT":
            said = f"Version of the plugin interface, now {value}"
        if not said:
            raise UserError(f"mmrl/__init__.py: mmrl.{name} has no docstring, which the reference shows: write one in {home}")
        link = "(mmrl.api.hooks.md)" if name == "hookimpl" else f"[{home}.{name}]"
        names.append(f"| [`{name}`]{link} | {said.rstrip('.:').replace('|', chr(92) + '|')} |")
    listed = [f"| [`{module}`]({module}.md) | {summary(module)} |" for module in modules()]
    index = "\n".join(
        [
            "# Python",
            "",
            "Made from the code. What is here is public: [promises](../promises.md) says what that means.",
            "A plugin imports `mmrl`, `mmrl.api` and `mmrl.testing`, and nothing else of the package.",
            "[Examples](../examples.md) show each name at work, and are run by a test.",
            "",
            "What is written into files has pages of its own: [run-file keys](../run-files.md#every-key),",
            "[names for run files](names.md), [metrics](../run-folder.md#metrics), [alarms](../diagnostics.md),",
            "[commands](../cli.md).",
            "",
            "## The names of `mmrl`",
            "",
            "| name | what it is |",
            "|---|---|",
            *names,
            "",
            "## Modules",
            "",
            "| module | what is in it |",
            "|---|---|",
            *listed,
            "",
        ]
    )
    made = {"reference/index.md": index, "reference/names.md": names_page()}
    for module in modules():
        made[f"reference/{module}.md"] = f"# `{module}`\n\n::: {module}\n"
    return made
