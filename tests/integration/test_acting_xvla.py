"""Whole runs of a tiny X-VLA: it imitates, is reinforced, goes on bit for bit, and is loaded again."""

from __future__ import annotations

import pytest

import runs
from acting_runs import PLUGINS, TURN, acting_config, metrics, weights
from mmrl.api.errors import UserError
from mmrl.train.smoke import smoke

REACH = {"id": "robotics/reach", "options": {"dims": 4, "size": 64, "cameras": ["front", "wrist"], "max_steps": 8}}
SFT = {"kind": "sft", "split": "demo", "steps": 12, "batch_size": 8, "learning_rate": 3e-3}
PPO = {"kind": "rl", "algorithm": "ppo", "steps": 1, "prompts_per_step": 16, "group_size": 1, "minibatches": 2, "epochs": 1}
PPO |= {"ratio": "chunk", "credit": "chunk", "learning_rate": 1e-3, "settings": {"gamma": 0.9}}
PPO |= {"critic": {"hidden_sizes": [8], "detach": True, "learning_rate": 3e-3}}
GRPO = {"kind": "rl", "algorithm": "trajectory-grpo", "steps": 1, "prompts_per_step": 4, "group_size": 4, "learning_rate": 1e-3}
FROZEN = [{"match": part, "freeze": True} for part in ("vision", "projector", "language")]


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", PLUGINS)


def config(folder, task, stages, model="tiny:xvla:hidden=32,layers=2,chunk=3", options=None, **sections):
    dims, state = (2, 2) if task is TURN else (4, 8)
    options = {"dims": dims, "chunk": 2, "state": state, "steps": 3, "domain": 1, **(options or {})}
    policy = {"kind": "xvla", "model": model, "options": options}
    return acting_config(folder, task, stages, **{"policy": policy, **sections})


@pytest.mark.slow
@pytest.mark.parametrize("stage", [PPO, GRPO], ids=["ppo", "grpo"])
def test_reinforcement_changes_what_it_should(stage, tmp_path):
    """What was sampled is what is learned from; the second step leaves the frozen parts, and both leave other domains."""
    stages, keep = [stage, {**stage, "parts": FROZEN}], {"every": 1, "keep": 9}
    folder = runs.run(config(tmp_path, TURN, stages, checkpoint=keep))
    found = metrics(folder)
    assert len(found) == 2 and all(m["logprob_gap"] < 1e-5 and m["reward/std"] > 0 and m["grad_norm"] > 0 for m in found)
    before, after = weights(folder, 1), weights(folder, 2)
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved and all(name.startswith("model.transformer.") for name in moved), moved
    for name in ("soft_prompt_hub.weight", "action_encoder.fc.weight", "action_decoder.bias.weight"):
        rows = (before[f"model.transformer.{name}"] != after[f"model.transformer.{name}"]).any(1).tolist()
        assert rows == [False, True, False], name


@pytest.mark.slow
def test_it_imitates_the_tables_expert_and_goes_on(tmp_path):
    """Imitation lowers the loss; a checkpoint of it is reinforced, and what it was saved with need not be said again."""
    folder = runs.run(config(tmp_path, REACH, [SFT], checkpoint={"every": 12, "keep": 9}))
    losses = [m["loss"] for m in metrics(folder)]
    assert len(losses) == 12 and sum(losses[-3:]) < 0.7 * sum(losses[:3]), losses
    policy = {"kind": "xvla", "model": str(folder.path / "checkpoints" / "step-000012" / "policy")}
    stages, keep = [{**PPO, "steps": 2, "prompts_per_step": 2}], {"every": 1, "keep": 9}
    whole = runs.run(config(tmp_path / "on", REACH, stages, policy=policy, checkpoint=keep))
    assert all(m["logprob_gap"] < 1e-5 for m in metrics(whole))
    again = config(tmp_path / "again", REACH, stages, policy=policy, checkpoint=keep)
    with pytest.raises(KeyboardInterrupt):
        runs.run(again, progress=runs.Silent(1))
    one, two = weights(whole, 2), weights(runs.run(again, resume=True), 2)
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


def test_smoke_takes_a_tiny_one(tmp_path):
    """Without what is of the checkpoint's robots: the tiny one has three domains, and an action space of its own."""
    found = smoke(config(tmp_path, REACH, [PPO], model="2toINF/X-VLA-Libero", options={"domain": 3, "rotation": "rows"}))
    assert found.policy.model == "tiny:xvla" and found.policy.kind == "xvla"
    assert not {"domain", "rotation"} & set(found.policy.options)


def test_what_does_not_fit_is_told_in_one_line(tmp_path):
    with pytest.raises(UserError, match=r"takes actions of 4 numbers, and policy\.options\.dims = 7: make them equal") as error:
        runs.run(config(tmp_path, REACH, [PPO], options={"dims": 7}))
    assert "\n" not in str(error.value)
