"""The answer of a child process within its time, which is not what it waits for a processor."""

import contextlib
import os
import resource
import subprocess
import sys
import time

import pytest

from mmrl.api.processes import ENVIRONMENT, ChildProcess
from mmrl.api.processes.answers import TookTooLong, answer_to
from mmrl.api.processes.tree import queued_s

PROGRAM = """
import sys, time
from mmrl.api.processes.child import read_request

def computes(seconds):
    read_request()
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    sys.stdout.write("done")

def sleeps(seconds):
    read_request()
    time.sleep(seconds)
    sys.stdout.write("done")

def complains(seconds):
    read_request()
    sys.stderr.write("!" * 300_000)
    sys.stdout.write("done")

def never_reads(seconds):
    time.sleep(seconds)
"""
ONE = min(os.sched_getaffinity(0)) if sys.platform == "linux" else 0
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Linux counts what processes wait for")


@pytest.fixture
def answered(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)

    def run(what, takes, seconds, request=b"go"):
        """(the answer, or None of one that took too long; seconds by the clock) of a child on one processor."""
        child = ChildProcess(f"program:{what}", [takes], file=str(path), environment=ENVIRONMENT, pipes=True)
        os.sched_setaffinity(child.pid, {ONE})
        began = time.monotonic()
        try:
            return answer_to(child, request, seconds, 100), time.monotonic() - began
        except TookTooLong:
            return None, time.monotonic() - began
        finally:
            child.close()

    return run


@contextlib.contextmanager
def others(count):
    """So many endless processes on the same processor."""
    command = [sys.executable, "-S", "-c", "while True: pass"]
    busy = [subprocess.Popen(command, start_new_session=True) for _ in range(count)]  # Linux shares a processor by sessions
    try:
        for process in busy:
            os.sched_setaffinity(process.pid, {ONE})
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


def test_what_others_take_of_the_processor_is_not_its_time(answered):
    with others(9):  # so many that a few more, of whom nobody here knows, hardly count
        answer, took = answered("computes", 0.2, 1.5)
    assert answer == b"done" and took > 1.5, "by the clock it took longer than it may"


def test_who_sleeps_or_computes_without_end_is_stopped_in_time(answered):
    answer, took = answered("sleeps", 60, 1.0)
    assert answer is None and took < 30
    answer, took = answered("computes", 60, 1.0)
    assert answer is None and took < 30
    with others(15):  # the most is three times its time, and not the sixteen that it is held up
        answer, took = answered("computes", 60, 1.0)
    assert answer is None and 2.0 < took < 10


def test_neither_a_full_stderr_nor_a_request_that_nobody_reads_holds_anyone_up(answered):
    assert answered("complains", 0, 10.0)[0] == b"done"
    answer, took = answered("never_reads", 20, 0.5, b"x" * 1_000_000)
    assert answer is None and took < 15


def test_an_answer_is_read_where_many_files_are_open(answered):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1200:
        pytest.skip(f"this process may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 1200), hard))
    held = [os.open(os.devnull, os.O_RDONLY) for _ in range(1030)]
    try:
        assert answered("sleeps", 0, 10.0)[0] == b"done"
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize(
    ("wrapper", "command", "told"),
    [
        ([], "exit 255", "exited with code 255"),
        ([], "kill -9 $$", "was killed by SIGKILL"),
        ([], "kill -40 $$", "was killed by signal 40"),
        (["env"], "exit 255", "exited with code 255"),
        (["env"], "exit 137", "was killed by SIGKILL"),
    ],
)
def test_how_a_process_ended_is_told_of_every_exit_code(wrapper, command, told):
    arguments = ["/bin/sh", ["sh", "-c", command]]
    child = ChildProcess("os:execv", arguments, environment=dict(os.environ), wrapper=wrapper)
    try:
        assert child.exit_code(20) is not None and child.how_it_ended() == told
    finally:
        child.close()


def test_a_tree_waits_as_long_as_its_processes_do():
    with others(1), subprocess.Popen(["bash", "-c", "while :; do :; done & wait"], start_new_session=True) as shell:
        try:
            [loop] = _children(shell.pid)
            os.sched_setaffinity(loop, {ONE})
            time.sleep(1.0)
            assert 0.2 < queued_s(shell.pid) < 3.0
        finally:
            os.killpg(shell.pid, 9)
    assert queued_s(shell.pid) == 0.0


def _children(pid):
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            if found := [int(child) for child in file.read().split()]:
                return found
    raise AssertionError("no child")
