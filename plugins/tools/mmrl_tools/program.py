"""The side of the sandbox: read a program from stdin, give up all rights, run it.

Run by its path (`mmrl.api.processes.child`), so it imports the standard library and that module alone.
"""

from __future__ import annotations

import importlib
import os
import resource
import sys

from mmrl.api.processes.child import beside, limit, read_request

MODULES: tuple[str, ...] = (
    *("math", "cmath", "statistics", "fractions", "decimal", "random", "itertools", "functools", "collections", "re", "json"),
    *("string", "operator", "heapq", "bisect", "datetime", "textwrap", "numbers", "dataclasses", "typing", "io", "traceback"),
    *("_strptime", "calendar", "array", "unicodedata"),  # datetime's strptime imports the first, "\N{BULLET}" the last
)
"""What a program can import: no module can be opened later."""
MEMORY = 512 * 2**20
"""Address space in bytes."""
SECONDS = 10
"""Processor time; the other side stops the program earlier by the clock."""
DEPTH = 5_000
"""Python's recursion limit."""


def main() -> None:
    """Run the program on stdin; its errors are printed behind what it printed."""
    code = read_request().decode("utf-8", "replace")
    for name in MODULES:
        importlib.import_module(name)
    system_calls = beside("system_calls")
    os.dup2(1, 2)
    most = {resource.RLIMIT_AS: MEMORY, resource.RLIMIT_CPU: SECONDS, resource.RLIMIT_FSIZE: 0, resource.RLIMIT_CORE: 0}
    limit(most)
    sys.setrecursionlimit(DEPTH)
    sys.path.clear()
    system_calls.forbid(system_calls.FILES_AND_PROCESSES)
    try:
        exec(compile(code, "<program>", "exec"), {"__name__": "__main__"})
    except SystemExit:
        pass
    except BaseException as error:  # noqa: BLE001  whatever the program raises is its answer
        print(f"{type(error).__name__}: {str(error)[:300]}")
    try:
        sys.stdout.flush()
    finally:
        os._exit(0)
