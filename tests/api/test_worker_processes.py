"""`mmrl.api.simulators.processes`: environments in processes, and what becomes of those that fail. They are
`tests/support/toy_environment.py`."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import pytest

from mmrl.api.errors import UserError
from mmrl.api.simulators.processes import EnvironmentProcesses
from mmrl.testing.cases import mostly_slow
from processes import alive, gone

WHAT = "toy/environment"
FAR = 60.0
"""Seconds that nothing here takes, even on a busy machine."""


@pytest.fixture
def workers() -> Iterator[Callable[..., EnvironmentProcesses]]:
    made: list[EnvironmentProcesses] = []

    def make(
        num_envs: int = 3, timeout_s: float = FAR, factory: str = "toy_environment:Environment", **options: Any
    ) -> EnvironmentProcesses:
        rest = {k: options.pop(k) for k in ("python", "environment", "start_s") if k in options}
        made.append(EnvironmentProcesses(factory, options, num_envs, what=WHAT, timeout_s=timeout_s, **rest))
        return made[-1]

    yield make
    for each in made:
        each.close()


def actions(*rows: tuple[float, float]) -> numpy.ndarray:
    return numpy.array(rows, numpy.float32)


def test_rows_are_what_the_environments_show(workers: Callable[..., EnvironmentProcesses]) -> None:
    made = workers()
    assert made.facts["dims"] == 2 and made.facts["threads"] == "1"
    assert {name: (a.shape, a.dtype.name) for name, a in made.rows.items()} == {
        "picture": ((3, 2, 2, 3), "uint8"),
        "state": ((3, 2), "float32"),
        "over": ((3,), "bool"),
    }
    made.reset({0: 10, 1: 20, 2: 30})
    assert made.step(actions((1, 0), (2, 0), (3, 0)), [0, 1, 2]) == {}
    assert made.rows["state"].tolist() == [[11, 1], [22, 1], [33, 1]]
    assert made.rows["picture"][:, 1, 1, 2].tolist() == [11, 22, 33]
    assert made.step(actions((1, 0), (numpy.nan, 1), (3, 0)), [0, 2]) == {}, "those that aren't asked do nothing"
    made.reset({1: 7})
    assert made.rows["state"].tolist() == [[12, 2], [7, 0], [36, 2]]
    assert made.rows["over"].tolist() == [False, False, False] and made.lost == 0


def test_states_come_back_in_other_places(workers: Callable[..., EnvironmentProcesses]) -> None:
    made = workers(2)
    made.reset({0: 10, 1: 20})
    states = made.call([1, 0], "snapshot")
    assert [state[0] for state in states] == [20, 10] and len(states[0][2]) == 300_000
    made.step(actions((1, 0), (1, 0)), [0, 1])
    made.restore({0: states[0], 1: states[1]})
    assert made.rows["state"].tolist() == [[20, 0], [10, 0]]


@pytest.mark.parametrize(
    "how,why",
    [
        (1, "its process was killed by SIGKILL"),
        (3, "ValueError: the point is lost (toy_environment.py:"),
        (5, "its process exited with code 3; stderr: goodbye"),
        (6, "ValueError: its picture is uint8 [3, 3, 3], and at first it was uint8 [2, 2, 3]"),
    ],
)
def test_an_environment_that_fails_is_lost_and_begun_anew(
    workers: Callable[..., EnvironmentProcesses], how: int, why: str
) -> None:
    made = workers()
    made.reset({0: 10, 1: 20, 2: 30})
    before = made.pid(1)
    lost = made.step(actions((1, 0), (1, how), (1, 0)), [0, 1, 2])
    assert list(lost) == [1] and lost[1].startswith(why)
    assert made.lost == 1 and made.why[0].startswith(f"environment 1: {why}")
    assert before and gone(before, 20) and made.pid(1) is None
    assert made.rows["state"][[0, 2]].tolist() == [[11, 1], [31, 1]], "the others went on"
    again = made.step(actions((1, 0), (1, 0), (1, 0)), [0, 1, 2])
    assert list(again) == [1] and "not reset since" in again[1] and made.lost == 1, "a loss is counted once"
    with pytest.raises(UserError, match=r"toy/environment: environment 1 was lost: reset it first"):
        made.call([1], "snapshot")
    made.reset({1: 5})
    assert made.pid(1) not in (None, before)
    assert made.step(actions((1, 0), (1, 0), (1, 0)), [0, 1, 2]) == {}
    assert made.rows["state"].tolist() == [[13, 3], [6, 1], [33, 3]]


def test_what_an_environment_refuses_loses_nothing(workers: Callable[..., EnvironmentProcesses]) -> None:
    made = workers(2)
    made.reset({0: 10, 1: 20})
    pids = made.pid(0), made.pid(1)
    with pytest.raises(UserError, match=r"^toy/environment: that is no way to go$"):
        made.step(actions((1, 7), (1, 0)), [0, 1])
    assert made.step(actions((1, 0), (1, 0)), [0, 1]) == {} and made.lost == 0 and pids == (made.pid(0), made.pid(1))
    assert made.rows["state"].tolist() == [[11, 1], [22, 2]]


@pytest.mark.parametrize("how", mostly_slow([2, 4], everyday=1))
def test_an_environment_that_hangs_is_killed_at_the_deadline(workers: Callable[..., EnvironmentProcesses], how: int) -> None:
    made = workers(2, timeout_s=1.5)
    made.reset({0: 10, 1: 20})
    before = made.pid(0)
    started = time.monotonic()
    lost = made.step(actions((1, how), (1, 0)), [0, 1])
    assert lost == {0: "step took longer than 1.5 s, and its process was killed"}
    assert 1.5 <= time.monotonic() - started < 15
    assert before and gone(before, 20)
    assert made.rows["state"][1].tolist() == [21, 1]
    made.reset({0: 1})
    assert made.step(actions((1, 0), (1, 0)), [0, 1]) == {}


def test_a_process_that_is_killed_between_steps_is_lost(workers: Callable[..., EnvironmentProcesses]) -> None:
    made = workers(2)
    made.reset({0: 10, 1: 20})
    pid = made.pid(1)
    assert pid
    os.kill(pid, signal.SIGKILL)
    assert gone(pid, 20)
    lost = made.step(actions((1, 0), (1, 0)), [0, 1])
    assert lost == {1: "its process was killed by SIGKILL"}


def test_a_reset_mends_what_died_before_it(workers: Callable[..., EnvironmentProcesses]) -> None:
    made = workers(2)
    made.reset({0: 10, 1: 20})
    state = made.call([0], "snapshot")[0]
    for mend in (lambda: made.reset({0: 3, 1: 4}), lambda: made.restore({0: state, 1: state})):
        pid = made.pid(1)
        assert pid
        os.kill(pid, signal.SIGKILL)
        mend()
        assert made.pid(1) not in (None, pid)
    assert made.lost == 2 and made.rows["state"].tolist() == [[10, 0], [10, 0]]


def test_an_environment_that_can_not_be_reset_is_given_up(workers: Callable[..., EnvironmentProcesses]) -> None:
    made = workers(2)
    with pytest.raises(
        UserError, match=r"toy/environment: reset of environment 0 failed with 3 processes: its process exited with code 7"
    ):
        made.reset({0: 1}, variant="dies")
    assert made.lost == 3
    made.reset({0: 1, 1: 2})
    assert made.step(actions((1, 0), (1, 0)), [0, 1]) == {}


def test_an_environment_that_can_not_be_started_again_is_given_up(
    workers: Callable[..., EnvironmentProcesses], tmp_path: Path
) -> None:
    made = workers(1, start="once", mark=str(tmp_path / "mark"))
    made.reset({0: 1})
    assert list(made.step(actions((1, 1)), [0])) == [0]
    with pytest.raises(UserError, match=r"reset of environment 0 failed with 3 processes: RuntimeError: only once"):
        made.reset({0: 1})


@pytest.mark.parametrize(
    "start,why",
    mostly_slow(
        [
            ("refused", "toy/environment can't be made: there is no such environment$"),
            ("raises", r"toy/environment can't be made: RuntimeError: no luck \(toy_environment.py:\d+\)$"),
            ("dies", "toy/environment can't be made: its process was killed by SIGKILL"),
            ("hangs", "toy/environment can't be made: start took longer than 2 s, and its process was killed"),
        ],
        everyday=3,
    ),
)
def test_environments_that_can_not_be_made_are_refused(
    workers: Callable[..., EnvironmentProcesses], start: str, why: str
) -> None:
    with pytest.raises(UserError, match=why):
        workers(2, start=start, start_s=2.0 if start == "hangs" else FAR)


def test_a_process_that_dies_while_others_start_is_told_or_replaced(
    workers: Callable[..., EnvironmentProcesses], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by a system without memory for all of them."""
    wait, deaths = EnvironmentProcesses._wait, 1

    def with_death(self: EnvironmentProcesses, envs: Any, seconds: float, method: str) -> Any:
        nonlocal deaths
        found = wait(self, envs, seconds, method)
        if method == "start" and 1 in envs and deaths:
            deaths -= 1
            pid = self.pid(1)
            assert pid
            os.kill(pid, signal.SIGKILL)
            assert gone(pid, 20)
        return found

    monkeypatch.setattr(EnvironmentProcesses, "_wait", with_death)
    with pytest.raises(UserError, match=r"^toy/environment can't be made: its process was killed by SIGKILL"):
        workers(2)
    made, deaths = workers(2), 1
    made.reset({0: 1, 1: 2})
    assert list(made.step(actions((1, 0), (1, 1)), [0, 1])) == [1]
    made.reset({0: 1, 1: 2})
    assert made.lost == 2 and made.rows["state"].tolist() == [[1, 0], [2, 0]]


