"""Whole runs of tiny policies whose expert turns noise into actions: they imitate, are reinforced, go on bit for bit, and are
loaded again."""

from __future__ import annotations

import contextlib

import pytest

import runs
from acting_runs import PLUGINS, TURN, acting_config, metrics, weights
from mmrl.api.errors import UserError
from mmrl.policies.load import make_policy
from mmrl.testing.cases import mostly_slow
from mmrl.train.checks.run_file import check_model
from mmrl.train.resolve import resolve
from mmrl.train.smoke import smoke

MODEL = "tiny:pi0:hidden=32,layers=1,chunk=3"
MODELS = {kind: f"tiny:{kind}:hidden=32,layers=1,chunk=3" for kind in ("pi0", "pi05", "gr00t")}
EXPERTS = {
    "pi0": ("action_", "state_proj", "model.dit."),
    "pi05": ("model.action_", "model.time_mlp_", "model.paligemma_with_expert.gemma_expert."),
    "gr00t": ("action_head.",),
}
"""What the names of the experts' weights begin with, in the folders of each layout."""
LAYERS = {
    "pi0": "model.dit.layers.0.self_attn",
    "pi05": "model.paligemma_with_expert.gemma_expert.model.layers.0.self_attn",
    "gr00t": "action_head.model.transformer_blocks.0.attn1",
}
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


def config(folder, task, stages, model="", options=None, kind="pi0", **sections):
    dims, state = (2, 2) if task is TURN else (4, 8)
    policy = {
        "kind": kind,
        "model": model or MODELS[kind],
        "options": {"dims": dims, "chunk": 2, "state": state, "steps": 3, **(options or {})},
    }
    return acting_config(folder, task, stages, **{"policy": policy, **sections})


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_it_imitates_the_tables_expert_and_is_loaded_again(tmp_path, kind):
    folder = runs.run(config(tmp_path, REACH, [SFT], kind=kind, checkpoint={"every": 1, "keep": 9}))
    assert len(metrics(folder)) == 3 and all(0.5 < m["loss"] < 2 and m["grad_norm"] > 0 for m in metrics(folder))
    before, after = weights(folder, 1), weights(folder, 3)
    still = {name for name in before if before[name].equal(after[name])}
    assert still and all("embed_tokens" in name or "layers.0" in name or "lm_head" in name or "norm" in name for name in still), (
        still
    )
    assert any("vision_tower" in name or "visual" in name for name in before.keys() - still), "the whole model learns"
    checkpoint = folder.path / "checkpoints" / "step-000003" / "policy"
    policy = {"kind": kind, "model": str(checkpoint)}
    again = runs.run(config(tmp_path / "on", REACH, [{**PPO, "steps": 1, "prompts_per_step": 2}], policy=policy))
    assert metrics(again)[0]["logprob_gap"] < 1e-4, "what a folder was saved with need not be said again"


@pytest.mark.parametrize("noisy", mostly_slow(["all", "one"], everyday=1))
@pytest.mark.parametrize("kind", MODELS)
def test_reinforcement_of_the_expert_alone(tmp_path, kind, noisy):
    """What was sampled is what is learned from, and the frozen parts stay what they were."""
    stages, keep = [{**PPO, "steps": 1}, {**PPO, "parts": FROZEN}], {"every": 1, "keep": 9}
    folder = runs.run(config(tmp_path, TURN, stages, options={"noisy": noisy}, kind=kind, checkpoint=keep))
    found = metrics(folder)
    assert len(found) == 3 and all(m["logprob_gap"] < 1e-4 and m["reward/std"] > 0 and m["grad_norm"] > 0 for m in found)
    before, after = weights(folder, 1), weights(folder, 3)
    moved = {name for name in before if not before[name].equal(after[name])}
    assert moved and all(name.startswith(EXPERTS[kind]) for name in moved), moved
    assert any(name.startswith(LAYERS[kind]) for name in moved)
    assert any(name.endswith(("action_out_proj.weight", "action_decoder.layer2.W")) for name in moved)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_groups_of_episodes_from_one_start_are_compared(tmp_path, kind):
    folder = runs.run(config(tmp_path, TURN, [GRPO], kind=kind))
    assert len(metrics(folder)) == 2
    assert all(m["logprob_gap"] < 1e-4 and m["reward/std"] > 0 and m["grad_norm"] > 0 for m in metrics(folder))


