"""Run a function in a forked child, because plugin code may exit or crash its process."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

from mmrl.api.errors import UserError
from mmrl.compute.crossing import attempt


def run_in_fork(work: Callable[[], Any], what: str) -> Any:
    """Return the (picklable) result of `work()`, called in a fork of this process. what: the work's name in error messages.

    Raises the UserError that `work` raises, and a UserError when the fork dies without a result.
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
        raise UserError(f"{what}: its process {how} before it returned a result: the checked code must not exit or crash")
    return pickle.loads(answer).result("another process")


def _work(work: Callable[[], Any], reading: int, writing: int) -> None:
    me, code = os.getpid(), 1
    try:
        os.close(reading)
        answer = attempt(work)
        if os.getpid() == me:  # and not in a process that `work` forked
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(answer))
            code = 0
    except Exception:  # noqa: BLE001  printed here: no caller's code may run in the child
        traceback.print_exc()
    finally:
        os._exit(code)
