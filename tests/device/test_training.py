"""Training on the pretended device: nothing is on the wrong side, and the numbers are the CPU's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import runs

pytestmark = pytest.mark.parametrize("device", ["threads"], indirect=True)
SUPPORT = Path(runs.__file__).parent
MODEL = "tiny:qwen2_5_vl:hidden=32,layers=1"
SFT = {"kind": "sft", "steps": 1, "batch_size": 4, "learning_rate": 1e-3}
RL = {"kind": "rl", "steps": 2, "prompts_per_step": 3, "group_size": 4, "learning_rate": 1e-3}
PPO = {**RL, "algorithm": "ppo", "steps": 1, "minibatches": 2, "epochs": 2, "entropy_coef": 0.01}
CRITIC = {"hidden_sizes": [8], "learning_rate": 1e-3}
MIXED = {"id": "shares/mixed", "options": {"kinds": ["text", "picture", "two", "large"]}}
LESS = {"masked": 0.5, "patch": 14, "coef": 0.1}
CASES = {
    "mean weights, a reference and an evaluation": {
        "stages": [
            {**SFT, "ema_decay": 0.5},
            {**RL, "kl_coef": 0.1, "reference_every": 1, "epochs": 2, "stop_kl": 1.0}
            | {"importance_sampling": "truncate", "importance_sampling_normalise": True},
        ],
        "evaluate": {"num_prompts": 4, "num_samples": 2, "temperature": 1.0, "blank_images": True},
    },
    "critics": {"stages": [{**PPO, "critic": CRITIC}, {**PPO, "critic": {**CRITIC, "backbone": "separate"}}]},
    "adapters, a completion a row, checkpointing, pictures of several sizes": {
        "policy": {"model": MODEL, "lora": {"rank": 2, "target_modules": ["language", "vision"]}},
        "tasks": [MIXED],
        "stages": [{**RL, "prompts_per_step": 4, "steps": 1, "kl_coef": 0.1, "kl_in": "reward"}],
        "train": {"threads": 1, "packing": "per-completion", "micro_batch_tokens": 120, "gradient_checkpointing": True},
        "generate": {"max_tokens": 10, "top_p": 0.9, "top_k": 40},
    },
    "adapters beside a frozen tower, whose sight is kept": {
        "policy": {"model": MODEL, "lora": {"rank": 2}},
        "tasks": [MIXED],
        "stages": [{**RL, "steps": 1, "kl_coef": 0.1, "epochs": 2, "minibatches": 2}],
    },
    "a conversation, imitation and a teacher": {
        "tasks": [{"id": "asks_again/colour"}],
        "generate": {"max_tokens": 4, "max_turns": 2},
        "stages": [
            {**RL, "steps": 1, "algorithm": "trajectory-grpo"},
            {**RL, "steps": 1, "algorithm": "gigpo"},
            {**RL, "kind": "distill", "teacher": f"{MODEL},seed=7", "steps": 1},
        ],
    },
    "masked and noisy pictures, and losses of all tokens": {
        "stages": [
            {**RL, "steps": 1, "algorithm": "vppo", "perception": LESS},
            {**RL, "steps": 1, "algorithm": "clip-cov", "minibatches": 2, "perception": {"gradient": "both", **LESS}},
            {**RL, "steps": 1, "algorithm": "real", "minibatches": 2, "noisy": {"share": 0.5, "level": 300}},
        ]
    },
    "routes that are replayed, and the balance of experts": {
        "policy": {"model": "tiny:qwen3_vl_moe:hidden=32,layers=2"},
        "stages": [
            {**RL, "steps": 1, "experts": {"router_replay": "R3", "aux_loss_coef": 0.1, "z_loss_coef": 0.1}},
            {**RL, "steps": 1, "epochs": 2, "minibatches": 2, "experts": {"router_replay": "R2"}},
        ],
        "train": {"threads": 1, "gradient_checkpointing": True},
    },
}  # fmt: skip
EXACT = 1e-4
"""Attention adds in another order than the CPU's own kernel."""


def figures(folder, device, case):
    policy = {"model": MODEL, **case.get("policy", {}), "device": device}
    shown = {"record": {"rollouts_every": 1, "rollouts": 99, "trackers": []}, "evaluate": {"num_prompts": 0}, **case}
    found = runs.rows(runs.run(runs.toy_config(folder, **{**shown, "policy": policy})))
    return {
        (row["step"], name): value
        for row in found
        for name, value in row.get("metrics", {}).items()
        if not name.startswith(("time/", "memory/"))
    } | {(row["step"], "eval"): row["eval"]["value"] for row in found if "eval" in row}


@pytest.fixture(autouse=True)
def plugins(monkeypatch):
    files = [str(SUPPORT / f"{name}.py") for name in ("toy", "shares", "asks_again")]
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join(files))


@pytest.mark.parametrize("name", CASES)
def test_training_has_the_figures_of_the_cpu(device, tmp_path, name):
    with device.counting() as seen:
        there = figures(tmp_path / "there", "cuda", CASES[name])
    assert seen.copies, "nothing went to the device"
    here = figures(tmp_path / "here", "cpu", CASES[name])
    assert there == pytest.approx(here, abs=EXACT, rel=EXACT)
    assert any(value for (_, what, *_), value in there.items() if what == "grad_norm"), "nothing was learned"


def test_what_is_offloaded_goes_to_pinned_memory_and_changes_no_bit(device, tmp_path):
    """In bfloat16, where masters are offloaded too."""
    found = []
    for offload in (False, True):
        case = {
            "policy": {"model": MODEL, "dtype": "bfloat16"},
            "stages": [{**SFT, "steps": 2, "ema_decay": 0.5}],
            "train": {"gradient_checkpointing": True, "offload_activations": offload, "offload_optimizer": offload, "threads": 1},
        }
        found.append(figures(tmp_path / str(offload), "cuda", case))
    assert found[0] == found[1] and found[0]
