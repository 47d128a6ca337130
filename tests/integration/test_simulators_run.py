"""Whole runs in simulators that are installed for their tests: what breaks in them costs its episode, and the run goes on."""

from __future__ import annotations

import importlib.util
import os
import signal
from pathlib import Path

import pytest

import runs
from mmrl.api.simulators.processes import EnvironmentProcesses
from mmrl.config.load import parse_config

OWN = Path(__file__).parents[2] / ".simulators"
PPO = {
    "kind": "rl",
    "algorithm": "ppo",
    "steps": 3,
    "prompts_per_step": 6,
    "group_size": 1,
    "ratio": "action",
    "credit": "action",
}
PPO |= {"minibatches": 1, "learning_rate": 1e-3, "critic": {"learning_rate": 1e-3, "hidden_sizes": [32]}}


@pytest.fixture
def maniskill() -> dict[str, str]:
    """The option `python`, where it is needed."""
    if importlib.util.find_spec("mani_skill"):
        return {}
    if not (OWN / "maniskill" / "installed").is_file():
        pytest.skip('ManiSkill is not installed: make simulators, or pip install "multimodal-rl[maniskill]"')
    return {"python": str(OWN / "maniskill" / "bin" / "python")}


@pytest.mark.slow
def test_processes_of_maniskill_that_die_and_hang_cost_an_episode_each(tmp_path, monkeypatch, maniskill):
    """One is killed and later one is stopped, both in the midst of episodes."""
    stepped, hit = EnvironmentProcesses.step, []

    def step(self, actions_NA, envs):
        how = {10: signal.SIGKILL, 30: signal.SIGSTOP}.get(len(hit))
        if how is not None:
            os.kill(self.pid(envs[0]), how)
        hit.append(how)
        return stepped(self, actions_NA, envs)

    monkeypatch.setattr(EnvironmentProcesses, "step", step)
    simulator = {"simulator": "maniskill/push-cube", "obs": "state", "rendering": "none", "timeout_s": 15.0, **maniskill}
    config = parse_config(
        {
            "name": "push",
            "runs_dir": str(tmp_path),
            "policy": {"kind": "robotics/small", "model": "mlp", "options": {"dims": 7, "state": 35, "hidden": [32]}},
            "tasks": [{"id": "robotics/episodes", "options": {**simulator, "reward": "own", "max_steps": 12}}],
            "stages": [PPO],
            "simulate": {"num_envs": 2},
            "evaluate": {"num_prompts": 0},
            "record": {"trackers": []},
            "train": {"threads": 1},
        }
    )
    with pytest.warns(UserWarning, match="was lost") as told:
        folder = runs.run(config)
    rows = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    assert len(rows) == 3 and sum(row["simulator/lost"] for row in rows) == 2
    whys = " ".join(str(each.message) for each in told)
    assert "SIGKILL" in whys and "step took longer than 15 s" in whys
    assert all(row["judge/failed_share"] == 0 for row in rows), "their episodes were begun again"
