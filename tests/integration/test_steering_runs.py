"""Whole runs in which a policy learns to steer a frozen one by its noise (DSRL): they learn, resume bit for bit, and say what is
wrong."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import runs
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.config.load import parse_config
from mmrl.config.sections import PolicyConfig
from mmrl.policies.load import make_policy
from mmrl.train.resolve import resolve
from mmrl.train.smoke import smoke
from mmrl.train.start import evaluate_only

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
BASE = {
    "kind": "diffusion",
    "model": "tiny:diffusion:width=8,horizon=4,moments=1,times=4,pictures=0",
    "options": {"dims": 2, "chunk": 2, "state": 2, "scheduler": "DDIM"},
}
STAGE = {"kind": "off-policy", "steps": 4, "prompts_per_step": 4, "updates": 2, "batch_size": 32, "critics": 3}
STAGE |= {"hidden": [32, 32], "learning_rate": 3e-3, "start_temperature": 0.1}
ALIASED: dict[str, Any] = {"noise_aliasing": {"updates": 2, "base_steps": 1}}
TD3 = {"td3": {"warmup_updates": 3}, "start_temperature": 1.0}


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL]))


def config(folder: Path, name: str = "steered", prompts: int = 16, options: Any = (), **stage: Any) -> Any:
    given = {"base": BASE, "state": 2, "hidden": [32, 32], **dict(options)}
    paid = {"reward": "stages", "stages": {"near": 0.2, "success": 1.0}}
    return parse_config(
        {
            "name": name,
            "runs_dir": str(folder),
            "policy": {"kind": "steered", "model": "mlp", "options": given},
            "tasks": [{"id": "dial/turn", "options": {"n": 500, **paid}, "verifiers": {"dial/success": 0.0}}],
            "stages": [STAGE | stage],
            "simulate": {"num_envs": 4},
            "evaluate": {"num_prompts": prompts},
            "record": {"trackers": [], "rollouts": 4},
            "train": {"threads": 1},
        }
    )


def last(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("step-*"))[-1]


def summary(folder: Path) -> Any:
    return json.loads((folder / "summary.json").read_text())


@pytest.mark.always
@pytest.mark.slow
@pytest.mark.parametrize("each", [False, True])
def test_it_learns_to_turn_the_dial_by_noise_alone(tmp_path: Path, each: bool) -> None:
    """The base's weights are random: what it does of itself rarely meets the mark."""
    done = runs.run(config(tmp_path, prompts=100, steps=16, prompts_per_step=16, options={"each": each})).path
    before, after = (summary(done)[name]["dial/turn"]["value"] for name in ("before", "last"))
    assert before < 0.4 and after > 0.6


@pytest.mark.always
@pytest.mark.slow
def test_it_learns_to_turn_the_dial_by_noise_that_is_worth_what_its_actions_are(tmp_path: Path) -> None:
    """DSRL-NA, with episodes of the base alone and of an expert, whose noise nobody knows. In half as many steps as above."""
    keys = {**ALIASED, "offline": "expert", "offline_episodes": 30}
    done = runs.run(config(tmp_path, prompts=100, steps=8, prompts_per_step=16, **keys)).path
    before, after = (summary(done)[name]["dial/turn"]["value"] for name in ("before", "last"))
    assert before < 0.4 and after > 0.7


@pytest.mark.parametrize("way", [{}, TD3, ALIASED | {"interventions": 0.5}], ids=["soft actor-critic", "td3", "DSRL-NA"])
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path, way: dict[str, Any]) -> None:
    """With DSRL-NA an expert takes over in some episodes."""
    stage = {**way, "options": {"noise": 0.3 if way is TD3 else 0.0, "each": True}}
    if "interventions" in way:
        stage["options"]["base"] = {**BASE, "options": {**BASE["options"], "chunk": 1}}
    whole = runs.run(config(tmp_path, "whole", **stage)).path
    broken = config(tmp_path, "broken", **stage)
    with pytest.raises(KeyboardInterrupt):
        runs.run(broken, progress=runs.Silent(stop_after=2))
    resumed = runs.run(broken, resume=True).path
    files = ("scenes.safetensors", "offline.safetensors", "offline-scenes.safetensors") if "interventions" in way else ()
    for file in ("learner.safetensors", "memory.safetensors", "policy/acting.safetensors", *files):
        one, two = load_file(last(whole) / file), load_file(last(resumed) / file)
        assert one.keys() == two.keys() and len(one) > 4, file
        assert all(torch.equal(one[name], two[name]) for name in one), file
    assert summary(whole)["last"] == summary(resumed)["last"]


@pytest.mark.everyday
def test_its_memory_has_noise_and_another_run_learns_from_it_and_it_is_evaluated(tmp_path: Path) -> None:
    done = runs.run(config(tmp_path, "first", steps=1)).path
    memory = load_file(last(done) / "memory.safetensors")
    policy: Any = make_policy(PolicyConfig(model=str(last(done) / "policy"), kind="steered"), device="cpu", seed=0)
    assert memory["actions"].shape[1] == policy.actor.dims == 2 and memory["actions"].abs().max() <= 1
    assert torch.equal(memory["seen"][:, -2:].abs().amax(0) <= 1, torch.tensor([True, True])), "the dial's state"
    more = config(tmp_path, "second", steps=1, offline=str(last(done) / "memory.safetensors"), offline_share=0.25)
    assert summary(runs.run(more).path)["steps"] == 1
    other = config(tmp_path, "third", steps=1, offline=str(last(done) / "memory.safetensors"), options={"reach": 3.0})
    with pytest.raises(UserError, match=r"has noise = '.*1\.5\]', and this run '.*3\.0\]': make them equal"):
        runs.run(other)
    (found,) = evaluate_only(config(tmp_path, "first", steps=1), done, "last")
    assert found.value == summary(done)["last"]["dial/turn"]["value"]


