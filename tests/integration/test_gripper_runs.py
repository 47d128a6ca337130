"""Whole runs of `off-policy` stages whose policy chooses what the gripper does: they learn, resume bit for bit, are saved and
evaluated like others, and say what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

import runs
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import ActionSpec, Observation
from mmrl.api.specs import SimulatorSpec
from mmrl.config.load import parse_config
from mmrl.config.sections import PolicyConfig
from mmrl.policies.load import make_policy, saved_policy
from mmrl.policies.squashed import Squashed
from mmrl.train.resolve import resolve
from mmrl.train.start import evaluate_only
from mmrl.train.update.gripper import WithGripper
from mmrl.ui.cli import main

DIAL = str(Path(__file__).parents[1] / "support" / "dial.py")
OPTIONS = {"dims": 2, "state": 3, "hidden": [32, 32], "gripper_choices": 3}
STAGE = {"kind": "off-policy", "steps": 4, "prompts_per_step": 4, "updates": 1, "batch_size": 32, "critics": 2, "subset": 2}
STAGE |= {"hidden": [32, 32], "learning_rate": 2e-3, "start_temperature": 0.1}
STAGE |= {"gripper": {"state": 2, "threshold": 0.5, "above": "closed"}, "offline": "expert", "offline_episodes": 6}


@pytest.fixture(autouse=True)
def loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MMRL_PLUGIN_FILES", os.pathsep.join([runs.TOY, DIAL]))


def config(folder: Path, name: str = "dial", options: Any = None, hand: bool = True, prompts: int = 16, **stage: Any) -> Any:
    data = {
        "name": name,
        "runs_dir": str(folder),
        "policy": {"kind": "squashed", "model": "mlp", "options": OPTIONS | (options or {})},
        "tasks": [{"id": "dial/turn", "options": {"n": 500, "reward": "stages", "gripper": hand}}],
        "stages": [{key: value for key, value in (STAGE | stage).items() if value is not None}],
        "simulate": {"num_envs": 4},
        "evaluate": {"num_prompts": prompts},
        "record": {"trackers": [], "rollouts": 4},
        "train": {"threads": 1},
    }
    return parse_config(data)


def last(folder: Path) -> Path:
    return sorted((folder / "checkpoints").glob("step-*"))[-1]


def made(**options: Any) -> Squashed:
    policy = make_policy(PolicyConfig(kind="squashed", model="mlp", options=OPTIONS | options), device="cpu", seed=1)
    assert isinstance(policy, Squashed)
    return policy


@pytest.mark.always
def test_a_resumed_run_is_the_uninterrupted_one_bit_for_bit(tmp_path: Path) -> None:
    """With somebody who takes over, the expert's episodes, priorities and mean weights."""
    stage = {"interventions": 0.5, "priority": 0.6, "ema_decay": 0.5}
    whole = runs.run(config(tmp_path, "whole", **stage)).path
    with pytest.raises(KeyboardInterrupt):
        runs.run(config(tmp_path, "broken", **stage), progress=runs.Silent(stop_after=2))
    resumed = runs.run(config(tmp_path, "broken", **stage), resume=True).path
    for file in ("learner.safetensors", "memory.safetensors", "offline.safetensors", "policy/acting.safetensors"):
        one, two = load_file(last(whole) / file), load_file(last(resumed) / file)
        assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one), file
    assert any(name.startswith("gripper_target/") for name in load_file(last(whole) / "learner.safetensors"))


@pytest.mark.everyday
def test_it_is_remembered_evaluated_and_exported_as_it_acts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places, made_by = [], WithGripper.__init__
    monkeypatch.setattr(WithGripper, "__init__", lambda self, *given: (places.append(given[-1]), made_by(self, *given))[1])
    folder = runs.run(config(tmp_path, steps=2, offline=None, offline_episodes=None)).path
    assert places == [2], "the number of the features that stages.gripper.state is"
    kept = load_file(last(folder) / "memory.safetensors")
    assert kept["actions"].shape[1] == 2 and set(kept["actions"][:, 1].tolist()) <= {-1.0, 0.0, 1.0}
    held, told = kept["seen"][:, 2], kept["actions"][:, 1]
    after = torch.where(told == 0, held, (told > 0).float())
    assert torch.equal(kept["after"][:, 2], after), "the simulator got what is remembered"
    (metrics, _) = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    assert {"off_policy/gripper_loss", "off_policy/gripper_changes", "loss", "value_loss"} <= metrics.keys()
    measured = json.loads((folder / "summary.json").read_text())["last"]["dial/turn"]["value"]
    (found,) = evaluate_only(config(tmp_path, steps=2, offline=None, offline_episodes=None), folder, "last")
    assert found.value == measured
    exported = CliRunner().invoke(main, ["export", str(folder), str(tmp_path / "out"), "--checkpoint", "last"])
    assert exported.exit_code == 0, exported.output
    policy = saved_policy(tmp_path / "out", PolicyConfig(model=str(tmp_path / "out"), kind="squashed"), "cpu")
    there = load_file(last(folder) / "policy" / "acting.safetensors")
    assert any(name.startswith("gripper.") for name in there)
    assert all(torch.equal(p, there[name]) for name, p in policy.parameters())


