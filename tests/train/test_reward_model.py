"""Reward models: their ratings, their training by Bradley and Terry's loss, their evaluation on pairs, their use as a reward."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.torch import load_file
from torch.nn.functional import logsigmoid

import runs
from mmrl.api.errors import UserError
from mmrl.config.sections import PolicyConfig
from mmrl.data.prompts import pair_of
from mmrl.policies.batches import ones
from mmrl.policies.reward_model import HEAD, RewardModel
from mmrl.rollout.turns import ConversationCollector
from mmrl.testing.cases import mostly_slow
from mmrl.train.resolve import resolve
from mmrl.train.update.pack_conversations import pack, pad_passes

MODEL = "tiny:qwen2_5_vl:hidden=32,layers=1"
STAGE = {"kind": "preference", "loss": "bradley-terry", "steps": 3, "prompts_per_step": 4, "learning_rate": 1e-2}
RATES: dict[str, Any] = {"policy": {"kind": "reward", "model": MODEL}, "stages": [STAGE]}


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY]))


def sides(model: RewardModel, count: int = 3) -> list:
    """The rollouts of a few pairs of the toy task, each pair with its own prompt."""
    from toy import Colour

    task, rollouts = Colour(), []
    collector = ConversationCollector(model, SimpleNamespace(batch_size=8))
    for n, prompt in enumerate(list(task.prompts("train", 0))[: 4 * count : 4]):
        inputs = collector.encode([prompt])[0]
        made = collector.demonstrate([prompt] * 2, [inputs] * 2, list(pair_of(task, prompt)))
        rollouts += [SimpleNamespace(rollout=r, group=n) for r in made]
    from dataclasses import replace

    return [replace(one.rollout, group=one.group) for one in rollouts]


def packed_ratings(model: RewardModel, rollouts: list, **how: Any) -> torch.Tensor:
    batch = pack(rollouts, ones(rollouts), model, **{"shared_prefix": True, "budget": 4096, **how})
    found = torch.zeros(len(rollouts))
    for micro in batch.micro:
        found = found.index_add(0, micro.rollout_L, model.outputs(micro, 1.0).logprobs_L)
    return found


@pytest.mark.parametrize("how", mostly_slow([{}, {"budget": 1}, {"shared_prefix": False}], everyday=1))
def test_a_rating_is_the_same_alone_and_in_packed_rows(how: dict) -> None:
    """It stands at the last token alone, and is the head's value of the state after it."""
    model = RewardModel(PolicyConfig(model=MODEL), seed=3)
    rollouts = sides(model)
    alone = torch.tensor([model.rate(r.inputs, [r.completion])[0] for r in rollouts])
    assert torch.allclose(packed_ratings(model, rollouts, **how), alone, atol=1e-5)
    assert len(set(alone.tolist())) == len(alone)
    by_head = [model.value(model.states(model._row(r.inputs, [r.turns[0].token_ids]))[-1:])[0, 0] for r in rollouts]
    assert torch.allclose(torch.stack(by_head), alone, atol=1e-5)


@pytest.mark.parametrize("shares", [True, False])
def test_completions_of_a_prompt_are_rated_as_if_each_were_alone(monkeypatch: pytest.MonkeyPatch, shares: bool) -> None:
    """A group is one row, or one row each if the model can't share a prompt; equal completions have one rating."""
    model = RewardModel(PolicyConfig(model=MODEL), seed=3)
    passes = Mock(wraps=model.outputs)
    monkeypatch.setattr(model, "outputs", passes)
    monkeypatch.setattr(type(model.family), "shares_prefix", shares)
    inputs = sides(model, 1)[0].inputs
    said = ["red", "a blue square, I think", "red", ""]
    found = model.rate(inputs, said)
    assert passes.call_count == (1 if shares else 3) and found[0] == found[2] and len(set(found)) == 3
    assert found == pytest.approx([model.rate(inputs, [one])[0] for one in said], abs=1e-5)


