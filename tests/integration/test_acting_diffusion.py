"""Whole runs of a tiny Diffusion Policy: it imitates, is reinforced by DPPO and without a critic, and goes on bit for bit."""

from __future__ import annotations

import pytest

import runs
from acting_runs import PLUGINS, TURN, acting_config, metrics, weights
from mmrl.api.errors import UserError
from mmrl.train.smoke import smoke

SFT = {"kind": "sft", "split": "warm", "steps": 2, "batch_size": 8, "learning_rate": 3e-3}
DPPO = {"kind": "rl", "algorithm": "dppo", "steps": 1, "prompts_per_step": 16, "group_size": 1, "minibatches": 2, "epochs": 2}
DPPO |= {"learning_rate": 1e-3, "critic": {"hidden_sizes": [8], "detach": True, "learning_rate": 3e-3}}
GRPO = {"kind": "rl", "algorithm": "trajectory-grpo", "steps": 1, "prompts_per_step": 4, "group_size": 4, "learning_rate": 1e-3}
MODEL = "tiny:diffusion:width=8,horizon=4,moments=2,times=4,pictures=0"


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", PLUGINS)


def config(folder, stages, options=None, model=MODEL, **sections):
    policy = {"kind": "diffusion", "model": model, "options": {"dims": 2, "state": 2, "chunk": 2} | (options or {})}
    return acting_config(folder, TURN, stages, **{"policy": policy, **sections})


def test_it_imitates_and_what_it_samples_is_what_dppo_learns_from(tmp_path):
    options = {"likelihood": "mean", "scheduler": "DDIM", "steps": 3, "tuned_steps": 2}
    folder = runs.run(config(tmp_path, [SFT, DPPO], options, checkpoint={"every": 1, "keep": 9}))
    shown, _, learned = metrics(folder)
    assert 0.3 < shown["loss"] < 4 and learned["logprob_gap"] < 1e-5 and learned["reward/std"] > 0
    assert learned["grad_norm"] > 0 and 0 < learned["clip_share"] <= 1
    first, last = weights(folder, 1), weights(folder, 3)
    still = {name for name in first if first[name].equal(last[name])}
    assert not still, "every weight learns"


@pytest.mark.slow
@pytest.mark.parametrize("ratio", ["token", "chunk"])
def test_groups_of_episodes_from_one_start_are_compared(tmp_path, ratio):
    (found,) = metrics(runs.run(config(tmp_path, [{**GRPO, "ratio": ratio}])))
    assert found["logprob_gap"] < 1e-4 and found["reward/std"] > 0 and found["grad_norm"] > 0


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path):
    stages, keep = [SFT, {**DPPO, "steps": 2}], {"every": 2, "keep": 9}
    whole = runs.run(config(tmp_path / "whole", stages, checkpoint=keep))
    again = config(tmp_path / "again", stages, checkpoint=keep)
    with pytest.raises(KeyboardInterrupt):
        runs.run(again, progress=runs.Silent(3))
    folder = runs.run(again, resume=True)
    one, two = weights(whole, 4), weights(folder, 4)
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


@pytest.mark.exhaustive
@pytest.mark.slow
def test_it_learns_to_turn_to_the_mark(tmp_path):
    """Imitation to where some succeed, then DPPO from there."""
    imitation = {**SFT, "steps": 40, "batch_size": 64}
    reinforcement = {**DPPO, "steps": 24, "prompts_per_step": 128, "minibatches": 4, "epochs": 2}
    reinforcement |= {"settings": {"gamma": 0.9, "clip": 0.2, "first_clip": 0.1}}
    sections = {"evaluate": {"num_prompts": 200, "every": 24}, "simulate": {"num_envs": 128}}
    options = {"scheduler": "DDIM", "chunk": 1}
    folder = runs.run(config(tmp_path, [imitation, reinforcement], options, **sections))
    imitated, reinforced = (r["eval"]["value"] for r in runs.rows(folder) if "eval" in r)
    assert imitated < reinforced - 0.1, (imitated, reinforced)


def test_smoke_takes_a_tiny_one(tmp_path):
    found = smoke(config(tmp_path, [DPPO], model="lerobot/diffusion_pusht"))
    assert found.policy.model == "tiny:diffusion" and found.policy.kind == "diffusion"


@pytest.mark.parametrize(
    ("options", "stage", "said"),
    [
        ({"dims": 7}, DPPO, r"takes actions of 2 numbers, and policy\.options\.dims = 7: make them equal"),
        ({}, {**DPPO, "settings": {"clip_high": 0.2}}, "algorithm 'dppo' has no setting 'clip_high'"),
        ({}, {**DPPO, "settings": {"clip_rate": 0}}, "settings.clip_rate = 0 must be"),
        ({}, {**DPPO, "settings": {"denoising_gamma": 1.5}}, "settings.denoising_gamma = 1.5 must be"),
        (
            {},
            {**DPPO, "ratio": "action"},
            r'stages\.0\.ratio = "action": the tokens of [^\n]* steps that denoise a chunk of actions, .* or "chunk"',
        ),
    ],
)
def test_what_does_not_fit_is_told_in_one_line(tmp_path, options, stage, said):
    with pytest.raises(UserError, match=said) as error:
        runs.run(config(tmp_path, [stage], options))
    assert "\n" not in str(error.value)


def test_a_policy_that_writes_has_no_denoising_steps(tmp_path):
    with pytest.raises(UserError, match=r"stages\.0: dppo learns on steps that denoise [^\n]* are words of an answer: use"):
        runs.run(runs.toy_config(tmp_path, stages=[{**DPPO, "prompts_per_step": 2}]))
