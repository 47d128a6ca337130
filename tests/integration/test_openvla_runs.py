"""Whole runs of a checkpoint in OpenVLA's layout, on the embedded table: it imitates, acts, learns, is saved and goes on."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file

import runs
from mmrl.api.errors import UserError
from mmrl.config.load import parse_config
from mmrl.policies.vlm import tiny
from mmrl.train.smoke import smoke
from mmrl.train.start import evaluate_only

REACH = {
    "mean": [0.0] * 7,
    "std": [0.05] * 7,
    "q01": [-0.11, -0.1, -0.12, -0.3, -0.31, -0.32, 0.0],
    "q99": [0.1, 0.12, 0.1, 0.3, 0.3, 0.3, 1.0],
    "mask": [True] * 6 + [False],
}
SFT = {"kind": "sft", "split": "demo", "steps": 2, "batch_size": 8, "learning_rate": 1e-3}
PPO = {"kind": "rl", "algorithm": "ppo", "steps": 2, "prompts_per_step": 8, "group_size": 1, "minibatches": 2}
PPO |= {"ratio": "action", "credit": "action", "learning_rate": 1e-4, "critic": {"detach": True}}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("openvla")
    model, processor = tiny.build("openvla", hidden=32, layers=1, seed=5)
    model.config.norm_stats = {name: {"action": REACH, "proprio": {}} for name in ("table", "other")}
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def config(folder, model, stages, options=None, **sections):
    options = {"dims": 7, "statistics_key": "table", "gripper": "open-high"} if options is None else options
    data = {
        "name": "openvla",
        "runs_dir": str(folder),
        "policy": {"kind": "vla", "model": str(model), "options": options},
        "tasks": [{"id": "robotics/pick", "options": {"size": 32, "max_steps": 4, "demos": 8, "starts": 64, "held_out": 8}}],
        "stages": stages,
        "simulate": {"num_envs": 8},
        "evaluate": {"num_prompts": 8},
        "record": {"trackers": [], "rollouts": 2},
        "train": {"threads": 1},
    }
    return parse_config({**data, **sections})


def test_a_run_imitates_learns_and_goes_on(checkpoint, tmp_path):
    keep = {"every": 1, "keep": 9}
    folder = runs.run(config(tmp_path, checkpoint, [SFT, PPO], checkpoint=keep))
    rows = [r["metrics"] for r in runs.rows(folder) if "metrics" in r]
    assert len(rows) == 4 and rows[1]["loss"] < rows[0]["loss"]
    assert all(m["logprob_gap"] < 1e-4 and m["simulator/lost"] == 0 for m in rows[2:])
    saved = folder.path / "checkpoints" / "step-000004" / "policy"
    assert load_file(saved / "model.safetensors").keys() == load_file(checkpoint / "model.safetensors").keys()
    own = json.loads((saved / "acting.json").read_text())
    assert own["statistics"]["action"]["q99"] == REACH["q99"] and own["statistics"]["key"] == "table"
    assert own["gripper"] == "open-high" and own["decoding"] == "one-by-one"
    (first,) = evaluate_only(config(tmp_path, checkpoint, [SFT, PPO]), folder.path, "last")
    (again,) = evaluate_only(config(tmp_path, saved, [PPO], options={}), None, "last")
    assert first.value == again.value and first.extra["episode/steps"] == again.extra["episode/steps"]


@pytest.mark.slow
def test_a_stopped_run_goes_on_bit_for_bit(checkpoint, tmp_path):
    keep = {"every": 1, "keep": 9}
    whole = runs.run(config(tmp_path / "whole", checkpoint, [{**PPO, "steps": 3}], checkpoint=keep))
    again = config(tmp_path / "again", checkpoint, [{**PPO, "steps": 3}], checkpoint=keep)
    with pytest.raises(KeyboardInterrupt):
        runs.run(again, progress=runs.Silent(2))
    folder = runs.run(again, resume=True)
    one, two = (load_file(f.path / "checkpoints" / "step-000003" / "policy" / "model.safetensors") for f in (whole, folder))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    "options, message",
    [
        (
            {"dims": 7, "gripper": "open-high"},
            "has the statistics of 2 data sets: set policy.options.statistics_key to one of other, table",
        ),
        ({"dims": 7, "statistics_key": "table"}, "has a gripper, and policy.options.gripper doesn't say"),
        ({"dims": 4, "statistics_key": "table"}, "are of actions of 7 numbers, and policy.options.dims = 4"),
    ],
)
def test_what_is_missing_is_said_in_one_line(checkpoint, tmp_path, options, message):
    with pytest.raises(UserError, match=message) as error:
        runs.run(config(tmp_path, checkpoint, [PPO], options=options))
    assert "\n" not in str(error.value)


def test_the_expert_is_imitated_in_the_policys_own_numbers(checkpoint):
    """What is learned from, carried out again, is what the expert did, up to the width of a bin."""
    from mmrl.api.simulators.types import Simulation, TrajectoryData
    from mmrl.config.sections import PolicyConfig
    from mmrl.policies.acting.vla import VLA
    from mmrl.registry.plugins import registry

    simulator = registry().make_simulator(Simulation(simulator="tabletop/table", options={"size": 32}), 6, "cpu")
    policy = VLA(PolicyConfig(model=str(checkpoint)), dims=7, statistics_key="table", gripper="open-high")
    policy.fits("pick", simulator, registry().get("simulators", "tabletop/table"))
    simulator.reset(torch.arange(6))
    shown = []
    for _ in range(6):
        shown.append(simulator.expert())
        simulator.step(shown[-1], torch.ones(6, dtype=torch.bool))
    actions = torch.cat(shown)
    assert actions[:, 6].unique().tolist() == [-1, 1], "it opens and closes"
    count = len(actions)
    track = TrajectoryData(
        instruction="x",
        images={},
        state=torch.zeros(count + 1, 1),
        choices=actions[:, None],
        logprobs_TKC=torch.full((count, 1, 1), torch.nan),
        valid_TK=torch.ones(count, 1, dtype=torch.bool),
        rewards_TK=torch.zeros(count, 1),
    )
    bins = policy.chunked(track).choices[:, 0]
    again = policy.simulated(policy.tokens.action_of(bins))
    width = torch.tensor(REACH["q99"]) - torch.tensor(REACH["q01"])
    allowed = width / 255 / 2 / torch.tensor(simulator.action.units) + 1e-5
    assert ((again - actions).abs()[:, :6] <= allowed[:6]).all() and torch.equal(again[:, 6], actions[:, 6])
    assert bins[:, :3].unique().numel() > 10


def test_smoke_takes_a_tiny_model_and_its_own_numbers(checkpoint, tmp_path, monkeypatch):
    """In place of one that is large; its checkpoint's statistics don't come with it."""
    monkeypatch.setattr("mmrl.train.smoke.TINY", 0)
    found = smoke(config(tmp_path, checkpoint, [PPO]))
    assert found.policy.model.startswith("tiny:") and found.policy.options == {"dims": 7}
    runs.run(found)


def test_the_tiny_one_needs_nothing_more(tmp_path):
    """Its numbers are the simulator's; adapters are trained, and saved alone."""
    made = config(tmp_path, "tiny:openvla:hidden=32,layers=1", [PPO], options={"dims": 7})
    data = made.model_dump(mode="json", exclude_none=True)
    data["policy"]["lora"] = {"rank": 2, "target_modules": ["vision", "projector", "language"]}
    folder = runs.run(smoke(parse_config(data)))
    saved = folder.path / "checkpoints" / "step-000002" / "policy"
    assert (saved / "adapter_model.safetensors").is_file() and not (saved / "model.safetensors").exists()
    assert "statistics" not in json.loads((saved / "acting.json").read_text())


