"""Whole runs whose judges and simulators are Ray actors: they learn what runs without them do."""

import os
import subprocess
import sys

import pytest

import clustered
import runs
from clustered import figures
from mmrl.config.load import parse_config
from mmrl.train.start import train
from processes import of_ray

pytestmark = pytest.mark.slow
DIAL = os.path.join(os.path.dirname(runs.TOY), "dial.py")


@pytest.fixture(autouse=True)
def plugins(tmp_path, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL]))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def test_judges_elsewhere_give_the_same_run_also_when_one_dies(tmp_path):
    class Killer(runs.Silent):
        killed = 0

        def step_finished(self, step, metrics):
            if step == 3:
                of_ray("JudgeActor")[0].kill()
                self.killed += 1

    alone, watcher = runs.run(runs.toy_config(tmp_path, "alone")), Killer()
    apart = train(runs.toy_config(tmp_path, "apart", compute={"judges": 2}), watcher)
    assert watcher.killed
    assert runs.trajectory(apart) == runs.trajectory(alone)
    assert not of_ray("")


def acting(folder, name, **compute):
    return parse_config(
        {
            "name": name,
            "runs_dir": str(folder),
            "policy": {"kind": "robotics/small", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [8]}},
            "tasks": [{"id": "dial/turn", "options": {"n": 8}}],
            "stages": [
                {"kind": "sft", "steps": 2, "batch_size": 4, "learning_rate": 1e-3, "split": "warm"},
                {"kind": "rl", "steps": 3, "prompts_per_step": 3, "group_size": 4, "learning_rate": 1e-2},
            ],
            "simulate": {"num_envs": 6, "lanes": 2},
            "evaluate": {"num_prompts": 4},
            "train": {"threads": 1},
            "compute": compute,
        }
    )


def test_simulators_and_judges_elsewhere_give_the_same_run(tmp_path):
    alone = runs.run(acting(tmp_path, "alone"))
    apart = runs.run(acting(tmp_path, "apart", simulators="actors", judges=1))
    assert runs.trajectory(apart) == runs.trajectory(alone)
    assert not of_ray("")


def test_learners_of_a_cluster_share_judges_that_are_fewer_than_they(tmp_path):
    (tmp_path / "run.toml").write_text(clustered.RUN)

    def mmrl(*arguments):
        command = [sys.executable, "-m", "mmrl", "train", "run.toml", *arguments, "--set", "stages.0.steps=3"]
        done = subprocess.run(
            command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr

    mmrl("--set", "runs_dir=alone")
    mmrl("--cluster", "local", "--set", "compute.learners=2", "--set", "compute.judges=1")
    one, two = (figures(tmp_path / folder / "toy") for folder in ("alone", "runs"))
    assert len(one) == len(two) == 3
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, abs=1e-5)
