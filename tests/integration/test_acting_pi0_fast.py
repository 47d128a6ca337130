"""Whole runs of a tiny pi0-FAST: it imitates, is reinforced token by token, goes on bit for bit, and is exported."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file

import runs
from acting_runs import PLUGINS, TURN, acting_config, metrics, weights
from mmrl.api.errors import UserError
from mmrl.policies.load import make_policy
from mmrl.train.export import export_run
from mmrl.train.resolve import resolve
from mmrl.train.smoke import smoke

REACH = {"id": "robotics/reach", "options": {"dims": 4, "size": 56, "cameras": ["front", "wrist"], "max_steps": 8}}
SFT = {"kind": "sft", "split": "demo", "steps": 2, "batch_size": 4, "learning_rate": 3e-3}
GRPO = {"kind": "rl", "algorithm": "grpo", "steps": 2, "prompts_per_step": 4, "group_size": 4, "learning_rate": 1e-3}
PPO = {"kind": "rl", "algorithm": "ppo", "steps": 2, "prompts_per_step": 8, "group_size": 1, "minibatches": 2, "epochs": 2}
PPO |= {"credit": "chunk", "learning_rate": 1e-3, "settings": {"gamma": 0.9}}
PPO |= {"critic": {"hidden_sizes": [8], "detach": True, "learning_rate": 3e-3}}


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", PLUGINS)


def config(folder, task, stages, options=None, model="tiny:pi0_fast:hidden=32,layers=1,chunk=3", **sections):
    dims, state = (2, 2) if task is TURN else (4, 8)
    own = {"dims": dims, "chunk": 2, "state": state, "action_tokens": 20, "vocabulary": "actions", **(options or {})}
    policy = {"kind": "pi0_fast", "model": model, "options": own}
    return acting_config(folder, task, stages, **{"policy": policy, "evaluate": {"num_prompts": 4}, **sections})


@pytest.mark.slow
def test_it_imitates_and_is_reinforced_on_the_table(tmp_path):
    """Demonstrations of the table's expert, then groups of episodes from one start; what the folder holds goes on."""
    dense = {**REACH, "options": {**REACH["options"], "reward": "own"}}
    folder = runs.run(config(tmp_path, dense, [SFT, GRPO], {"action_tokens": 14}))
    imitated, found = metrics(folder)[:2], metrics(folder)[2:]
    assert all(5 < m["loss"] < 6.5 and m["grad_norm"] > 0 for m in imitated), "nats of a token, of 321"
    reinforced = [m for m in found if m["reward/std"] > 0]
    assert len(found) == 2 and reinforced and all(m["logprob_gap"] < 1e-4 and m["grad_norm"] > 0 for m in reinforced)
    assert all(5 < m["entropy"] < 5.78 for m in reinforced)
    again = {"kind": "pi0_fast", "model": str(folder.path / "checkpoints" / "step-000004" / "policy")}
    chunks = {**PPO, "steps": 1, "ratio": "chunk", "prompts_per_step": 2, "minibatches": 1, "epochs": 1}
    (found,) = metrics(runs.run(config(tmp_path / "on", dense, [chunks], policy=again)))
    assert found["logprob_gap"] < 1e-4 and found["entropy"] > 7, "a chunk's entropy is that of its tokens"


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["grpo", "rloo", "trajectory-grpo"])
def test_groups_of_episodes_are_compared(tmp_path, algorithm):
    stage = {**GRPO, "algorithm": algorithm, "prompts_per_step": 8}
    found = metrics(runs.run(config(tmp_path, TURN, [stage], {"chunk": 1})))
    assert len(found) == 2
    assert all(m["logprob_gap"] < 1e-4 and m["reward/std"] > 0 and m["grad_norm"] > 0 for m in found)


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path):
    stages, keep = [{**SFT, "split": "warm"}, PPO], {"every": 2, "keep": 9}
    whole = runs.run(config(tmp_path / "whole", TURN, stages, checkpoint=keep))
    again = config(tmp_path / "again", TURN, stages, checkpoint=keep)
    with pytest.raises(KeyboardInterrupt):
        runs.run(again, progress=runs.Silent(3))
    folder = runs.run(again, resume=True)
    one, two = weights(whole, 4), weights(folder, 4)
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)
    assert any(not one[name].equal(before) for name, before in weights(whole, 2).items()), "PPO changes them"


@pytest.mark.slow
def test_adapters_are_exported_worked_in(tmp_path):
    sections = {"policy": {**config(tmp_path, REACH, [SFT]).policy.model_dump(), "lora": {"rank": 2}}}
    run = runs.run(config(tmp_path / "runs", REACH, [SFT], **sections)).path
    made = export_run(run, tmp_path / "out", which="last", merged=True)
    assert made.layout == "lerobot"
    told = json.loads((tmp_path / "out" / "config.json").read_text())
    assert told["type"] == "pi0_fast" and list(told["input_features"])[:2] == [
        "observation.images.front",
        "observation.images.wrist",
    ]
    assert not any("lora" in name for name in load_file(tmp_path / "out" / "model.safetensors"))
    assert (tmp_path / "out" / "action_tokenizer" / "tokenizer.json").is_file()


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_it_learns_to_turn_to_the_mark(tmp_path):
    """Imitation to where most succeed, then reinforcement of its tokens from there."""
    imitation = {**SFT, "split": "warm", "steps": 150, "batch_size": 32, "optimizer": "muon", "learning_rate": 1e-2}
    reinforcement = {**PPO, "steps": 40, "prompts_per_step": 128, "minibatches": 4, "epochs": 1, "learning_rate": 1e-3}
    sections = {"evaluate": {"num_prompts": 200, "every": 40}, "simulate": {"num_envs": 64}}
    model = "tiny:pi0_fast:hidden=32,layers=2,chunk=1"
    folder = runs.run(config(tmp_path, TURN, [imitation, reinforcement], {"chunk": 1, "action_tokens": 6}, model, **sections))
    imitated, reinforced = (r["eval"]["value"] for r in runs.rows(folder) if "eval" in r)
    assert 0.7 < imitated < reinforced - 0.04, (imitated, reinforced)


def test_smoke_takes_a_tiny_one(tmp_path):
    found = smoke(config(tmp_path, REACH, [PPO], model="lerobot/pi0fast-base"))
    assert found.policy.model == "tiny:pi0_fast"
    made = make_policy(found.policy, device="cpu")
    assert made.dims == 4 and made.chunk == 2


@pytest.mark.parametrize("key", ["ratio", "credit"])
def test_an_action_has_no_tokens_of_its_own(tmp_path, key):
    message = rf'^stages\.1\.{key} = "action": the tokens of .* are words that say a chunk of actions, and no .* or "chunk"$'
    with pytest.raises(UserError, match=message):
        resolve(config(tmp_path, REACH, [SFT, {**PPO, "ratio": "token", key: "action"}]))
