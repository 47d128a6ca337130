"""Run a function in a forked child, because plugin code may exit or crash its process."""

from __future__ import annotations

import os
import pickle
import traceback
from collections.abc import Callable
from typing import Any

import click

from mmrl.api.errors import PluginError, UserError


def apart(work: Callable[[], Any], what: str) -> Any:
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
    result, fault, trace = pickle.loads(answer)
    if trace:
        click.echo(trace, err=True, nl=False)
    if fault is not None:
        raise UserError(fault)
    return result


def _work(work: Callable[[], Any], reading: int, writing: int) -> None:
    me, code = os.getpid(), 1
    try:
        os.close(reading)
        answer: tuple[Any, str | None, str]
        try:
            answer = (work(), None, "")
        except UserError as error:
            cause = error.__cause__ if isinstance(error, PluginError) else None  # the traceback helps the plugin's author
            answer = (None, str(error), "".join(traceback.format_exception(cause)) if cause else "")
        if os.getpid() == me:  # and not in a process that `work` forked
            with os.fdopen(writing, "wb") as pipe:
                pipe.write(pickle.dumps(answer))
            code = 0
    except Exception:  # noqa: BLE001  printed here: no caller's code may run in the child
        traceback.print_exc()
    finally:
        os._exit(code)
