"""Rollouts as answers to prompts that tell the gold completion."""

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

import vlm_cases as cases
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.errors import NoGold, UserError
from mmrl.api.interfaces import Task
from mmrl.api.types import Score
from mmrl.config.sections import RlStage
from mmrl.train.checks.gold_rewards import check_answers_known
from mmrl.train.sampling.hints import HINT
from mmrl.train.sampling.prompted import shown_rollouts, told_rollouts, unchanged
from mmrl.train.stages.base import Steps
from mmrl.train.stages.rl import RlSteps


class Knows:
    """A task that knows the answer to one prompt."""

    def hint(self, prompt, share):
        if prompt.id != "p1":
            raise NoGold("none")
        return f"{share:g} of red"


def test_the_same_tokens_follow_a_prompt_that_tells_the_answer():
    vlm = cases.policy("qwen2_5_vl")
    own = cases.rollouts(vlm, [cases.prompt(1), cases.prompt(2)], group=2)
    read = []

    class Reads:
        def encode(self, prompts):
            read.extend(prompts)
            return [vlm.encode(p) for p in prompts]

    found = told_rollouts(own, Reads(), {"": Knows()})
    assert [p.id for p in read] == ["p1"] and read[0].text.endswith(f"{HINT}1 of red"), "once for all its rollouts"
    assert found[2:] == own[2:] and found[0].inputs is found[1].inputs, "without a gold completion it stays"
    assert [r.turns[0].token_ids for r in found] == [r.turns[0].token_ids for r in own]
    with torch.no_grad():
        before, after = (cases.naive_logprobs(vlm, r, 1.0) for r in (own[0], found[0]))
    assert len(before) == len(after) and (before - after).abs().max() > 1e-4


def test_of_who_was_told_nothing_nothing_is_measured(monkeypatch):
    """Else what the policy says after the same prompt would count as what it says when it knows the answer."""
    vlm = cases.policy("qwen2_5_vl")
    own = cases.rollouts(vlm, [cases.prompt(1), cases.prompt(2)], group=2)
    collector = SimpleNamespace(encode=lambda prompts: [vlm.encode(p) for p in prompts])
    monkeypatch.setattr(Steps, "measure", lambda self, rollouts, names: {"logprobs": torch.zeros(len(rollouts), 3)})
    steps = object.__new__(RlSteps)
    steps.run = SimpleNamespace(clock=lambda name: nullcontext(), collector=collector, tasks={"": Knows()})
    found = steps.measure(own, frozenset({"told", "logprobs"}))
    assert found["told"].isnan().tolist() == [[False] * 3] * 2 + [[True] * 3] * 2 and not found["logprobs"].isnan().any()
    stubs = [r.to_stub() for r in own]
    assert not unchanged(stubs, stubs, torch.device("cpu")).any(), "the rank that holds it says so"


def test_a_completion_is_compared_after_another_success_of_its_group(monkeypatch):
    """The first success, and for it the second; of one success it sees nothing, and without one nobody does."""
    vlm = cases.policy("qwen2_5_vl")
    own = cases.rollouts(vlm, [cases.prompt(1), cases.prompt(2), cases.prompt(3)], group=3)
    said = iter("abcdefghi")
    own = [replace(r, turns=[replace(r.turns[0], text=next(said))]) for r in own]
    read = []
    collector = SimpleNamespace(encode=lambda prompts: read.extend(prompts) or [vlm.encode(p) for p in prompts])
    right = [False, True, True, True, False, False, False, False, False]
    found = shown_rollouts(own, collector, right)
    changed = [(r.prompt, o.prompt) for r, o in zip(found, own, strict=True)]
    after = [None if one is other else one.messages[-1]["content"][-1]["text"] for one, other in changed]
    b, c, d = (f"\nCorrect solution:\n\n{text}\n\n\n\nCorrectly solve the original question.\n" for text in "bcd")
    assert after == [b, c, b, None, d, d, None, None, None]
    assert len(read) == 3 and found[0].inputs is found[2].inputs, "one prompt for all that are shown the same"
    assert [r.turns[0].token_ids for r in found] == [r.turns[0].token_ids for r in own]
    monkeypatch.setattr(Steps, "measure", lambda self, rollouts, names: {"logprobs": torch.zeros(len(rollouts), 3)})
    steps = object.__new__(RlSteps)
    steps.run, steps.stage = SimpleNamespace(clock=lambda name: nullcontext(), collector=collector), RlStage(kind="rl", steps=1)
    scores = [Score(0.5 * one) for one in right[:8]] + [Score(None)]
    shown = steps.shown(SimpleNamespace(rollouts=own, scores=scores), frozenset({"shown"}))["shown"]
    assert shown[:, 0].isnan().tolist() == [text is None for text in after]
    assert steps.shown(None, frozenset({"told"})) == {}


def test_where_no_task_knows_an_answer_none_can_be_told():
    class Nothing(Task):
        def gold(self, prompt):
            raise NoGold("none")

    stage, splits = RlStage(kind="rl", steps=1, algorithm="rlsd"), lambda label, split: [cases.prompt(1)]
    config = SimpleNamespace(weights=lambda stage: dict.fromkeys(("a", "b"), 1.0))
    given = (config, 0, stage, load_algorithm("rlsd", {}))
    check_answers_known(*given, {"a": Nothing(), "b": Task()}, splits)
    with pytest.raises(UserError, match=r"rlsd tells the policy the gold completion, and no prompt of a, b has one: write gold"):
        check_answers_known(*given, {"a": Nothing(), "b": Nothing()}, splits)
