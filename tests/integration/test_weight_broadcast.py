"""Whole runs whose engines, Ray actors, get the learner's weights by broadcast: over gloo here, NCCL on GPUs."""

import os
import signal

import psutil
import pytest

import runs
from mmrl.api.errors import UserError
from mmrl.rollout.generate import broadcast
from mmrl.rollout.generate.engines import EngineActors
from mmrl.rollout.generate.transfer import BroadcastTransfer
from mmrl.train.start import train

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
BROADCAST = {"placement": "separate", "engines": 2, "weight_transfer": "broadcast"}


@pytest.fixture(autouse=True)
def plugins(tmp_path, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def engines():
    """The processes of this process's engines, in the order in which they were started."""
    found = [p for p in psutil.Process().children(recursive=True) if p.name().startswith("ray::Engine")]
    return [p.pid for p in sorted(found, key=lambda p: p.create_time())]


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
    return without_rounding(train(runs.toy_config(tmp_path, compute=BROADCAST | compute), progress or runs.Silent()))


def test_engines_with_broadcast_weights_sample_the_very_same_whatever_befalls_them(tmp_path, monkeypatch, alone):
    """One is killed between two steps, one in the middle of a broadcast, one while it samples, and one hangs in a broadcast."""
    monkeypatch.setattr(broadcast, "PATIENCE_S", 20.0)
    done, attempts, settle, attempt = [], [], BroadcastTransfer._settle, BroadcastTransfer._attempt
    ask = EngineActors.generate

    class Killer(runs.Silent):
        def step_finished(self, step, metrics):
            done.append(step)
            if step == 2:
                os.kill(engines()[0], signal.SIGKILL)

    def noted(self, all_engines, version, before, now):
        attempts.append((version, attempt(self, all_engines, version, before, now)))
        return attempts[-1][1]

    def struck(self, all_engines, asked):
        if len(done) in (4, 6) and f"struck {len(done)}" not in done:  # as soon as the first bucket is asked for
            done.insert(0, f"struck {len(done)}")
            os.kill(engines()[1], signal.SIGKILL if len(done) == 5 else signal.SIGSTOP)
        settle(self, all_engines, asked)

    def sampling(self, *args):
        if len(done) == 10 and "sampled" not in done:
            done.insert(0, "sampled")
            self.transfer.wait()
            os.kill(engines()[0], signal.SIGKILL)
        return ask(self, *args)

    monkeypatch.setattr(BroadcastTransfer, "_attempt", noted)
    monkeypatch.setattr(BroadcastTransfer, "_settle", struck)
    monkeypatch.setattr(EngineActors, "generate", sampling)
    assert apart(tmp_path, Killer(), retries=4) == alone
    faults = [fault.line for _, fault in attempts if fault]
    assert any("engine 0 died" in line for line in faults), faults
    assert sum("engine 1" in line for line in faults) >= 2 and any("hasn't answered for 20 s" in line for line in faults), faults
    assert "sampled" in done


def test_one_engine_that_dies_too_often_ends_the_run_with_one_line(tmp_path):
    class Killer(runs.Silent):
        def step_finished(self, step, metrics):
            for pid in engines():
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(UserError, match=r"^an engine died more often than compute\.retries = 1 allows") as caught:
        apart(tmp_path, Killer(), engines=1, retries=1)
    assert "\n" not in str(caught.value)


@pytest.mark.exhaustive
def test_a_sampler_beside_the_engines_and_one_ahead_do_the_same_with_broadcast_weights(tmp_path, alone):
    assert apart(tmp_path, placement="hybrid", engines=1) == alone
