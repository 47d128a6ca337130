"""The child's side of `mmrl.api.processes`: what each process that mmrl starts does first, and how it describes an error.

This file is run by its path and imports the standard library alone, so that an interpreter without mmrl can run it.
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
from collections.abc import Callable
from typing import Any, BinaryIO

LONGEST = 500
"""Characters of a line that describes an error."""


def main(request: dict[str, Any]) -> None:
    """Call the function that the parent asks for, with its arguments."""
    sys.modules["mmrl.api.processes.child"] = sys.modules[__name__]  # so that the program can import it where mmrl is missing
    if request["parent"] is not None:
        die_with(request["parent"])
    own = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [folder for folder in sys.path if folder != own] if request["path"] is None else request["path"]
    load(request["program"], request["file"])(*request["arguments"])


def load(target: str, file: str | None = None) -> Callable[..., Any]:
    """`module:name`. With its file, the packages that the module lies in are not imported."""
    module, _, name = target.partition(":")
    if file is None:
        return getattr(importlib.import_module(module), name)
    spec = importlib.util.spec_from_file_location(module, file)
    assert spec and spec.loader
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[module] = loaded
    spec.loader.exec_module(loaded)
    return getattr(loaded, name)


def die_with(parent: int) -> None:
    """Be killed when the parent dies, even while this process hangs. Elsewhere than on Linux a closed pipe has to do."""
    on_death_of_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def on_death_of_parent(number: int) -> None:
    """Send this process a signal when the thread that started it ends; on Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, number)  # PR_SET_PDEATHSIG


def take_pipes() -> tuple[BinaryIO, int]:
    """Keep stdin and stdout for requests and replies; a plugin's code gets an empty stdin, and its prints go to stderr."""
    requests, replies = os.fdopen(os.dup(0), "rb"), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return requests, replies


def is_user_error(error: BaseException) -> bool:
    """Whether the message of an error is for people, and all there is to say: it has an attribute `is_user_error`."""
    return bool(getattr(error, "plain", False))


def describe_error(error: BaseException) -> str:
    """`ValueError: message (file.py:12)`, in one line: the place is where it was raised."""
    if is_user_error(error):
        return short(error)
    *_, (frame, line) = traceback.walk_tb(error.__traceback__)
    place = f" ({os.path.basename(frame.f_code.co_filename)}:{line})"
    try:
        message = short(error)
    except Exception as odd:  # noqa: BLE001  an exception may fail to print itself
        message = f"(its message raised {type(odd).__name__})"
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return text[: LONGEST - len(place)] + place


def short(text: Any) -> str:
    """In one line, cut off at `LONGEST` characters."""
    return " ".join(str(text)[: 2 * LONGEST].split())[:LONGEST]


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
