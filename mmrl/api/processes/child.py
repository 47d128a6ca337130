"""The child's side of `mmrl.api.processes`: the entry point of the processes, and helpers to describe errors.

This file is run by its path and imports only the standard library, so that an interpreter without mmrl can run it.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, BinaryIO

LONGEST = 500
"""Largest number of characters of a line that describes an error."""


def main(request: dict[str, Any]) -> None:
    """Call the function that the request names, with its arguments."""
    sys.modules["mmrl.api.processes.child"] = sys.modules[__name__]  # so that the program can import it where mmrl is missing
    if request["parent"] is not None:
        die_with(request["parent"])
    if request["guard"]:
        beside("guard").guard()
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != own] if request["path"] is None else request["path"]
    load(request["program"], request["file"])(*request["arguments"])


def load(target: str, file: str | None = None) -> Callable[..., Any]:
    """The object at `module:name`. With `file`, the module is loaded from there and its parent packages are not imported."""
    module, _, name = target.partition(":")
    if file is None:
        return getattr(importlib.import_module(module), name)
    return getattr(_loaded(module, file), name)


def _loaded(name: str, file: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def beside(name: str) -> ModuleType:
    """The module of this name in this file's folder, loaded as `mmrl_NAME`; it imports the standard library alone."""
    return _loaded(f"mmrl_{name}", os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py"))


def read_request() -> bytes:
    """The request that `mmrl.api.processes.answers.answer_to` wrote to stdin."""
    length = int.from_bytes(sys.stdin.buffer.read(8), "big")
    return sys.stdin.buffer.read(length)


def limit(resources: Mapping[int, int]) -> None:
    """Bound this process's resources for good. resources: of the module `resource` -> most."""
    import resource

    for kind, most in resources.items():
        resource.setrlimit(kind, (most, most))


def die_with(parent: int) -> None:
    """Have this process killed when the parent dies, even while it hangs. On Linux only; on other systems it has to notice the
    closed pipe."""
    on_death_of_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def on_death_of_parent(number: int) -> None:
    """Have the kernel send this process a signal when the thread that started it ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def take_pipes() -> tuple[BinaryIO, int]:
    """Reserve stdin and stdout for requests and replies, which are returned: (requests, file descriptor of replies). The plugin's
    code gets an empty stdin, and its prints go to stderr."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, replies


def is_user_error(error: BaseException) -> bool:
    """Whether the message of an error is meant for users and needs no type and place: the exception has `plain = True`."""
    return bool(getattr(error, "plain", False))


def describe_error(error: BaseException) -> str:
    """`ValueError: message (file.py:12)` in one line, with the place where it was raised; of a user error only the message."""
    if is_user_error(error):
        return short(error)
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    place = f" ({os.path.basename(frame.f_code.co_filename)}:{line})"
    try:
        message = short(error)
    except Exception as second:  # noqa: BLE001  `str` of an exception may raise
        message = f"(its message raised {type(second).__name__})"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text[: LONGEST - len(place)] + place


def short(text: Any) -> str:
    """The text in one line of at most `LONGEST` characters."""
    return " ".join(str(text)[: 2 * LONGEST].split())[:LONGEST]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