@pytest.mark.always
@pytest.mark.slow
def test_it_learns_to_close_at_the_mark_alone(tmp_path: Path) -> None:
    stage = {"steps": 24, "prompts_per_step": 16, "offline_episodes": 16, "updates": 2, "gamma": 0.9}
    folder = runs.run(config(tmp_path, prompts=100, **stage)).path
    summary = json.loads((folder / "summary.json").read_text())
    before, after = (summary[name]["dial/turn"]["value"] for name in ("before", "last"))
    assert before < 0.3 and after > 0.85


def test_its_gripper_is_never_drawn_and_the_others_are() -> None:
    policy = made()
    seen = Observation(images={}, state=torch.tensor([[0.3, -0.2, 0.0]]).repeat(200, 1), instructions=[""] * 200)
    sample = policy.act(seen, torch.arange(200), torch.zeros(200, dtype=torch.int64), 1.0)
    likeliest = policy.act(seen, torch.arange(200), torch.zeros(200, dtype=torch.int64), 0.0).actions_nKA[:, 0]
    assert sample.choices.shape == (200, 1, 3 + 2) and sample.actions_nKA[:, 0, 0].unique().numel() > 150
    assert torch.equal(sample.actions_nKA[:, 0, 1], likeliest[:, 1]) and likeliest[:, 1].unique().numel() == 1
    other = made(gripper_choices=2).act(seen, torch.arange(200), torch.zeros(200, dtype=torch.int64), 1.0)
    assert set(other.actions_nKA[:, 0, 1].tolist()) <= {-1.0, 1.0}


@pytest.mark.parametrize("kind", ["sft", "rl"])
def test_other_kinds_of_stage_do_not_learn_it_and_are_refused(tmp_path: Path, kind: str) -> None:
    data = config(tmp_path).model_dump(exclude_unset=True)
    other = {"sft": {"kind": "sft", "batch_size": 4}, "rl": {"kind": "rl", "algorithm": "grpo", "prompts_per_step": 4}}[kind]
    data["stages"].append({**other, "steps": 1})
    with pytest.raises(UserError, match=r"^stages\.1: policy\.options\.gripper_choices = 3 is learned by kind = "):
        resolve(parse_config(data))


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("td3", {"td3": {}, "start_temperature": None}, r"^stages\.0: policy\.options\.gripper_choices = 3 is learned by kind = "),
    ("one number", {"options": {"dims": 1}}, r"gripper_choices leaves no number to draw of dims = 1: set it to 0"),
    ("choices", {"options": {"gripper_choices": 4}}, r"gripper_choices = 4 must be one of 0, 2, 3"),
    ("no whole number", {"options": {"gripper_choices": 2.0}}, r"gripper_choices = 2.0 must be one of 0, 2, 3"),
    ("none", {"options": {"gripper_choices": 0}}, r"^stages\.0\.gripper is paid by a critic that policy\.options\.grip"),
    ("state", {"gripper": {"state": 3}}, r"^stages\.0\.gripper\.state = 3 is none of the 3 numbers of the state"),
    ("no gripper", {"hand": False}, r"^task 'dial/turn': an action of simulator 'dial/dial' has no gripper"),
]


@pytest.mark.parametrize(("change", "told"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_be_is_refused_in_one_line(tmp_path: Path, change: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told) as caught:
        runs.run(config(tmp_path, **change))
    assert "\n" not in str(caught.value)


def test_other_ways_to_act_are_refused(tmp_path: Path) -> None:
    made(gripper_choices=0).save(tmp_path)
    for options in ({"noise": 0.1}, {"base": str(tmp_path), "residual": 0.1}):
        with pytest.raises(UserError, match=r"gripper_choices: .* = 0\.1 is of policies all of whose numbers are drawn: set "):
            made(**options)


def test_a_gripper_that_is_not_the_last_number_is_refused() -> None:
    simulator = type("Hand", (), {"action": ActionSpec(dims=2, gripper=0)})()
    with pytest.raises(UserError, match=r"has its gripper as number 0 of 0 to 1, and policy\.options\.gripper_cho"):
        made().fits("some/task", simulator, SimulatorSpec(id="some/hand", target="-:-"))


def test_a_saved_policy_says_its_choices_and_older_ones_have_none(tmp_path: Path) -> None:
    made().save(tmp_path / "new")
    with pytest.raises(UserError, match=r"holds a policy with gripper_choices = 3, and the run file says 0"):
        made(gripper_choices=0).load(tmp_path / "new")
    old = made(gripper_choices=0)
    with pytest.raises(UserError, match="gripper_choices"):
        old.refuse_teacher(made(), "a teacher")
    old.save(tmp_path / "old")
    settings = json.loads((tmp_path / "old" / "acting.json").read_text())
    del settings["gripper_choices"]
    (tmp_path / "old" / "acting.json").write_text(json.dumps(settings))
    old.load(tmp_path / "old")
    with pytest.raises(UserError, match=r"doesn't fit this policy: 'gripper\.layers\.0\.bias' is only in one of them"):
        made().load(tmp_path / "old")
