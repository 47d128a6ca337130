"""Run something in a child process, because code of a plugin may end the process that runs it."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

from mmrl.api.errors import UserError
from mmrl.compute.crossing import attempt


def apart(work: Callable[[], Any], what: str) -> Any:
    """What `work` returns, from a fork of this process.

    Raises UserError as `work` does, and when the fork dies without a result.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        _work(work, reading, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if not answer:
        code = os.waitstatus_to_exitcode(status)
        how = f"was killed by signal {-code}" if code < 0 else f"ended itself with exit code {code}"
        raise UserError(f"{what}: its process {how} without a result: code that is checked must not exit or crash")
    return pickle.loads(answer).result("another process")


def _work(work: Callable[[], Any], reading: int, writing: int) -> None:
    me, code = os.getpid(), 1
    try:
        os.close(reading)
        answer = attempt(work)
        if os.getpid() == me:  # not a process that the work left behind
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(answer))
            code = 0
    except Exception:  # noqa: BLE001  told here, since nothing above may run in the child
        traceback.print_exc()
    finally:
        os._exit(code)
