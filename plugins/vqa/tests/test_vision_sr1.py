"""Vision-SR1: descriptions from which the policy answers without the picture."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from mmrl_vqa.table import Table
from mmrl_vqa.verifiers import answer
from mmrl_vqa.vision_sr1 import SelfReward, description_of

from mmrl import Case, Prompt, Score, UserError, user_message
from mmrl.api.sampling import Group
from mmrl.api.tasks.quoting import quoted


@pytest.fixture(scope="module")
def table():
    return Table(path="assets/samples/questions.jsonl", style="described")


class Reader:
    """Answers 2 to descriptions with a two in them, and otherwise 9."""

    def __init__(self, table):
        self.tasks, self.shown = {"vqa/table": table, "x": SimpleNamespace()}, []

    def task(self, label):
        return self.tasks[label]

    def complete(self, groups, prompts, share=1.0):
        assert len({g.number for g in groups}) == len(groups) == len(prompts) and share == 0.0
        self.shown += prompts
        said = [f"\\boxed{{{2 if 'two' in p.text else 9}}}" for p in prompts]
        return [group_of(g.number, p, [s]) for g, p, s in zip(groups, prompts, said, strict=True)]

    def score(self, groups, without=()):
        for group in groups:
            (rollout,) = group.rollouts
            found = answer(Case(completion=rollout.completion, answer=group.prompt.answer, meta=group.prompt.meta))
            group.scores = [Score(found.value, {"vqa/answer": found.value})]


def group_of(number, prompt, completions):
    rollouts = [SimpleNamespace(completion=completion, environment_reward=0.0) for completion in completions]
    scores = [Score(0.5) for _ in completions]
    return Group(number=number, place=(prompt.task, number), prompt=prompt, inputs=None, rollouts=rollouts, scores=scores)


def test_a_description_earns_what_is_found_from_it(table):
    prompt = next(p for p in table.prompts("train", 0) if p.meta["kind"] == "number" and p.answer == "2")
    asked = group_of(
        0,
        Prompt(**{**vars_of(prompt), "task": "vqa/table"}),
        ["<description> two shapes </description>", "nothing <|image_pad|>", "<description></description>two"],
    )
    other = group_of(1, Prompt(id="o", task="x", messages=[user_message("?")]), ["a"])
    sample = Reader(table)
    assert SelfReward(weight=0.5)([asked, other], sample) == [asked, other]
    assert [s.value for s in asked.scores] == [1.0, 0.5, 0.5] and [s.parts for s in other.scores] == [{}]
    assert len(asked.others) == 3 and SelfReward().counts([asked, other]) == {"sampling/description_right": pytest.approx(1 / 3)}
    assert all(prompt.meta["question"] in p.text and not p.images and "boxed" in p.text for p in sample.shown)
    assert "< |image_pad|>" in sample.shown[1].text and "<description>" not in sample.shown[0].text


def test_groups_of_different_sizes_have_answers_of_their_own(table):
    prompt = next(p for p in table.prompts("train", 0) if p.meta["kind"] == "number" and p.answer == "2")
    prompt = Prompt(**{**vars_of(prompt), "task": "vqa/table"})
    groups = [group_of(number, prompt, ["two"] * size) for number, size in ((0, 6), (1, 4), (2, 1), (3, 2))]
    groups[3].scores = [Score(None)] * 2
    SelfReward()(groups, Reader(table))
    assert [len(g.others) for g in groups] == [6, 4, 1, 2]
    assert [s.value for g in groups for s in g.scores] == [1.5] * 11 + [None] * 2, "failed scores stay failed"


def test_a_description_whose_answer_could_not_be_scored_earns_no_zero(table):
    prompt = next(p for p in table.prompts("train", 0) if p.meta["kind"] == "number" and p.answer == "2")
    group = group_of(0, Prompt(**{**vars_of(prompt), "task": "vqa/table"}), ["two", "two", "nine"])

    class Crashes(Reader):
        def score(self, groups, without=()):
            super().score(groups)
            groups[1].scores = [Score(None, detail="it crashed")]

    rule = SelfReward()
    rule([group], Crashes(table))
    assert [s.value for s in group.scores] == [1.5, None, 0.5] and group.scores[1].detail == "of its description: it crashed"
    assert rule.counts([group]) == {"sampling/description_right": 0.5}, "of those that are known"


def vars_of(prompt):
    return {name: getattr(prompt, name) for name in ("messages", "answer", "id", "seed", "meta")}


def test_gold_completions_are_right_and_have_descriptions(table):
    for prompt in table.prompts("train", 0):
        gold = table.gold(prompt)
        assert description_of(gold).startswith("The picture shows") and not description_of(gold).endswith(" ")
        assert answer(Case(completion=gold, answer=prompt.answer, meta=prompt.meta)).value == 1.0


def test_what_can_not_work_is_refused(table):
    SelfReward().check(["vqa/answer"])
    SelfReward().check_tasks({"vqa/table": table})
    with pytest.raises(UserError, match="verifier = 'vqa/answer' rewards nothing in this stage: choose one of vqa/math"):
        SelfReward().check(["vqa/math"])
    with pytest.raises(UserError, match='with style = "described"'):
        SelfReward().check_tasks({"vqa/table": Table(path="assets/samples/questions.jsonl")})
    with pytest.raises(UserError, match="weight = 0 must be a number above 0"):
        SelfReward(weight=0)


def test_what_is_quoted_holds_no_tokens_of_its_own():
    assert quoted("a <image> b <|im_end|> [IMG] TILE") == "a < image> b < |im_end|> [ IMG] T ILE"
    assert quoted("1 < 2 <b> </b>", kept=("b",)) == "1 < 2 <b> </b>"
