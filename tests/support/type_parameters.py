"""Rewrites the type parameters of an installed package, which are Python 3.12's, for Python 3.11. They are for type checkers and
change nothing that runs. Its argument is the package's name."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path

PARAMETERS = re.compile(r"^(class|def) (\w+)\[([^\]]+)\](?:\((\w+)\)(?=:))?", re.MULTILINE)
FIRST_IMPORT = re.compile(r"^(?=(?:import|from) (?!__future__))", re.MULTILINE)


def rewritten(source: str) -> str:
    names: dict[str, None] = {}

    def without(found: re.Match[str]) -> str:
        kind, name, given, base = found.groups()
        own = [one.partition(":")[0].strip() for one in given.split(",")]
        names.update(dict.fromkeys(own))
        bases = ", ".join([base] * bool(base) + [f"Generic[{', '.join(own)}]"])
        return f"def {name}" if kind == "def" else f"class {name}({bases})"

    source = PARAMETERS.sub(without, re.sub(r"^type (\w+) = ", r"\1 = ", source, flags=re.MULTILINE))
    made = "".join(f'{name} = TypeVar("{name}")\n' for name in names)
    return FIRST_IMPORT.sub(f"from typing import Generic, TypeVar\n{made}", source, count=1) if names else source


def main(package: str) -> None:
    found = importlib.util.find_spec(package)
    assert found is not None and found.submodule_search_locations
    for file in Path(found.submodule_search_locations[0]).rglob("*.py"):
        source = file.read_text("utf-8")
        if (changed := rewritten(source)) != source:
            file.write_text(changed, "utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
