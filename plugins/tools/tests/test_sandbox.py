"""Programs of the policy: what they can compute, and everything that they can't do."""

import os
import time

import pytest
from mmrl_tools.sandbox import PRINTED, run_program
from mmrl_tools.task import WithTools
from mmrl_tools.tool import Refused

from mmrl import UserError
from mmrl.api.processes import sandbox as sandboxes
from mmrl.testing.cases import mostly_slow

pytestmark = pytest.mark.skipif(bool(sandboxes.problem()), reason=f"no sandbox here: {sandboxes.problem()}")
FORBIDDEN = {
    "open('/etc/passwd')": "PermissionError",
    "open('/tmp/x', 'w')": "PermissionError",
    "import os; os.fork()": "PermissionError",
    "import os; os.execv('/bin/sh', ['sh'])": "PermissionError",
    "import _socket; _socket.socket()": "PermissionError",
    "import os; os.mkdir('/x')": "Error",
    "import os; os.stat('/home')": "FileNotFoundError",
    "import os; os.listdir('/')": "PermissionError",
    "import subprocess": "ModuleNotFoundError",
    "import socket": "ModuleNotFoundError",
    "import numpy": "ModuleNotFoundError",
    "import mmrl": "ModuleNotFoundError",
    "x = [0] * 10**10": "MemoryError",
    "def f(): f()\nf()": "RecursionError",
    "(" * 5000: "SyntaxError",
    "1 / 0": "ZeroDivisionError: division by zero",
    "\x00": "Error",
}


def test_a_program_computes_and_prints():
    assert run_program("import math\nprint(sum(range(5)), math.floor(2.5))\nprint('é')") == "10 2\né"


@pytest.mark.parametrize("code", mostly_slow(list(FORBIDDEN), everyday=6))
def test_what_a_program_cannot_do(code):
    assert FORBIDDEN[code] in run_program(code)


def test_it_can_only_print_so_much_and_is_stopped_soon():
    started = time.monotonic()
    text = run_program("while True:\n    print('x' * 1000)")
    assert len(text) < PRINTED + 20 and text.endswith("... (cut off)") and time.monotonic() - started < 4


@pytest.mark.slow
def test_a_gigabyte_at_once_is_no_more_than_it_may_hold():
    assert "MemoryError" in run_program("print('x' * 10**9)")


def test_an_endless_program_is_stopped_in_time():
    started = time.monotonic()
    with pytest.raises(Refused, match="took too long"):
        run_program("while True: pass", seconds=1.0)
    assert time.monotonic() - started < 4


@pytest.mark.slow
def test_a_program_that_reads_or_ends_itself_is_told():
    assert run_program("import sys; print(repr(sys.stdin.read()))") == "''"
    with pytest.raises(Refused, match="exited with code 7"):
        run_program("import os; os._exit(7)")
    with pytest.raises(Refused, match="ended early"):
        run_program("import ctypes; ctypes.string_at(0)")


@pytest.mark.slow
def test_nothing_is_left_of_many_programs():
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        run_program("print(1)")
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_secrets_of_the_run_are_there(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert "secret" not in run_program("import os; print(dict(os.environ))")


def test_a_machine_without_a_sandbox_refuses_the_tool_at_once(monkeypatch):
    monkeypatch.setattr(sandboxes, "problem", lambda: "this is a test")
    with pytest.raises(UserError, match="the tool python needs a sandbox, and this is a test: install bubblewrap"):
        WithTools(tools=["python"])
