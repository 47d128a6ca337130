"""A Ray cluster of two machines, each a network namespace: a node that dies and comes back, and what a cluster can't hold.

Needs root and `ip`. Nothing reaches the namespaces from outside.
"""

import re
import signal
import sys
import time

import pytest

import nodes
import runs
from clustered import EXTRAS, RUN, figures, steps

impossible = nodes.impossible()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.skipif(bool(impossible), reason=impossible)]
MMRL = [sys.executable, "-m", "mmrl"]


@pytest.fixture(scope="module")
def machines():
    with nodes.Machines() as made:
        made.start(0)
        made.start(1)
        yield made


@pytest.fixture
def asked(tmp_path, machines):
    """`mmrl train` on the first machine -> its arguments and options."""
    (tmp_path / "extras.py").write_text(EXTRAS)
    (tmp_path / "run.toml").write_text(RUN)
    files = {"MMRL_PLUGIN_FILES": f"{runs.TOY}:extras.py", "OMP_NUM_THREADS": "1"}

    def ask(*arguments, **environment):
        command = [*MMRL, "train", "run.toml", "--cluster", machines.client, *arguments]
        return (0, command), {"environment": {**files, **environment}, "cwd": tmp_path}

    return ask


def learners(machines):
    """Processes of runs on either machine."""
    names = ("ray::RayTrainWorker", "ray::Relay", "ray::TrainController", "ray::Engine", "mmrl.judge")
    return [line for number in (0, 1) for line in machines.commands(number) if any(name in line for name in names)]


def test_twenty_steps_with_a_node_that_dies_and_comes_back(machines, asked, tmp_path):
    place, options = asked("--set", "compute.learners=2", "--set", "stages.0.steps=20", MMRL_TEST_SLOW="0.5")
    with machines.going(*place, **options) as process:
        wait_for(process, lambda: steps(tmp_path / "runs/toy") >= 7)
        machines.kill(1)
        died = steps(tmp_path / "runs/toy")
        assert died < 15
        machines.start(1)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    assert "a process died: the run goes on from its last checkpoint (retry 1 of 2)" in out, out
    resumed = int(re.search(r"resumed after step (\d+)", out)[1])
    assert 6 <= resumed <= died + 1
    alone = machines.run(
        0, [*MMRL, "train", "run.toml", "--set", "runs_dir=alone", "--set", "stages.0.steps=20"], **quick(options)
    )
    assert alone.returncode == 0, alone.stderr
    one, two = (figures(tmp_path / folder / "toy") for folder in ("alone", "runs"))
    assert len(one) == len(two) == 20
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
    nothing_left(machines)


def test_an_engine_on_another_machine_samples_the_same_and_survives_that_machine(machines, asked, tmp_path):
    place, options = asked("--set", 'compute.placement="separate"', MMRL_TEST_SLOW="0.5")
    with machines.going(*place, **options) as process:
        wait_for(process, lambda: steps(tmp_path / "runs/toy") >= 3)
        (number,) = [n for n in (0, 1) if any("ray::Engine" in line for line in machines.commands(n))]
        assert any("ray::RayTrainWorker" in line for line in machines.commands(0 if number else 1)), "a machine each"
        if number:  # the head can't be restored
            machines.kill(1)
            machines.start(1)
        out, err = process.communicate(timeout=300)
    assert process.returncode == 0, out + err
    alone = machines.run(0, [*MMRL, "train", "run.toml", "--set", "runs_dir=alone"], **quick(options))
    assert alone.returncode == 0, alone.stderr
    assert figures(tmp_path / "runs/toy") == figures(tmp_path / "alone/toy")
    nothing_left(machines)


def test_what_the_cluster_cannot_hold_is_refused(machines, asked):
    place, options = asked("--set", "compute.learners=3")
    began = time.monotonic()
    done = machines.run(*place, timeout=120, **options)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        "mmrl: compute.learners = 3 want 3 CPUs of 2 in the cluster: ask for fewer, or add nodes"
    )
    assert time.monotonic() - began < 90


def test_another_version_of_ray_is_refused(machines, asked):
    (number, command), options = asked()
    other = [sys.executable, "-c", "import ray; ray.__version__ = '2.59.0'; from mmrl.ui.cli import main; main()", *command[3:]]
    done = machines.run(number, other, timeout=120, **options)
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 2 and re.search(r"runs other versions than this machine: .*2\.59\.0.*: install the same", said), (
        said
    )


def test_a_machine_that_does_not_see_the_run_folder_is_named(machines, asked, tmp_path):
    (tmp_path / "runs").mkdir()
    machines.kill(1)
    machines.start(1, hidden=tmp_path / "runs")
    try:
        place, options = asked("--set", "compute.learners=2")
        done = machines.run(*place, timeout=240, **options)
    finally:
        machines.kill(1)
        machines.start(1)
    (said,) = [line for line in done.stderr.splitlines() if line]
    assert done.returncode == 2, done.stdout + done.stderr
    assert re.search(r"^mmrl: rank 1 on \S+ doesn't see the run folder runs/toy that rank 0 made: set runs_dir ", said), said
    nothing_left(machines)


def test_two_wishes_to_stop_end_it_at_once_and_leave_nothing(machines, asked, tmp_path):
    place, options = asked("--set", "compute.learners=2", "--set", "stages.0.steps=100", MMRL_TEST_SLOW="5")
    with machines.going(*place, **options) as process:
        wait_for(process, lambda: steps(tmp_path / "runs/toy") >= 1)
        for _ in range(2):
            process.send_signal(signal.SIGINT)
            time.sleep(1)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in err, err
    nothing_left(machines)


def test_a_terminal_that_is_killed_leaves_nothing_running(machines, asked, tmp_path):
    place, options = asked("--set", "compute.learners=2", "--set", "stages.0.steps=1000", MMRL_TEST_SLOW="1")
    with machines.going(*place, **options) as process:
        wait_for(process, lambda: steps(tmp_path / "runs/toy") >= 1)
        process.kill()
        process.communicate(timeout=30)
    assert learners(machines)
    nothing_left(machines)


def wait_for(process, what):
    while not what():
        assert process.poll() is None, process.communicate()
        time.sleep(0.1)


def quick(options):
    return {**options, "environment": {**options["environment"], "MMRL_TEST_SLOW": "0"}, "timeout": 120}


def nothing_left(machines):
    deadline = time.monotonic() + 60
    while left := learners(machines):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)