def test_its_memory_has_actions_where_noise_is_aliased_and_the_base_plays_first(tmp_path: Path) -> None:
    """The actions are what the base does, two in a call: of itself in the first step of two, where the noise is larger than any
    that is chosen here, and steered in the second."""
    stage = ALIASED | {"steps": 2, "offline": "expert", "offline_episodes": 3, "options": {"reach": 0.01}}
    done = runs.run(config(tmp_path, **stage)).path
    memory, counts = load_file(last(done) / "memory.safetensors"), [row["metrics"] for row in runs.rows(done) if "metrics" in row]
    first = int(counts[0]["off_policy/transitions"])
    assert memory["actions"].shape[1] == 4 and memory["actions"].abs().max() <= 1
    assert [row["off_policy/offline"] for row in counts] == [3, 3] or counts[0]["off_policy/offline"] > 3
    policy: Any = make_policy(PolicyConfig(model=str(last(done) / "policy"), kind="steered"), device="cpu", seed=0)
    states, zeros = memory["seen"][:, -2:], torch.zeros(len(memory["seen"]), 2)
    shown = Observation(images={}, state=states, instructions=["turn"] * len(states))
    still = policy.actions_of(shown, zeros)
    far = (memory["actions"] - still).abs().amax(1)
    assert far[:first].mean() > 1 and far[first:].mean() < 0.2


def test_a_smoke_run_has_a_small_base(tmp_path: Path) -> None:
    """As it has a small policy in other runs."""
    large = {**BASE, "kind": "pi0", "model": "lerobot/pi0_libero_finetuned", "options": {"dims": 2, "chunk": 2, "state": 2}}
    small: Any = smoke(config(tmp_path, options={"base": large})).policy.options["base"]
    assert small == {**large, "model": "tiny:pi0"}
    kept: Any = smoke(config(tmp_path)).policy.options["base"]
    assert kept == BASE
    for odd in ({"model": "x"}, {"kind": ["pi0"], "model": "x"}):
        assert smoke(config(tmp_path, options={"base": odd})).policy.options["base"] == odd


def test_a_base_that_is_gone_is_named_and_no_checkpoint_is_blamed(tmp_path: Path) -> None:
    make_policy(PolicyConfig(**BASE), device="cpu", seed=0).save(tmp_path / "base")
    made = config(tmp_path, steps=2, options={"base": str(tmp_path / "base")})
    with pytest.raises(KeyboardInterrupt):
        runs.run(made, progress=runs.Silent(stop_after=1))
    (tmp_path / "base").rename(tmp_path / "elsewhere")
    for again in (lambda: runs.run(made, resume=True), lambda: evaluate_only(made, tmp_path / "steered", "last")):
        with pytest.raises(UserError, match=r"^policy\.options\.base: '.*' is no folder here: ") as caught:
            again()
        assert "checkpoint" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("chunk", [1, 2])
def test_a_saved_policy_says_how_many_actions_its_base_carries_out(tmp_path: Path, chunk: int) -> None:
    base = {**BASE, "options": {**BASE["options"], "chunk": chunk}}
    make_policy(config(tmp_path, options={"base": base}).policy, device="cpu", seed=0).save(tmp_path / "saved")
    told = config(tmp_path, **ALIASED, interventions=0.5).model_dump(exclude_unset=True)
    made = parse_config({**told, "policy": {"kind": "steered", "model": str(tmp_path / "saved")}})
    with nullcontext() if chunk == 1 else pytest.raises(UserError, match=r"stages\.0\.interventions: .*options\.base\.options"):
        resolve(made)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"offline": "expert"}, "stages.0.offline: policy.kind = 'steered' chooses noise"),
        ({"interventions": 0.5}, "stages.0.interventions: policy.kind = 'steered' chooses noise"),
        ({"improve": {}, "start_temperature": 1.0}, "stages.0.improve: policy.kind = 'steered' chooses noise"),
        (ALIASED | {"interventions": 0.5}, "one action at a time: set chunk = 1 in policy.options.base.options"),
        (ALIASED | {"offline": __file__}, 'a memory has no pictures for the base to act on: use "expert" or "recorded"'),
        (ALIASED | {"options": {"noise": 0.1}}, "and the soft actor-critic learns it: set td3, or drop policy.options.noise"),
        (TD3, "set policy.options.noise, such as 0.1, or drop td3"),
        ({"kind": "sft", "split": "warm"}, "train its base by imitation"),
    ],
)
def test_what_it_cannot_learn_from_is_refused(tmp_path: Path, keys: dict[str, Any], said: str) -> None:
    stage = {"kind": "sft", "split": "warm", "steps": 1, "batch_size": 4, "learning_rate": 1e-3} if "kind" in keys else None
    made = config(tmp_path, **({} if stage else keys))
    with pytest.raises(UserError) as caught:
        if stage:
            runs.run(parse_config({**made.model_dump(exclude_unset=True), "stages": [stage]}))
        else:
            resolve(made)
    assert said in str(caught.value) and "\n" not in str(caught.value)
