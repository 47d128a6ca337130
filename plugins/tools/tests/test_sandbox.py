"""Programs of the policy: what they can compute, and everything that they can't do."""

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmrl_tools.sandbox import PRINTED, _printed, run_program, runs_as_here
from mmrl_tools.task import WithTools
from mmrl_tools.tool import Refused

from mmrl import UserError
from mmrl.api.processes import sandbox as sandboxes
from mmrl.api.processes.answers import ENDS_S
from mmrl.testing.cases import mostly_slow

pytestmark = pytest.mark.skipif(bool(sandboxes.problem()), reason=f"no sandbox here: {sandboxes.problem()}")
FORBIDDEN = {
    "open('/etc/passwd')": "PermissionError",
    "open('/tmp/x', 'w')": "PermissionError",
    "import os; os.fork()": "PermissionError",
    "import os; os.execv('/bin/sh', ['sh'])": "PermissionError",
    "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.socket(2, 1, 0), ctypes.get_errno())": "-1 1",
    "import os; os.mkdir('/x')": "OSError: [Errno 30]",
    "import ctypes; c = ctypes.CDLL(None, use_errno=True); print(c.shmget(0, 4096, 0o1600), ctypes.get_errno())": "-1 1",
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


def test_what_modules_import_later_is_there():
    code = "from datetime import datetime\nprint(datetime.strptime('2 Jan 2020', '%d %b %Y').date(), '\\N{BULLET}')"
    assert run_program(code) == "2020-01-02 \u2022"


def test_it_runs_on_the_interpreter_of_this_process():
    assert run_program("import sys; print(sys.version)") == sys.version


def test_another_interpreter_is_refused_in_one_line(monkeypatch):
    runs_as_here.cache_clear()
    monkeypatch.setattr(sys, "version", "4.0.0")
    with pytest.raises(UserError, match=r"the tool python would run on Python 3.*, not on 4\.0\.0") as caught:
        WithTools(tools=["python"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("code", mostly_slow(list(FORBIDDEN), everyday=7))
def test_what_a_program_cannot_do(code):
    assert FORBIDDEN[code] in run_program(code)


def test_it_can_only_print_so_much_and_is_stopped_before_its_time_is_up():
    text = run_program("while True:\n    print('x' * 1000)")
    assert len(text) < PRINTED + 20 and text.endswith("... (cut off)")


@pytest.mark.slow
def test_a_gigabyte_at_once_is_no_more_than_it_may_hold():
    assert "MemoryError" in run_program("print('x' * 10**9)")


def test_an_endless_program_is_stopped_in_time():
    started = time.monotonic()
    with pytest.raises(Refused, match="took too long"):
        run_program("while True: pass", seconds=1.0)
    assert time.monotonic() - started < 60


def test_a_program_whose_end_is_not_seen_at_the_deadline_took_too_long():
    """Its output is closed, but the kernel hasn't told its exit code yet."""
    waited = []
    with open(os.devnull, "rb") as closed, open(os.devnull, "rb") as silent, open(os.devnull, "wb", buffering=0) as taken:
        pipes = {"popen": SimpleNamespace(stdin=taken, stdout=closed), "stderr": silent, "listen": lambda: False}
        with pytest.raises(Refused, match="took too long"):
            _printed(SimpleNamespace(**pipes, exit_code=waited.append, pid=0), b"", 0.1)
    assert waited[0] >= ENDS_S


@pytest.mark.slow
def test_a_program_that_reads_or_ends_itself_is_told():
    assert run_program("import sys; print(repr(sys.stdin.read()))") == "''"
    with pytest.raises(Refused, match="exited with code 7"):
        run_program("import os; os._exit(7)")
    with pytest.raises(Refused, match="ended early"):
        run_program("import ctypes; ctypes.string_at(0)")


def held():
    """(number of this process's open files, ids of its children)"""
    children = [path.read_text().split() for path in Path("/proc/self/task").glob("*/children")]
    return len(os.listdir("/proc/self/fd")), children


@pytest.mark.slow
def test_nothing_is_left_of_many_programs():
    before = held()
    for _ in range(5):
        run_program("print(1)")
    with pytest.raises(Refused):
        run_program("while True: pass", seconds=0.5)
    assert held() == before


def test_no_secrets_of_the_run_are_there(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert "secret" not in run_program("import os; print(dict(os.environ))")


def test_a_machine_without_a_sandbox_refuses_the_tool_at_once(monkeypatch):
    monkeypatch.setattr(sandboxes, "problem", lambda: "this is a test")
    with pytest.raises(UserError, match="the tool python needs a sandbox, and this is a test: install bubblewrap"):
        WithTools(tools=["python"])
