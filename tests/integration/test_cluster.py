"""Whole runs on Ray on this machine: `--cluster local`, engines beside the learner."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import psutil
import pytest

import clustered
import runs
from clustered import figures, steps
from mmrl.api.errors import UserError
from mmrl.train.start import train
from processes import heeding_ctrl_c, of_ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(autouse=True)
def plugins(tmp_path, monkeypatch):
    (tmp_path / "extras.py").write_text(clustered.EXTRAS)
    (tmp_path / "run.toml").write_text(clustered.RUN)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def start(*arguments, **environment):
    command = [sys.executable, "-m", "mmrl", "train", "run.toml", *arguments]
    own = {**os.environ, "OMP_NUM_THREADS": "1", "MMRL_PLUGIN_FILES": f"{runs.TOY}{os.pathsep}extras.py", **environment}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=own, preexec_fn=heeding_ctrl_c, **pipes)


def mmrl(*arguments, **environment):
    process = start(*arguments, **environment)
    try:
        out, err = process.communicate(timeout=240)
    finally:
        process.kill()
    return process.returncode, out, err


def interrupted(process, due):
    """Ctrl-C as soon as it is due; what was written until the end."""
    try:
        while not due():
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        return process.communicate(timeout=60)
    finally:
        process.kill()


def own_of_ray(driver):
    """Processes of the Ray that a process started: other tests have their own beside it."""
    session = re.compile(rf"/tmp/ray/session_[0-9_-]+_{driver}\b")
    return [p.pid for p in psutil.process_iter(["cmdline"]) if session.search(" ".join(p.info["cmdline"] or ()))]


def nothing_left_of(driver):
    deadline = time.monotonic() + 60
    while left := own_of_ray(driver):
        assert time.monotonic() < deadline, left
        time.sleep(0.5)


def test_two_learners_on_ray_do_what_one_process_does(tmp_path):
    assert mmrl("--set", "runs_dir=alone")[0] == 0
    process, seen = start("--cluster", "local", "--set", "compute.learners=2"), set()
    try:
        while process.poll() is None:
            seen |= set(own_of_ray(process.pid))
            time.sleep(0.5)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, err
    assert len(seen) > 2, "so its processes are found by their session"
    assert re.search(r"step 10/10  reward", out) and "report    runs/toy/report.html" in out, out
    one, two = (figures(tmp_path / folder / "toy") for folder in ("alone", "runs"))
    assert len(one) == len(two) == 10
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
    assert json.loads((tmp_path / "runs/toy/summary.json").read_text())["steps"] == 10
    assert not (tmp_path / ".ray").exists(), "Ray's token is of this cluster alone"
    nothing_left_of(process.pid)


def test_ctrl_c_while_ray_starts_leaves_nothing(tmp_path):
    process = start("--cluster", "local")
    out, err = interrupted(process, lambda: own_of_ray(process.pid))
    assert process.returncode == 130 and err.strip() == "stopping when Ray has started; Ctrl-C again to stop at once", out + err
    assert not (tmp_path / "runs").exists()
    nothing_left_of(process.pid)


def test_ctrl_c_saves_and_ends_and_the_run_goes_on(tmp_path):
    process = start("--cluster", "local", MMRL_TEST_SLOW="1")
    out, err = interrupted(process, lambda: steps(tmp_path / "runs/toy") >= 4)
    assert process.returncode == 130, err
    assert "stopping after this step" in err and "Traceback" not in err
    last = steps(tmp_path / "runs/toy")
    assert 4 <= last < 10 and f"the newest checkpoint is step-{last:06d}" in out
    assert re.search(r"resume +mmrl .*--cluster local --resume", out)
    code, out, err = mmrl("--cluster", "local", "--resume")
    assert code == 0 and f"resumed after step {last}" in out, out + err


@pytest.mark.exhaustive
def test_a_process_that_dies_each_time_ends_the_run_with_one_line(tmp_path):
    code, out, err = mmrl("--cluster", "local", "--set", "compute.retries=1", MMRL_TEST_DIES="5")
    assert code == 2, out + err
    (said,) = [line for line in err.splitlines() if line.startswith("mmrl:")]
    assert re.search(r"died more often than compute\.retries = 1 allows; the last time: learner 0: \w+Error: .*fix that", said)
    assert "Traceback" not in err
    assert "(retry 1 of 1)" in out and "resumed after step 3" in out
    assert (tmp_path / "runs/toy/checkpoints/step-000003").is_dir()


@pytest.mark.exhaustive
def test_what_a_run_refuses_is_told_once_and_not_tried_again(tmp_path):
    noted = 'with open("loaded", "a") as file:\n    file.write(f"{os.getpid()}\\n")\n'
    (tmp_path / "extras.py").write_text(clustered.EXTRAS + noted)
    code, out, err = mmrl("--cluster", "local", "--set", "compute.learners=2", "--set", "tasks.0.id=toy/color")
    assert code == 2
    (said,) = [line for line in err.splitlines() if line]
    assert said == "mmrl: no task 'toy/color'. Did you mean 'toy/colour'?", err
    assert "retry" not in out
    assert len(set((tmp_path / "loaded").read_text().split())) == 2, "two learners, which none came after"


# -- engines beside the learner -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("placement, engines", [("separate", 2), ("hybrid", 1)])
def test_engines_of_their_own_sample_the_very_same(tmp_path, placement, engines):
    alone = runs.run(runs.toy_config(tmp_path, "alone"))
    apart = runs.run(runs.toy_config(tmp_path, "apart", compute={"placement": placement, "engines": engines}))
    assert without_rounding(apart) == without_rounding(alone)


def without_rounding(run):
    """A run's trajectory without the gap between the sampler's log-probabilities and the learner's, which is their rounding: on
    some processors products of matrices differ in the last bit by where their numbers lie in memory."""
    steps, sampled = runs.trajectory(run)
    assert all(figures.get("logprob_gap", 0.0) < 1e-6 for _, figures in steps)
    return [(step, {k: v for k, v in figures.items() if k != "logprob_gap"}) for step, figures in steps], sampled


def test_adapters_reach_an_engine_and_one_that_is_killed_comes_back(tmp_path, monkeypatch):
    from mmrl.rollout.generate.engines import EngineActors

    sizes, sync, killed = [], EngineActors.sync, []

    def noted(self):
        sync(self)
        sizes.append((self.syncs, self.sent))

    class Killer(runs.Silent):
        def step_finished(self, step, metrics):
            if step == 3:
                (pid,) = [process.pid for process in of_ray("Engine")]
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)

    lora = {"model": "tiny:qwen2_5_vl:hidden=32,layers=1", "lora": {"rank": 2}}
    alone = runs.run(runs.toy_config(tmp_path, "alone", policy=lora))
    monkeypatch.setattr(EngineActors, "sync", noted)
    config = runs.toy_config(tmp_path, "apart", policy=lora, compute={"placement": "separate"})
    apart = train(config, Killer())
    assert killed
    assert without_rounding(apart) == without_rounding(alone)
    assert sizes[-1][0] >= 4 and 0 < sizes[-1][1] < 20_000, "adapters alone, once for each update"


def test_what_an_engine_refuses_is_one_line(tmp_path):
    with pytest.raises(UserError, match=r"^the model's logits are not finite") as caught:
        stages = [{"kind": "rl", "steps": 3, "prompts_per_step": 2, "group_size": 4, "learning_rate": 1e30}]
        optimizer = {"policy": {"model": "tiny:qwen2_5_vl:hidden=32,layers=1"}}
        runs.run(runs.toy_config(tmp_path, stages=stages, compute={"placement": "separate"}, **optimizer))
    assert "\n" not in str(caught.value)
