"""Policies that act, on the pretended device: imitation, PPO and an evaluation on a simulator that is there too, and on one in
processes of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

import runs
from mmrl import UserError
from mmrl.compute.devices import following_device
from mmrl.testing.cases import mostly_slow

REACH = {"id": "robotics/reach", "options": {"dims": 4, "size": 56, "max_steps": 4, "reward": "own"}}
SFT = {"kind": "sft", "split": "demo", "steps": 1, "batch_size": 2, "learning_rate": 1e-3}
PPO = {"kind": "rl", "algorithm": "ppo", "steps": 1, "prompts_per_step": 4, "group_size": 1, "minibatches": 2, "epochs": 2}
PPO |= {"learning_rate": 1e-3, "critic": {"hidden_sizes": [8], "warmup_steps": 0}}
VLA = {"kind": "vla", "model": "tiny:qwen2_5_vl:hidden=32,layers=1"}
POLICIES = {
    "small": ("action", {"kind": "robotics/small", "model": "cnn", "options": {"state": 8, "hidden": [8], "size": 56}}),
    "vla": ("token", {**VLA, "options": {"bins": 16, "chunk": 2}}),
    "pi0": ("chunk", {"kind": "pi0", "model": "tiny:pi0:hidden=32,layers=1,chunk=3"}),
    "smolvla": ("action", {"kind": "smolvla", "model": "tiny:smolvla:hidden=32,layers=2,chunk=3"}),
    "xvla": ("action", {"kind": "xvla", "model": "tiny:xvla:hidden=32,layers=1,chunk=3"}),
    "vla, one token after the other": ("action", {**VLA, "options": {"bins": 16, "decoding": "one-by-one"}}),
    "vla, adapters": ("token", {**VLA, "lora": {"rank": 2}, "options": {"head": "normal"}}),
    "pi05": ("chunk", {"kind": "pi05", "model": "tiny:pi05:hidden=32,layers=1,chunk=3"}),
    "pi0_fast": (
        "token",
        {
            "kind": "pi0_fast",
            "model": "tiny:pi0_fast:hidden=32,layers=1,chunk=3",
            "options": {"chunk": 2, "state": 8, "action_tokens": 14, "vocabulary": "actions"},
        },
    ),
    "gr00t": ("chunk", {"kind": "gr00t", "model": "tiny:gr00t:hidden=32,layers=1,chunk=3"}),
    "gr00t_n1d6": ("chunk", {"kind": "gr00t", "model": "tiny:gr00t_n1d6:hidden=32,layers=1,chunk=3"}),
    "act": (
        "action",
        {
            "kind": "act",
            "model": "tiny:act:width=16,chunk=3,latent=0",  # noise that depends on weights may round to another
            "options": {"chunk": 2, "state": 8, "dropout": 0.0},
        },
    ),
    "diffusion": ("chunk", {"kind": "diffusion", "model": "tiny:diffusion:width=8,horizon=4,times=2"}),
    "openvla": ("token", {"kind": "vla", "model": "tiny:openvla:hidden=32,layers=1", "options": {}}),
}
SIZES = {"act": 64}
"""Pixels, where a policy wants them exactly."""
CHUNKED = {"chunk": 2, "state": 8, "steps": 2}


def figures(folder, device, ratio, policy, critic=PPO["critic"], **simulate):
    options = {
        "dims": 4,
        **policy.get("options", {k: v for k, v in CHUNKED.items() if (k, policy["kind"]) != ("steps", "smolvla")}),
    }
    data = {
        "policy": {**policy, "options": options, "device": device},
        "tasks": [{**REACH, "options": {**REACH["options"], "size": SIZES.get(policy["kind"], 56)}}],
        "simulate": {"num_envs": 4, **simulate},
        "stages": [SFT, {**PPO, "critic": critic, "ratio": ratio, "credit": ratio}],
        "evaluate": {"num_prompts": 0},
        "record": {"rollouts_every": 1, "trackers": []},
        "generate": {},
    }
    return metrics_of(runs.run(runs.toy_config(folder, **data)))


def metrics_of(folder):
    found = runs.rows(folder)
    clock = ("time/", "memory/", "simulator/", "policy/")
    return {
        (row["step"], name): value
        for row in found
        for name, value in row.get("metrics", {}).items()
        if not name.startswith(clock)
    } | {(row["step"], "eval"): row["eval"]["value"] for row in found if "eval" in row}


@pytest.mark.parametrize("name", mostly_slow(POLICIES, everyday=4))
def test_a_policy_learns_on_a_simulator_beside_it_as_on_the_cpu(device, tmp_path, name):
    with device.counting() as seen:
        there = figures(tmp_path / "there", "cuda", *POLICIES[name], lanes=2)  # the policy acts on a stream of its own
    assert any(wait.line.startswith("sims/tabletop") for wait in seen.waits), "the table was elsewhere"
    here = figures(tmp_path / "here", "cpu", *POLICIES[name])
    assert there == pytest.approx(here, abs=1e-4, rel=1e-3)
    assert any(value for (_, what), value in there.items() if what == "grad_norm"), "nothing was learned"


def test_what_another_did_is_remembered_as_on_the_cpu(device, tmp_path, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", str(Path(runs.__file__).with_name("dial.py")))
    stage = {"kind": "off-policy", "steps": 2, "prompts_per_step": 4, "updates": 1, "batch_size": 16, "critics": 2, "hidden": [8]}
    task = {"id": "dial/turn", "options": {"n": 99, "helps": 0.3, "reward": "stages", "stages": {"success": 1.0}}}
    found = []
    for place in ("cuda", "cpu"):
        policy = {"kind": "squashed", "model": "mlp", "options": {"dims": 2, "state": 2, "hidden": [8]}, "device": place}
        data = {"policy": policy, "tasks": [task | {"verifiers": {"dial/success": 0.0}}], "stages": [stage]}
        data |= {"simulate": {"num_envs": 4}, "evaluate": {"num_prompts": 0}, "record": {"trackers": []}, "generate": {}}
        found.append(metrics_of(runs.run(runs.toy_config(tmp_path / place, **data))))
    assert found[0] == pytest.approx(found[1], abs=1e-4, rel=1e-3)
    assert found[0][2, "episode/intervened_share"] > 0 and found[0][2, "off_policy/offline"] > 0


@pytest.mark.parametrize("learner, acting", [("cpu", "cuda"), ("cuda", "cpu")])
def test_a_policy_that_acts_on_another_device_learns_the_same(device, tmp_path, learner, acting):
    apart = figures(tmp_path / "apart", learner, *POLICIES["small"], policy_device=acting)
    together = figures(tmp_path / "together", "cpu", *POLICIES["small"])
    assert apart == pytest.approx(together, abs=1e-4, rel=1e-3)
    assert any(value for (_, what), value in apart.items() if what == "grad_norm"), "nothing was learned"


@pytest.mark.parametrize("learners, own, found", [(1, 3, "cuda:4"), (4, 0, "cuda:4"), (4, 3, "cuda:7")])
def test_each_learner_has_the_gpu_that_is_as_far_from_the_first(monkeypatch, learners, own, found):
    monkeypatch.setattr("mmrl.compute.ranks.world_size", lambda: learners)
    monkeypatch.setattr("torch.cuda.current_device", lambda: own)
    assert following_device("cuda:4") == found and following_device("cpu") == "cpu"


def test_a_critic_with_eyes_of_its_own_is_refused_for_a_policy_that_acts_elsewhere(tmp_path):
    ratio, policy = POLICIES["small"]
    with pytest.raises(UserError, match=r'critic\.backbone = "separate" values episodes while .*: use "shared"'):
        figures(tmp_path, "cpu", ratio, policy, critic={"hidden_sizes": [8], "backbone": "separate"}, policy_device="cpu")
