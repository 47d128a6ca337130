"""The import contracts of pyproject.toml over mmrl and packages in plugins/ and sims/: `python tests/support/contracts.py`.

It also prints which room of mmrl imports from which, and a circle of modules if there is one."""

from __future__ import annotations

import graphlib
import os
import sys
import tempfile
import tomllib
from functools import partial
from pathlib import Path
from typing import Any

import grimp
import tomli_w
from importlinter.cli import lint_imports

ROOT = Path(__file__).parents[2]
PLACEHOLDER = "PLUGINS"


def packages(root: Path = ROOT) -> list[str]:
    """The import names of the bundled plugins and simulators."""
    return sorted(path.parent.name for place in ("plugins", "sims") for path in root.glob(f"{place}/*/mmrl_*/__init__.py"))


def contracts(plugins: list[str]) -> dict[str, Any]:
    """The linter's settings with the plugins in place of the placeholder: all of them as roots, and side by side in a layer."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    roots = [name for name in settings["root_packages"] if name != PLACEHOLDER]
    settings["root_packages"] = [*roots, *plugins]
    for contract in settings["contracts"]:
        if "layers" in contract:
            contract["layers"] = [layer.replace(PLACEHOLDER, " | ".join(plugins)) for layer in contract["layers"]]
    return settings


def graph() -> grimp.ImportGraph:
    """What the modules of mmrl import of each other; imports for type checkers count."""
    return grimp.build_graph("mmrl")


def arrows(found: grimp.ImportGraph) -> dict[str, list[str]]:
    """Room -> the rooms that it imports from."""
    rooms = sorted(found.find_children("mmrl"))
    imports = partial(found.direct_import_exists, as_packages=True)
    return {room: [other for other in rooms if other != room and imports(importer=room, imported=other)] for room in rooms}


def circle(found: grimp.ImportGraph) -> list[str]:
    """Modules that import each other in a circle, the first of them again at the end; empty if there are none."""
    try:
        graphlib.TopologicalSorter({m: found.find_modules_directly_imported_by(m) for m in found.modules}).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def main() -> int:
    os.chdir(ROOT)
    found = graph()
    for room, others in arrows(found).items():
        print(f"{room:20} {' '.join(other.removeprefix('mmrl.') for other in others)}")
    count = sum(map(len, arrows(found).values()))
    print(f"{len(arrows(found))} rooms, {count} arrows between them, circle of modules: {' -> '.join(circle(found)) or 'none'}")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "contracts.toml"
        path.write_text(tomli_w.dumps({"tool": {"importlinter": contracts(packages())}}), "utf-8")
        return lint_imports(config_filename=str(path))


if __name__ == "__main__":
    sys.exit(main())
