"""Whole runs of a tiny ACT: it imitates, is reinforced with and without a critic, is a base, and goes on bit for bit."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file

import runs
from acting_runs import PLUGINS, TURN, acting_config, metrics
from mmrl.api.errors import UserError
from mmrl.train.smoke import smoke

SFT = {"kind": "sft", "split": "warm", "steps": 2, "batch_size": 8, "learning_rate": 3e-3}
PPO = {"kind": "rl", "algorithm": "ppo", "steps": 1, "prompts_per_step": 16, "group_size": 1, "minibatches": 2, "epochs": 2}
PPO |= {"learning_rate": 1e-3, "critic": {"hidden_sizes": [8], "learning_rate": 3e-3}}
GRPO = {"kind": "rl", "steps": 1, "prompts_per_step": 4, "group_size": 4, "learning_rate": 1e-3}
MODEL = "tiny:act:width=16,chunk=4,layers=1,latent=4,pictures=0"


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", PLUGINS)


def config(folder, stages, options=None, model=MODEL, **sections):
    policy = {"kind": "act", "model": model, "options": {"dims": 2, "state": 2, "chunk": 2} | (options or {})}
    return acting_config(folder, TURN, stages, **{"policy": policy, **sections})


def weights(folder, step):
    place = folder.path / "checkpoints" / f"step-{step:06d}" / "policy"
    return load_file(place / "model.safetensors") | load_file(place / "acting.safetensors")


def test_it_imitates_and_what_it_samples_is_what_ppo_learns_from(tmp_path):
    folder = runs.run(config(tmp_path, [SFT, PPO], {"kl_weight": 1.0}, checkpoint={"every": 1, "keep": 9}))
    shown, _, learned = metrics(folder)
    assert 0.3 < shown["loss"] < 5 and learned["logprob_gap"] < 1e-5 and learned["reward/std"] > 0
    assert learned["grad_norm"] > 0 and 0 <= learned["clip_share"] < 1
    first, imitated, last = (weights(folder, step) for step in (1, 2, 3))
    still = {name for name in first if first[name].equal(imitated[name])}
    assert still == {"head.log_spread", "model.vae_encoder_pos_enc"}, "every other weight learns by imitation"
    still = {name for name in first if imitated[name].equal(last[name])}
    alone = {name for name in still if "vae" not in name}
    assert alone == {"model.encoder_latent_input_proj.weight"}, "where it acts the latent is 0"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "ratio"), [("grpo", "token"), ("rloo", "action"), ("trajectory-grpo", "chunk"), ("reinforce++", "action")]
)
def test_groups_of_episodes_from_one_start_are_compared(tmp_path, algorithm, ratio):
    (found,) = metrics(runs.run(config(tmp_path, [{**GRPO, "algorithm": algorithm, "ratio": ratio}], {"spread": 0.6})))
    assert found["logprob_gap"] < 1e-5 and found["reward/std"] > 0 and found["grad_norm"] > 0


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path):
    stages, keep = [{**SFT, "steps": 3}, {**PPO, "steps": 2}], {"every": 2, "keep": 9}
    whole = runs.run(config(tmp_path / "whole", stages, checkpoint=keep))
    again = config(tmp_path / "again", stages, checkpoint=keep)
    with pytest.raises(KeyboardInterrupt):
        runs.run(again, progress=runs.Silent(3))
    folder = runs.run(again, resume=True)
    one, two = weights(whole, 5), weights(folder, 5)
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


@pytest.mark.slow
def test_critics_choose_among_its_candidates_and_correct_it(tmp_path):
    """PA-RL trains the chunk as a whole; a residual policy is trained on top of single actions."""
    improve = {"kind": "off-policy", "steps": 2, "prompts_per_step": 4, "starts_after": 8, "batch_size": 8, "learning_rate": 1e-3}
    improve |= {"hidden": [8], "improve": {"candidates": 2, "keep": 1}}
    found = metrics(runs.run(config(tmp_path / "improve", [SFT, improve], {"chunk": 4})))
    assert found[-1]["off_policy/imitations"] > 0 and found[-1]["loss"] > 0
    folder = runs.run(config(tmp_path / "base", [SFT], {"chunk": 1, "ensemble": 0.01}, checkpoint={"every": 2, "keep": 1}))
    base = str(folder.path / "checkpoints" / "step-000002" / "policy")
    options = {"base": base, "dims": 2, "state": 2, "residual": 0.2, "hidden": [8]}
    policy = {"kind": "squashed", "model": "mlp", "options": options}
    off = {name: value for name, value in improve.items() if name != "improve"}
    found = metrics(runs.run(config(tmp_path / "residual", [off], policy=policy)))
    assert found[-1]["off_policy/transitions"] > 0


@pytest.mark.slow
def test_it_learns_to_turn_to_the_mark(tmp_path):
    """Imitation to where some succeed, then PPO from there."""
    reinforcement = {
        **PPO,
        "steps": 10,
        "prompts_per_step": 64,
        "learning_rate": 5e-4,
        "minibatches": 4,
        "settings": {"gamma": 0.9},
    }
    sections = {"evaluate": {"num_prompts": 200, "every": 10}, "simulate": {"num_envs": 128}}
    stages = [{**SFT, "steps": 6, "batch_size": 32}, reinforcement]
    folder = runs.run(config(tmp_path, stages, {"spread": 0.3}, **sections))
    imitated, reinforced = (r["eval"]["value"] for r in runs.rows(folder) if "eval" in r)
    assert 0.2 < imitated < 0.8 and reinforced > 0.9, (imitated, reinforced)


def test_smoke_takes_a_tiny_one(tmp_path):
    found = smoke(config(tmp_path, [PPO], model="lerobot/act_aloha_sim_transfer_cube_human"))
    assert found.policy.model == "tiny:act" and found.policy.kind == "act"


RECAP = {"kind": "recap", "steps": 1, "prompts_per_step": 4, "updates": 1, "batch_size": 8, "learning_rate": 1e-3}


@pytest.mark.parametrize(
    ("options", "stage", "said"),
    [
        ({"dims": 7}, PPO, r"takes actions of 2 numbers, and policy\.options\.dims = 7: make them equal"),
        ({"chunk": 5}, PPO, r"policy\.options\.chunk = 5 is too many for this ACT: 4 actions are predicted"),
        ({}, {**PPO, "algorithm": "dppo"}, r"the tokens of policy\.kind = 'act' are actions"),
        ({}, RECAP, r"policy\.kind = 'act' reads no instruction: use another stage or policy"),
        ({}, {**PPO, "parts": [{"match": "backbone", "freeze": True}]}, "a policy of kind 'act' always trains all its weights"),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(tmp_path, options, stage, said):
    with pytest.raises(UserError, match=said) as error:
        runs.run(config(tmp_path, [stage], options))
    assert "\n" not in str(error.value)
