"""A sampling rule's state goes through checkpoints; a rule that rewards needs no verifier with a weight."""

from __future__ import annotations

import pytest

import runs
from mmrl.api.errors import UserError
from mmrl.train.sampling.rules import plugin_rules
from mmrl.train.stages.rl import RlSteps

RULE = """
import torch
from mmrl import SamplingRule, SamplingRuleSpec, hookimpl

@hookimpl
def mmrl_sampling_rules():
    return [SamplingRuleSpec(id="counted/pay", target="counted:Pay"), SamplingRuleSpec(id="counted/idle", target="counted:Idle")]

class Pay(SamplingRule):
    '''Pays the first completion of a group as much as the number of steps so far.'''
    rewards = True
    def __init__(self, model="big"):
        self.model, self.steps = model, 0
    def __call__(self, groups, sample):
        self.steps += 1
        for group in groups:
            group.pay("count", [float(self.steps)] + [0.0] * (len(group.scores) - 1))
        return groups
    def counts(self, groups): return {"counted/steps": float(self.steps)}
    def state(self): return {"steps": torch.tensor([self.steps])}
    def load_state(self, tensors): self.steps = int(tensors["steps"])

class Idle(SamplingRule):
    def __call__(self, groups, sample): return groups
"""


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("rules") / "counted.py"
    path.write_text(RULE)
    return path


@pytest.fixture(autouse=True)
def loaded(file, monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", f"{runs.TOY}:{file}")


def config(folder, rules, options=None, **sections):
    rl = {"kind": "rl", "steps": 4, "prompts_per_step": 2, "group_size": 2, "learning_rate": 1e-3}
    given = {"tasks": [{"id": "toy/colour", "verifiers": {"toy/exact": 0.0}}], "checkpoint": {"every": 1}} | sections
    return runs.toy_config(folder, stages=[rl | {"rules": [{"id": rule, "options": options or {}} for rule in rules]}], **given)


def counted(folder):
    return [row["metrics"]["counted/steps"] for row in runs.rows(folder) if "metrics" in row]


@pytest.mark.parametrize("stopped", ["after a step", "between sampling and update"])
def test_a_run_that_was_stopped_goes_on_with_it(tmp_path, monkeypatch, stopped):
    whole = runs.run(config(tmp_path / "whole", ["counted/idle", "counted/pay"]))
    assert counted(whole) == [1, 2, 3, 4]
    cut = config(tmp_path / "cut", ["counted/idle", "counted/pay"])
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as at:
        if stopped == "after a step":
            runs.run(cut, progress=runs.Silent(stop_after=2))
        else:
            credit = RlSteps.credit
            at.setattr(RlSteps, "credit", lambda steps, *given: stop_at(2, steps) or credit(steps, *given))
            runs.run(cut)
    resumed = runs.run(cut, resume=True)
    assert counted(resumed) == [1, 2, 3, 4]
    assert runs.trajectory(resumed) == runs.trajectory(whole)
    saved = sorted(path.name for path in (resumed.path / "checkpoints" / "step-000004").glob("rule-*"))
    assert len(saved) == 1, "a rule without a state has no file"


def stop_at(step, steps):
    if steps.run.at.step == step:
        raise KeyboardInterrupt


def test_what_was_sampled_ahead_isnt_in_a_checkpoint(tmp_path):
    """The rule has seen the samples of two more steps when the second one ends, and a resumed run samples them again."""
    cut = config(tmp_path, ["counted/pay"], compute={"staleness": 2}, checkpoint={"every": 0})
    with pytest.raises(KeyboardInterrupt):
        runs.run(cut, progress=runs.Silent(stop_after=2))
    assert counted(runs.run(cut, resume=True)) == [1, 2, 3, 4]


def test_only_a_rule_that_rewards_replaces_verifiers(tmp_path):
    with pytest.raises(UserError, match="all its verifiers have weight 0, so it has no reward"):
        runs.run(config(tmp_path, ["counted/idle"]))


def test_a_smoke_run_gives_a_rule_a_tiny_model(tmp_path):
    from mmrl.train.smoke import smoke

    full = config(tmp_path, ["counted/pay"], {"model": "a judge"})
    small = smoke(full)
    assert small.stages[0].rules[0].options == {"model": "tiny"} and full.stages[0].rules[0].options == {"model": "a judge"}
    assert [rule.model for rule in plugin_rules(small.stages[0])] == ["tiny"]