def test_a_pass_that_other_ranks_alone_have_work_for_rates_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its output is part of the graph, as the weights' gradients are reduced in every pass."""
    model = RewardModel(PolicyConfig(model=MODEL))
    model.root = lambda work: work()  # type: ignore[assignment]
    monkeypatch.setattr("mmrl.compute.ranks.all_gather_object", lambda own: [own, 1])
    others = [r.to_stub() for r in sides(model)]
    (empty,) = pad_passes(pack(others, ones(others), model, shared_prefix=True, budget=64), model).micro
    found = model.outputs(empty, 1.0).logprobs_L
    assert found.shape == (0,) and found.requires_grad
    found.sum().backward()
    assert model.value.weight.grad is not None and not model.value.weight.grad.any()


def test_a_step_is_gradient_descent_on_bradley_and_terry_s_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mmrl.train.stages.preference as stage

    seen: list[Any] = []
    learn = stage.PreferenceSteps.learn

    def watched(self: Any, pairs: Any, sampled: Any = None) -> dict[str, float]:
        policy, seen[:] = self.run.policy, [None]
        rollouts = [r for p in pairs for r in (p.preferred, p.rejected)]
        ratings = packed_ratings(policy, rollouts).reshape(-1, 2)
        loss = -logsigmoid(ratings[:, 0] - ratings[:, 1] - 0.5).mean()
        parameters = dict(policy.parameters())
        slopes = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
        wanted = {n: p.detach() - (0 if g is None else 0.5 * g) for (n, p), g in zip(parameters.items(), slopes, strict=True)}
        found = learn(self, pairs, sampled)
        seen[:] = [loss.item(), found, wanted, dict(policy.parameters())]
        return found

    monkeypatch.setattr(stage.PreferenceSteps, "learn", watched)
    descent = {"optimizer": "sgd", "beta1": 0.0, "learning_rate": 0.5, "max_grad_norm": float("inf"), "steps": 1, "margin": 0.5}
    runs.run(runs.toy_config(tmp_path, **{**RATES, "stages": [{**STAGE, **descent}]}, evaluate={"num_prompts": 0}))
    loss, found, wanted, after = seen
    assert found["loss"] == pytest.approx(loss, rel=1e-5) and "entropy" not in found and "value.weight" in after
    assert all(torch.allclose(after[name], wanted[name], atol=1e-5) for name in wanted)


@pytest.mark.slow
def test_it_is_evaluated_on_held_out_pairs(tmp_path: Path) -> None:
    """The figure is the share of pairs that are the right way round by the saved model, with Wilson's interval."""
    folder = runs.run(runs.toy_config(tmp_path, **RATES, evaluate={"num_prompts": 6}))
    before, after = (row["eval"] for row in runs.rows(folder) if "eval" in row)
    assert before["metric"] == after["metric"] == "accuracy" and after["n"] == 6 and after["low"] < after["value"] < after["high"]
    (saved,) = folder.path.glob("checkpoints/step-000003/policy")
    model = RewardModel(PolicyConfig(model=str(saved)))
    from toy import Colour

    setup = resolve(runs.toy_config(tmp_path, **RATES))
    from mmrl.evaluation.held_out import HeldOutPrompts

    held = HeldOutPrompts(runs.toy_config(tmp_path, evaluate={"num_prompts": 6}).evaluate, setup.splits, lambda p: p)
    won = []
    for prompt in held.prompts(setup.entries["toy/colour"]):
        inputs = model.encode(prompt)
        good, bad = model.rate(inputs, [*Colour().pair(prompt)])
        won.append(1.0 if good > bad else 0.0)
    assert after["value"] == pytest.approx(sum(won) / 6)


@pytest.mark.slow
@pytest.mark.parametrize("lora", [None, {"rank": 4}])
def test_a_resumed_reward_model_goes_on_bit_for_bit(tmp_path: Path, lora: Any) -> None:
    policy = {**RATES["policy"], **({"lora": lora} if lora else {})}

    def config(name: str) -> Any:
        return runs.toy_config(tmp_path / name, policy=policy, stages=[{**STAGE, "steps": 6}], evaluate={"num_prompts": 4})

    whole = runs.run(config("whole"))
    with pytest.raises(KeyboardInterrupt):
        runs.run(config("cut"), progress=runs.Silent(3))
    assert runs.trajectory(runs.run(config("cut"), resume=True)) == runs.trajectory(whole)
    heads = [load_file(next((tmp_path / n).glob(f"toy/checkpoints/step-000006/policy/{HEAD}"))) for n in ("whole", "cut")]
    assert all(torch.equal(heads[0][k], heads[1][k]) for k in heads[0])


