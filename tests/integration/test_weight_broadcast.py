"""Whole runs whose engines, Ray actors, get the learner's weights by broadcast: over gloo here, NCCL on GPUs."""

import contextlib
import os
import re
import signal
import subprocess
import sys

import pytest

import clustered
import runs
from mmrl.api.errors import UserError
from mmrl.rollout.generate import broadcast
from mmrl.rollout.generate.engines import EngineActors
from mmrl.rollout.generate.transfer import BroadcastTransfer
from mmrl.train.start import train
from processes import of_ray

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BROADCAST = {"placement": "separate", "engines": 2, "weight_transfer": "broadcast"}


@pytest.fixture(autouse=True)
def plugins(tmp_path, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def engines():
    """The processes of this process's engines, in the order in which they were started."""
    return [process.pid for process in of_ray("Engine")]


def without_rounding(run):
    steps, sampled = runs.trajectory(run)
    assert all(figures.get("logprob_gap", 0.0) < 1e-6 for _, figures in steps)
    return [(step, {k: v for k, v in figures.items() if k != "logprob_gap"}) for step, figures in steps], sampled


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What a run without engines does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
        return without_rounding(runs.run(runs.toy_config(tmp_path_factory.mktemp("alone"))))


def apart(tmp_path, progress=None, **compute):
    return without_rounding(train(runs.toy_config(tmp_path, "apart", compute=BROADCAST | compute), progress or runs.Silent()))


def test_engines_with_broadcast_weights_sample_the_very_same_whatever_befalls_them(tmp_path, monkeypatch, alone):
    """One is killed between two steps, one in a broadcast, one hangs in a broadcast, one is killed as it samples."""
    monkeypatch.setattr(broadcast, "PATIENCE_S", 20.0)
    attempt, settle, sample = BroadcastTransfer._attempt, BroadcastTransfer._settle, EngineActors.generate
    faults, struck = {}, []

    def strike(version, how):
        if version not in struck:
            struck.append(version)
            os.kill(engines()[0], how)

    class Killer(runs.Silent):
        def step_finished(self, step, metrics):
            if step == 3:
                strike("between steps", signal.SIGKILL)

    def noted(self, among, version, before, now):
        self.version = version
        fault = attempt(self, among, version, before, now)
        faults.setdefault(version, []).append(fault and fault.line)
        return fault

    def asked(self, among, answers):  # as soon as the first bucket is asked for
        if self.version in (3, 4):
            strike(self.version, signal.SIGKILL if self.version == 3 else signal.SIGSTOP)
        settle(self, among, answers)

    def sampling(self, *args):
        self.transfer.wait()
        if self.syncs == 4:
            strike("sampling", signal.SIGKILL)
        return sample(self, *args)

    monkeypatch.setattr(BroadcastTransfer, "_attempt", noted)
    monkeypatch.setattr(BroadcastTransfer, "_settle", asked)
    monkeypatch.setattr(EngineActors, "generate", sampling)
    found = apart(tmp_path, Killer(), retries=4)
    print(faults, struck)
    assert found == alone
    assert set(struck) == {"between steps", 3, 4, "sampling"}
    assert faults[1] == [None] and len(faults) >= 5
    assert all(lines[-1] is None for lines in faults.values()), faults
    assert re.fullmatch(r"engine [01] died", faults[3][0]), faults
    assert re.fullmatch(r"engine [01] hasn't answered for 20 s", faults[4][0]), faults


def test_one_engine_that_dies_too_often_ends_the_run_with_one_line(tmp_path):
    class Killer(runs.Silent):
        def step_finished(self, step, metrics):
            for pid in engines():
                with contextlib.suppress(ProcessLookupError):  # one that was killed before may be listed until it is gone
                    os.kill(pid, signal.SIGKILL)

    with pytest.raises(UserError, match=r"^an engine died more often than compute\.retries = 1 allows") as caught:
        apart(tmp_path, Killer(), engines=1, retries=1)
    assert "\n" not in str(caught.value)


@pytest.mark.exhaustive
def test_a_sampler_beside_the_engines_does_the_same_with_broadcast_weights(tmp_path, alone):
    assert apart(tmp_path, placement="hybrid", engines=1) == alone


def test_two_learners_that_share_the_weights_broadcast_them_to_an_engine_each(tmp_path, monkeypatch):
    (tmp_path / "extras.py").write_text(clustered.EXTRAS)
    (tmp_path / "run.toml").write_text(clustered.RUN)
    monkeypatch.setenv("MMRL_PLUGIN_FILES", f"{runs.TOY}{os.pathsep}extras.py")
    base = [sys.executable, "-m", "mmrl", "train", "run.toml"]
    keys = [f"compute.{key}={value}" for key, value in {**BROADCAST, "learners": 2}.items()]
    for folder, given in (("alone", []), ("apart", keys)):
        command = [*base, *(word for key in (f"runs_dir={folder}", *given) for word in ("--set", key))]
        done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
    one, two = (clustered.figures(tmp_path / folder / "toy") for folder in ("alone", "apart"))
    assert len(one) == len(two) == 10
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
