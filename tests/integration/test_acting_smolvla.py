"""Whole runs of a tiny SmolVLA: it imitates, is reinforced, goes on bit for bit, and is loaded again."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file

import runs
from acting_runs import PLUGINS, TURN, acting_config, metrics, weights
from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.policies.smolvla.model import SmolVLA
from mmrl.train.smoke import smoke

REACH = {"id": "robotics/reach", "options": {"dims": 4, "size": 56, "cameras": ["front", "wrist"], "max_steps": 8}}
SFT = {"kind": "sft", "split": "demo", "steps": 3, "batch_size": 8, "learning_rate": 3e-3}
PPO = {"kind": "rl", "algorithm": "ppo", "steps": 2, "prompts_per_step": 16, "group_size": 1, "minibatches": 2, "epochs": 2}
PPO |= {"ratio": "chunk", "credit": "chunk", "learning_rate": 1e-3, "settings": {"gamma": 0.9}}
PPO |= {"critic": {"hidden_sizes": [8], "detach": True, "learning_rate": 3e-3}}
GRPO = {"kind": "rl", "algorithm": "trajectory-grpo", "steps": 2, "prompts_per_step": 4, "group_size": 4, "learning_rate": 1e-3}
FROZEN = [{"match": part, "freeze": True} for part in ("vision", "projector", "language")]


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", PLUGINS)


def config(folder, task, stages, model="tiny:smolvla:hidden=32,layers=2,chunk=3", options=None, **sections):
    dims, state = (2, 2) if task is TURN else (4, 8)
    options = {"dims": dims, "chunk": 2, "state": state, "steps": 3, **(options or {})}
    policy = {"kind": "smolvla", "model": model, "options": options}
    return acting_config(folder, task, stages, **{"policy": policy, **sections})


def test_reinforcement_of_the_expert_alone(tmp_path):
    """What was sampled is what is learned from, and the frozen parts stay what they were."""
    stages, keep = [{**PPO, "steps": 1}, {**PPO, "parts": FROZEN, "steps": 1}], {"every": 1, "keep": 9}
    folder = runs.run(config(tmp_path, TURN, stages, checkpoint=keep))
    found = metrics(folder)
    assert len(found) == 2 and all(m["logprob_gap"] < 1e-4 and m["reward/std"] > 0 and m["grad_norm"] > 0 for m in found)
    before, after = weights(folder, 1), weights(folder, 2)
    moved = {name for name in before if not before[name].equal(after[name])}
    expert = ("model.action_", "model.state_proj", "model.vlm_with_expert.lm_expert.")
    assert moved and all(name.startswith(expert) for name in moved), moved
    assert {"model.action_out_proj.weight", "model.vlm_with_expert.lm_expert.layers.1.self_attn.k_proj.weight"} <= moved


@pytest.mark.slow
def test_it_imitates_the_tables_expert_and_is_loaded_again(tmp_path):
    folder = runs.run(config(tmp_path, REACH, [SFT], checkpoint={"every": 1, "keep": 9}))
    assert len(metrics(folder)) == 3 and all(0.3 < m["loss"] < 4 and m["grad_norm"] > 0 for m in metrics(folder))
    before, after = weights(folder, 1), weights(folder, 3)
    still = {name for name in before if before[name].equal(after[name])}
    unused = ("text_model.layers.1.", "text_model.norm", "embed_tokens")  # behind the last keys and values, and unread words
    assert all(any(part in name for part in unused) or "norm" in name for name in still), still
    checkpoint = folder.path / "checkpoints" / "step-000003" / "policy"
    policy = {"kind": "smolvla", "model": str(checkpoint)}
    again = runs.run(config(tmp_path / "on", REACH, [{**PPO, "steps": 1, "prompts_per_step": 2}], policy=policy))
    assert metrics(again)[0]["logprob_gap"] < 1e-4, "what a folder was saved with need not be said again"


@pytest.mark.slow
def test_groups_of_episodes_from_one_start_are_compared(tmp_path):
    found = metrics(runs.run(config(tmp_path, TURN, [GRPO], options={"noisy": "one"})))
    assert len(found) == 2 and all(m["logprob_gap"] < 1e-4 and m["reward/std"] > 0 and m["grad_norm"] > 0 for m in found)


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path):
    stages, keep = [{**SFT, "split": "warm"}, PPO], {"every": 2, "keep": 9}
    whole = runs.run(config(tmp_path / "whole", TURN, stages, checkpoint=keep))
    again = config(tmp_path / "again", TURN, stages, checkpoint=keep)
    with pytest.raises(KeyboardInterrupt):
        runs.run(again, progress=runs.Silent(4))
    folder = runs.run(again, resume=True)
    one, two = weights(whole, 5), weights(folder, 5)
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


@pytest.mark.slow
def test_a_checkpoint_with_statistics_is_trained_and_goes_on(tmp_path):
    """The run file says the gripper's convention alone; a checkpoint of the run keeps the statistics, for LeRobot too."""
    numbers = {
        "kind": "mean-std",
        "action": {"mean": [0.0] * 4, "std": [0.05] * 4},
        "state": {"mean": [0.1] * 8, "std": [0.5] * 8},
    }
    model = PolicyConfig(model="tiny:smolvla:hidden=32,layers=2,chunk=3", kind="smolvla")
    SmolVLA(model, dims=4, chunk=2, state=8, cameras=["wrist", "front"], statistics=numbers).save(tmp_path / "model")
    for name in ("acting.json", "acting.safetensors"):  # as LeRobot leaves it
        (tmp_path / "model" / name).unlink()
    policy = {"kind": "smolvla", "model": str(tmp_path / "model"), "options": {"gripper": "close-positive"}}
    stages, keep = [{**SFT, "steps": 1}, {**PPO, "prompts_per_step": 4}], {"every": 1, "keep": 9}
    whole = runs.run(config(tmp_path / "whole", REACH, stages, policy=policy, checkpoint=keep))
    assert all(m["logprob_gap"] < 1e-4 for m in metrics(whole)[1:])
    again = config(tmp_path / "again", REACH, stages, policy=policy, checkpoint=keep)
    with pytest.raises(KeyboardInterrupt):
        runs.run(again, progress=runs.Silent(2))
    folder = runs.run(again, resume=True)
    one, two = weights(whole, 3), weights(folder, 3)
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
    saved = folder.path / "checkpoints" / "step-000003" / "policy"
    kept = load_file(saved / "policy_postprocessor_step_0_unnormalizer_processor.safetensors")
    assert kept["action.std"].tolist() == pytest.approx([0.05] * 4) and kept["observation.state.mean"].tolist() == pytest.approx(
        [0.1] * 8
    )
    table = json.loads((saved / "config.json").read_text())
    assert table["normalization_mapping"] == {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
    assert list(table["input_features"]) == ["observation.images.wrist", "observation.images.front", "observation.state"]


@pytest.mark.exhaustive  # two minutes; tests/integration/test_acting_runs.py learns it in less
@pytest.mark.slow
def test_it_learns_to_turn_to_the_mark(tmp_path):
    """Imitation to where some succeed, then reinforcement from there."""
    imitation = {**SFT, "split": "warm", "steps": 20, "batch_size": 32, "optimizer": "muon", "learning_rate": 1e-2}
    reinforcement = {**PPO, "ratio": "action", "credit": "action", "steps": 40, "prompts_per_step": 128, "minibatches": 4}
    reinforcement |= {"epochs": 1, "learning_rate": 6e-4}
    sections = {"evaluate": {"num_prompts": 200, "every": 40}, "simulate": {"num_envs": 64}}
    model, options = "tiny:smolvla:hidden=32,layers=2,chunk=1", {"chunk": 1, "steps": 4}
    folder = runs.run(config(tmp_path, TURN, [imitation, reinforcement], model, options, **sections))
    imitated, reinforced = (r["eval"]["value"] for r in runs.rows(folder) if "eval" in r)
    assert imitated < reinforced - 0.1, (imitated, reinforced)


def test_smoke_takes_a_tiny_one(tmp_path):
    found = smoke(config(tmp_path, REACH, [PPO], model="lerobot/smolvla_base"))
    assert found.policy.model == "tiny:smolvla" and found.policy.kind == "smolvla"


def test_what_does_not_fit_is_told_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"takes actions of 4 numbers, and policy\.options\.dims = 7: make them equal") as error:
        runs.run(config(tmp_path, REACH, [PPO], options={"dims": 7}))
    assert "\n" not in str(error.value)