@pytest.mark.slow
def test_a_process_that_hangs_at_its_start_is_replaced(workers: Callable[..., EnvironmentProcesses], tmp_path: Path) -> None:
    made = workers(2, start="stumbles", mark=str(tmp_path / "mark"), start_s=5.0)
    made.reset({0: 1, 1: 2})
    assert made.lost >= 1 and "start took longer than 5 s" in made.why[0]
    assert made.rows["state"].tolist() == [[1, 0], [2, 0]]


def test_an_environment_that_talks_is_not_held_up(workers: Callable[..., EnvironmentProcesses]) -> None:
    made = workers(1, start="chatters")
    made.reset({0: 1})
    assert made.rows["state"].tolist() == [[1, 0]]


def test_steps_of_several_run_at_once(workers: Callable[..., EnvironmentProcesses], tmp_path: Path) -> None:
    """Each waits until all four are in this step."""
    made = workers(4, mark=str(tmp_path / "here"))
    made.reset(dict.fromkeys(range(4), 1))
    assert made.step(actions(*[(1, 14)] * 4), [0, 1, 2, 3]) == {}


def test_processes_outlive_the_thread_that_made_them(workers: Callable[..., EnvironmentProcesses]) -> None:
    """They are killed with the thread that started them, which is therefore not the caller's."""
    made: list[EnvironmentProcesses] = []
    thread = threading.Thread(target=lambda: made.append(workers(1)))
    thread.start()
    thread.join()
    time.sleep(0.3)
    made[0].reset({0: 5})
    assert made[0].lost == 0 and made[0].rows["state"].tolist() == [[5, 0]]


