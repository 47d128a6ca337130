"""Learners that are started on this machine, and what asks a run to end: a terminal that closes, under nohup too, and Ctrl-C that
ranks don't hear."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time

import pytest

from mmrl.api.errors import UserError
from mmrl.compute import processes, ranks

ASKED = """
import os, signal, sys, time
from mmrl.api.signals import on_termination

before = signal.getsignal(signal.SIGHUP)
told = []
with on_termination(told.append), open("said", "w") as said:
    sys.stderr.write("ready\\n")
    until = time.monotonic() + float(sys.argv[1])
    while not told and time.monotonic() < until:
        time.sleep(0.01)
    print("nobody reads this", flush=True)
    said.write(" ".join(map(str, told)))
assert signal.getsignal(signal.SIGHUP) == before
"""


def hung_up(folder, *command):
    """A command whose terminal closes as soon as it wrote something into it: its exit code."""
    ours, theirs = os.openpty()
    files = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    process = subprocess.Popen(command, cwd=folder, **files, start_new_session=True, preexec_fn=own_terminal)
    os.close(theirs)
    read = b""
    while b"\n" not in read:
        read += os.read(ours, 1000)
    os.close(ours)
    return process.wait(30)


def own_terminal():
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def test_a_terminal_that_closes_asks_for_the_end_and_is_written_to_no_more(tmp_path):
    assert hung_up(tmp_path, sys.executable, "-c", ASKED, "30") == 0
    assert (tmp_path / "said").read_text() == str(int(signal.SIGHUP))


def test_under_nohup_its_end_is_not_heard_of(tmp_path):
    assert hung_up(tmp_path, "sh", "-c", 'trap "" HUP; exec "$0" -c "$1" 1 > kept', sys.executable, ASKED) == 0
    assert (tmp_path / "said").read_text() == "" and (tmp_path / "kept").read_text() == "nobody reads this\n"


DEAF = "import signal, sys, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print(flush=True); time.sleep(60)"


@pytest.mark.parametrize("times, grace", [(2, 0.2), (3, 60.0)])
def test_ranks_that_hear_no_ctrl_c_are_killed_in_the_end(monkeypatch, capfd, times, grace):
    """After a second one when their time is over, after a third at once."""
    monkeypatch.setattr(processes, "GRACE_S", grace)
    ranks = [subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) for _ in range(2)]
    for rank in ranks:
        with rank.stdout as ready:
            ready.readline()
        rank.send_signal(signal.SIGINT)
    began = time.monotonic()
    assert processes._wait(ranks, [signal.SIGINT] * times) == 130
    assert time.monotonic() - began < 40 and all(rank.returncode == -signal.SIGKILL for rank in ranks)
    assert capfd.readouterr().err == "mmrl: ranks that didn't end by themselves were killed: 0, 1; continue with --resume\n"


def test_a_rank_that_hangs_while_the_others_give_up_is_named(monkeypatch, capfd):
    """As one that never comes to a collective: the deadline of the others ends them, and it is killed."""
    monkeypatch.setattr(processes, "GRACE_S", 0.2)
    gives_up = f"import sys; sys.exit({processes.RANK_LOST_EXIT_CODE})"
    ranks = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.DEVNULL) for code in (gives_up, DEAF)]
    assert processes._wait(ranks, []) != 0
    assert capfd.readouterr().err.startswith("mmrl: ranks that didn't end by themselves were killed: 1; continue with --resume\n")


def test_a_machine_is_not_filled_with_processes(monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    processes.check_process_count("compute.learners = 32", 32)
    with pytest.raises(UserError, match=r"compute\.learners = 33: 33 processes are too many for the 2 cores .*: ask for fewer"):
        processes.launch(33, [], on_gpu=False)


@pytest.mark.parametrize("number, count", [("x", "2"), ("0", "two"), ("2", "2"), ("-1", "2"), ("0", "0"), ("0", "-3"), ("", "2")])
def test_an_environment_that_makes_no_sense_is_refused(monkeypatch, number, count):
    monkeypatch.setenv("RANK", number)
    monkeypatch.setenv("WORLD_SIZE", count)
    with pytest.raises(UserError, match=r"RANK = '.*' must be below WORLD_SIZE = '.*': leave both to torchrun, or unset them"):
        with ranks.process_group(on_gpu=False):
            pass


def test_a_number_without_a_count_is_somebody_elses(monkeypatch):
    monkeypatch.setenv("RANK", "5")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with ranks.process_group(on_gpu=False):
        assert ranks.world_size() == 1
