"""Pages of the Python reference, from the code: the names of `mmrl`, and each module that a plugin may import."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import mmrl
from mmrl.api.errors import UserError

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
    made = {"reference/index.md": index}
    for module in modules():
        made[f"reference/{module}.md"] = f"# `{module}`\n\n::: {module}\n"
    return made
