"""The import contracts of pyproject.toml over mmrl and packages in plugins/ and sims/: `python tests/support/contracts.py`."""

from __future__ import annotations

import os
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

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


def main() -> int:
    os.chdir(ROOT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "contracts.toml"
        path.write_text(tomli_w.dumps({"tool": {"importlinter": contracts(packages())}}), "utf-8")
        return lint_imports(config_filename=str(path))


if __name__ == "__main__":
    sys.exit(main())