def test_close_ends_all_processes_and_may_come_twice(workers: Callable[..., EnvironmentProcesses]) -> None:
    made = workers(2)
    started = made.call([0, 1], "child")
    pids = [made.pid(0), made.pid(1), *started]
    kept = made.rows["state"]
    made.close()
    made.close()
    assert all(pid and gone(pid, 20) for pid in pids), "what an environment started goes with it"
    assert kept.tolist() == [[0, 0], [0, 0]], "arrays outlive it"
    for ask in (lambda: made.reset({0: 1}), lambda: made.step(actions((1, 0), (1, 0)), [0]), lambda: made.call([0], "snapshot")):
        with pytest.raises(UserError, match=r"toy/environment was closed"):
            ask()


def test_processes_die_with_a_parent_that_is_killed() -> None:
    code = (
        "import sys, time; from mmrl.api.simulators.processes import EnvironmentProcesses\n"
        f"made = EnvironmentProcesses('toy_environment:Environment', {{}}, 2, what='toy/environment', timeout_s={FAR})\n"
        "print(made.pid(0), made.pid(1), flush=True); time.sleep(1000)"
    )
    path = os.pathsep.join(p for p in sys.path if p)
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": path}) as parent:
        assert parent.stdout
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2 and all(map(alive, pids))
        parent.kill()
    assert all(gone(pid, 20) for pid in pids)


def test_options_of_the_processes(workers: Callable[..., EnvironmentProcesses], tmp_path: Path) -> None:
    assert workers(1, environment={"TOLD": "yes"}).facts["told"] == "yes"
    with pytest.raises(UserError, match=r"python = '/no/such/python' is no program"):
        workers(1, python="/no/such/python")
    with pytest.raises(UserError, match=r"there is no module 'no_such_module'"):
        workers(1, factory="no_such_module:Environment")


def test_another_interpreter_needs_nothing_of_mmrl(workers: Callable[..., EnvironmentProcesses], tmp_path: Path) -> None:
    """An interpreter in isolated mode, with numpy alone on its path."""
    python = tmp_path / "python"
    site = Path(numpy.__file__).parents[1]
    only = tmp_path / "only"
    only.mkdir()
    for name in ("numpy", "numpy.libs"):
        if (site / name).exists():
            (only / name).symlink_to(site / name)
    python.write_text(f'#!/bin/sh\nPYTHONPATH={only} exec {sys.executable} -S "$@"\n')
    python.chmod(0o755)
    has = subprocess.run([str(python), "-c", "import numpy, pluggy"], capture_output=True, text=True)
    assert "No module named 'pluggy'" in has.stderr, "the interpreter lacks what mmrl needs"
    made = workers(1, python=str(python))
    made.reset({0: 4})
    assert made.step(actions((1, 0)), [0]) == {} and made.rows["state"].tolist() == [[5, 1]]