@pytest.mark.slow
def test_it_rewards_an_rl_stage(tmp_path: Path) -> None:
    """The reward of each rollout is what the saved model says of it."""
    trained = runs.run(runs.toy_config(tmp_path, "rm", **RATES, evaluate={"num_prompts": 0}))
    (saved,) = trained.path.glob("checkpoints/*/policy")
    rl = {"kind": "rl", "steps": 1, "prompts_per_step": 2, "group_size": 3, "learning_rate": 1e-3}
    config = runs.toy_config(
        tmp_path,
        tasks=[{"id": "toy/colour", "verifiers": {"judge/reward": 1.0}}],
        verifiers={"judge/reward": {"model": str(saved), "device": "cpu"}},
        stages=[rl],
        evaluate={"num_prompts": 0},
        record={"rollouts_every": 1, "rollouts": 6},
    )
    folder = runs.run(config)
    model, scored = RewardModel(PolicyConfig(model=str(saved))), runs.trajectory(folder)[1]
    from toy import Colour

    prompts = {p.id: p for p in Colour().prompts("train", 0)}
    assert len(scored) == 6
    for row in scored:
        (rating,) = model.rate(model.encode(prompts[row["prompt_id"]]), [row["completion"]])
        assert row["score"]["value"] == pytest.approx(1 / (1 + torch.tensor(-rating).exp().item()), abs=1e-4)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"policy": {"model": MODEL}},
            r'stages.0.loss = "bradley-terry" trains a reward model, and policy.kind = \'vlm\' is none',
        ),
        ({"stages": [{**STAGE, "loss": "dpo"}]}, r'stages.0: policy.kind = "reward" rates completions and writes none'),
        ({"stages": [{"kind": "sft", "steps": 1}]}, r'stages.0: policy.kind = "reward" rates completions and writes none'),
        (
            {"tasks": [{"id": "classification/folder", "options": {"path": "assets/samples/classes"}}, {"id": "toy/plain"}]},
            "no task 'toy/plain'",
        ),
    ],
)
def test_what_a_reward_model_can_t_do_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve(runs.toy_config(tmp_path, **{**RATES, **changes}))


def test_a_head_of_another_width_is_refused(tmp_path: Path) -> None:
    from mmrl.policies.reward_model import _head

    RewardModel(PolicyConfig(model=MODEL)).save(tmp_path)
    with pytest.raises(UserError, match=f"{HEAD} is no head of this model"):
        _head(48, str(tmp_path), 0)


def test_the_head_of_a_hub_s_model_is_read_and_a_new_one_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From a cache, without the hub. A model whose head was never fetched gets a new one, and says so in one line."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    saved = RewardModel(PolicyConfig(model=MODEL), seed=3)
    for name in ("rater", "bare"):
        place = tmp_path / f"models--me--{name}"
        (place / "refs").mkdir(parents=True)
        (place / "refs" / "main").write_text("0" * 40)
        saved.save(place / "snapshots" / ("0" * 40))
    (tmp_path / "models--me--bare" / "snapshots" / ("0" * 40) / HEAD).unlink()
    rater, bare = (RewardModel(PolicyConfig(model=f"me/{name}"), seed=4) for name in ("rater", "bare"))
    assert torch.equal(rater.value.weight, saved.value.weight) and rater.remark == ""
    assert not torch.equal(bare.value.weight, saved.value.weight)
    assert bare.remark == f"me/bare has no {HEAD}: its reward head begins at random weights"


def test_a_run_says_once_that_its_head_is_new(tmp_path: Path) -> None:
    watcher = runs.Silent()
    folder = runs.run(
        runs.toy_config(tmp_path, **{**RATES, "stages": [{**STAGE, "steps": 1}]}, evaluate={"num_prompts": 0}), progress=watcher
    )
    assert watcher.notes == [f"{MODEL} has no {HEAD}: its reward head begins at random weights"]
    (saved,) = folder.path.glob("checkpoints/*/policy")
    assert RewardModel(PolicyConfig(model=str(saved))).remark == ""
