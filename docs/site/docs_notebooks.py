"""Run a notebook without Jupyter: code cells in order in one name space, `!command` in a shell, `%%writefile NAME`."""

from __future__ import annotations

import ast
import json
import subprocess
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def cells(path: Path) -> list[tuple[int, str]]:
    """(number from 1, source) of the code cells."""
    found = json.loads(path.read_text("utf-8"))["cells"]
    return [(n, "".join(cell["source"])) for n, cell in enumerate(found, 1) if cell["cell_type"] == "code"]


def run(path: Path, env: dict[str, str]) -> dict[str, Any]:
    """The names after the last cell. Raises RuntimeError that names the cell of a failure."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for number, source in cells(path):
        try:
            _cell(source, names, env)
        except subprocess.CalledProcessError as error:
            raise RuntimeError(f"{path.name}, cell {number}: {error.cmd}: {error.stdout[-1000:]}") from error
        except Exception as error:
            raise RuntimeError(f"{path.name}, cell {number}: {error!r}") from error
    return names


def _cell(source: str, names: dict[str, Any], env: dict[str, str]) -> None:
    if source.startswith("%%writefile "):
        first, _, body = source.partition("\n")
        Path(first.removeprefix("%%writefile ").strip()).write_text(body, "utf-8")
        return
    python: list[str] = []
    for line in [*source.splitlines(), None]:
        if line is not None and not line.startswith("!"):
            python.append(line)
            continue
        exec(compile(ast.parse("\n".join(python)), "<cell>", "exec"), names)
        python.clear()
        if line is not None:
            both = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            subprocess.run(line[1:], shell=True, check=True, text=True, env=env, timeout=600, **both)