@pytest.mark.slow
def test_a_pi0_follows_another(tmp_path):
    """Of the probabilities of the very steps that it took; what can't be scored is refused before anything is loaded."""
    made = runs.run(config(tmp_path / "teacher", TURN, [{**SFT, "split": "warm", "steps": 20, "optimizer": "muon"}]))
    (teacher,) = (made.path / "checkpoints").glob("step-*/policy")
    follow = {"kind": "distill", "teacher": str(teacher), "divergence": "sampled", "steps": 2, "prompts_per_step": 8}
    found = metrics(runs.run(config(tmp_path, TURN, [{**follow, "learning_rate": 3e-3}])))
    assert len(found) == 2 and all(m["divergence"] > 0 and m["grad_norm"] > 0 for m in found)
    for name, message in ((MODEL, None), ("tiny:qwen2_vl", r"stages\.0\.teacher: 'tiny:qwen2_vl' is no pi0")):
        run = resolve(config(tmp_path / "other", TURN, [{**follow, "teacher": name}]))
        with pytest.raises(UserError, match=message) if message else contextlib.nullcontext():
            check_model(run.config, run.policy)
    (kept := teacher / "acting.json").write_text(kept.read_text().replace('"dims": 2', '"dims": 3'))
    with pytest.raises(UserError, match=r"stages\.0\.teacher: .*has dims = 3, and the policy 2") as error:
        check_model(run.config.model_copy(update={"stages": config(tmp_path, TURN, [follow]).stages}), run.policy)
    assert "\n" not in str(error.value)


@pytest.mark.exhaustive  # two minutes each; tests/integration/test_acting_runs.py learns it in less
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "warm", "steps", "learning_rate", "least"),
    [("pi0", 50, 40, 6e-4, 0.6), ("pi05", 100, 80, 2e-3, 0.5), ("gr00t", 50, 40, 6e-4, 0.6)],
)
@pytest.mark.timeout(900)
def test_it_learns_to_turn_to_the_mark(tmp_path, kind, warm, steps, learning_rate, least):
    """Imitation to where more than half succeed, then reinforcement from there. pi0.5 has to learn what the words of the state
    mean, and takes longer."""
    imitation = {**SFT, "split": "warm", "steps": warm, "batch_size": 32, "optimizer": "muon", "learning_rate": 1e-2}
    reinforcement = {**PPO, "ratio": "action", "credit": "action", "steps": steps, "prompts_per_step": 128, "minibatches": 4}
    reinforcement |= {"epochs": 1, "learning_rate": learning_rate}
    sections = {"evaluate": {"num_prompts": 200, "every": steps}, "simulate": {"num_envs": 64}}
    model, options = f"tiny:{kind}:hidden=32,layers=2,chunk=1", {"chunk": 1, "steps": 4}
    folder = runs.run(config(tmp_path, TURN, [imitation, reinforcement], model, options, kind, **sections))
    imitated, reinforced = (r["eval"]["value"] for r in runs.rows(folder) if "eval" in r)
    assert least < imitated < reinforced - 0.1, (imitated, reinforced)


@pytest.mark.slow
@pytest.mark.parametrize("kind", MODELS)
def test_a_stopped_run_goes_on_bit_for_bit(tmp_path, kind):
    stages, keep = [{**SFT, "split": "warm"}, PPO], {"every": 2, "keep": 9}
    whole = runs.run(config(tmp_path / "whole", TURN, stages, kind=kind, checkpoint=keep))
    again = config(tmp_path / "again", TURN, stages, kind=kind, checkpoint=keep)
    with pytest.raises(KeyboardInterrupt):
        runs.run(again, progress=runs.Silent(4))
    folder = runs.run(again, resume=True)
    one, two = weights(whole, 5), weights(folder, 5)
    assert one.keys() == two.keys() and all(one[name].equal(two[name]) for name in one)


@pytest.mark.parametrize(
    ("kind", "model", "options"),
    [
        ("pi0", "lerobot/pi0_base", {}),
        ("pi05", "lerobot/pi05_base", {}),
        ("gr00t", "nvidia/GR00T-N1.7-3B", {"embodiment": "my_robot", "gripper": "open-high"}),
    ],
)
def test_smoke_takes_a_tiny_one(tmp_path, kind, model, options):
    found = smoke(config(tmp_path, REACH, [PPO], model, options, kind))
    assert found.policy.model == f"tiny:{kind}" and found.policy.kind == kind
    made = make_policy(found.policy, device="cpu")
    assert made.dims == 4 and made.chunk == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cameras": ["top"]}, r"policy\.options\.cameras names 'top', which simulator .* doesn't show: it shows front, wrist"),
        ({"dims": 7}, r"takes actions of 4 numbers, and policy\.options\.dims = 7: make them equal"),
        ({"chunk": 4}, r"policy\.options\.chunk = 4 is too many for this (pi0|pi05|GR00T): 3 actions are predicted"),
    ],
)
@pytest.mark.parametrize("kind", MODELS)
def test_what_does_not_fit_is_told_in_one_line(tmp_path, kind, options, message):
    with pytest.raises(UserError, match=message) as error:
        runs.run(config(tmp_path, REACH, [PPO], options=options, kind=kind))
    assert "\n" not in str(error.value)


def test_parts_that_match_nothing_are_refused_without_the_model(tmp_path):
    made = resolve(config(tmp_path, REACH, [{**PPO, "parts": [{"match": "*.experts.*", "freeze": True}]}]))
    with pytest.raises(UserError, match=r"stages\.0\.parts: '\*\.experts\.\*' matches none of the \d+ weights: "):
        check_model(made.config, made.policy)
