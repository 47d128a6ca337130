"""Programs of the policy, each in a process of its own without files, sockets and further processes.

The process runs in a sandbox in which there is nothing but the interpreter (`mmrl.api.processes.sandbox.bare_wrapper`), and the
kernel refuses it whatever opens a file or a socket or starts a process (`mmrl.api.processes.system_calls`).
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path

from mmrl import UserError
from mmrl.api.errors import shorten
from mmrl.api.processes import CHILD, ENVIRONMENT, ChildProcess
from mmrl.api.processes.answers import EndedEarly, TookTooLong, answer_to
from mmrl.api.processes.sandbox import bare_wrapper, check, interpreter
from mmrl_tools import program
from mmrl_tools.tool import Refused

SECONDS = 5.0
"""Time that a program may take, its start included."""
PRINTED = 2_000
"""Characters of what is printed that are given back."""


TOOL = "the tool python"
PROBE_S = 20.0
"""Time that the first program may take, which is a check."""


def check_sandbox() -> None:
    """Raise UserError if this machine can't run programs."""
    check(TOOL)
    runs_as_here()


@functools.cache
def runs_as_here() -> None:
    """Raise UserError if a program doesn't run on this process's version of Python."""
    try:
        found = run_program("import sys; print(sys.version)", PROBE_S)
    except Refused as error:
        raise UserError(f"{TOOL} can't run a program here: {shorten(error)}: use a Python that bubblewrap can show") from None
    if (found := " ".join(found.split())) != " ".join(sys.version.split()):
        raise UserError(
            f"{TOOL} would run on Python {found:.60}, not on {sys.version:.60}: its shared library is not "
            "where `python -m sysconfig` says (LIBDIR)"
        )


def run_program(code: str, seconds: float = SECONDS) -> str:
    """What a program prints, cut to `PRINTED` characters, or its error. Raises Refused for one that takes too long or crashes
    the interpreter, and UserError where there is no sandbox."""
    check(TOOL)
    own = Path(program.__file__).resolve()
    child = ChildProcess(
        "mmrl_tools_program:main",
        file=str(own),
        python=interpreter(),
        environment={**ENVIRONMENT, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONIOENCODING": "utf-8:replace"},
        pipes=True,
        wrapper=bare_wrapper([CHILD.parent.resolve(), own.parent]),
    )
    try:
        return _printed(child, code.encode("utf-8", "replace"), seconds)
    finally:
        child.close()


def _printed(child: ChildProcess, code: bytes, seconds: float) -> str:
    try:
        return _cut(answer_to(child, code, seconds, 4 * PRINTED))
    except TookTooLong:
        raise Refused("the program took too long and was stopped") from None
    except EndedEarly as error:
        raise Refused(f"the program ended early: it {str(error).partition(';')[0]}") from None


def _cut(output: bytes) -> str:
    text = output.decode("utf-8", "replace").replace("\0", "\ufffd").strip()
    return (text if len(text) <= PRINTED else text[:PRINTED] + " ... (cut off)") or "(nothing was printed)"