def test_an_oft_policy_imitates_learns_and_goes_on(checkpoint, tmp_path):
    """With two cameras, the robot's state and the L1 head, begun from a checkpoint before fine-tuning."""
    stats = tmp_path / "stats.json"
    state = {"q01": [-1.0] * 8, "q99": [1.0] * 8}
    stats.write_text(json.dumps({"table": {"action": REACH, "proprio": state}}))
    options = {"dims": 7, "chunk": 2, "decoding": "oft", "head": "l1", "state": 8, "cameras": ["front", "wrist"]}
    options |= {"statistics": str(stats), "gripper": "open-high"}
    look = {"size": 32, "max_steps": 4, "demos": 8, "starts": 64, "held_out": 8, "cameras": ["front", "wrist"]}
    more = {"tasks": [{"id": "robotics/pick", "options": look}], "checkpoint": {"every": 1, "keep": 9}}
    stages = [{**SFT, "steps": 8}, {**PPO, "steps": 1}]
    folder = runs.run(config(tmp_path, checkpoint, stages, options=options, **more))
    rows = [r["metrics"] for r in runs.rows(folder) if "metrics" in r]
    assert len(rows) == 9 and rows[7]["loss"] < rows[0]["loss"] and rows[8]["logprob_gap"] < 1e-4
    saved = folder.path / "checkpoints" / "step-000009" / "policy"
    assert {file.name.split("--")[0] for file in saved.glob("*.pt")} == {"action_head", "proprio_projector"}
    (first,) = evaluate_only(config(tmp_path, checkpoint, stages, options=options, **more), folder.path, "last")
    (again,) = evaluate_only(config(tmp_path, saved, [PPO], options={}, **more), None, "last")
    assert first.value == again.value and first.extra["episode/steps"] == again.extra["episode/steps"]
    for name in ("acting.json", "acting.safetensors"):
        (saved / name).unlink()
    given = {"dims": 7, "chunk": 2, "gripper": "open-high", "cameras": ["front", "wrist"]}
    (third,) = evaluate_only(config(tmp_path, saved, [PPO], options=given, **more), None, "last")
    assert third.value == first.value and third.extra["episode/steps"] == first.extra["episode/steps"], "by its files alone"
