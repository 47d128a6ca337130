"""SPARK: prompts made of rollouts, against its released code, and in a step."""

from __future__ import annotations

import json
import random
from pathlib import Path
from types import SimpleNamespace

import pytest
from mmrl_judge.spark.recycling import Answered, judgements, recycled
from mmrl_judge.spark.rule import Recycle
from mmrl_judge.spark.task import RecycledJudging, boxed

import runs
from mmrl.api.errors import UserError
from mmrl.api.sampling import Group
from mmrl.api.types import Case, Prompt, Score, user_message

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "spark.jsonl"
ROWS = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["seed"])
def test_the_prompts_are_those_of_the_released_code(row):
    asked = [
        Answered(question=a["question"], completions=a["said"], answers=a["answers"], right=[bool(r) for r in a["right"]])
        for a in row["asked"]
    ]
    made = recycled(asked, random.Random(row["seed"]), 32)
    assert [[one.text, one.verdict or f"gold{one.number}"] for one in made] == row["made"] and len(made) >= 60
    assert {one.kind for one in made} == {"pointwise", "pairwise", "reflection"} and "Spark @bc47b93" in row["how"]


def test_nothing_is_made_of_answers_that_are_not_there():
    silent = Answered(question="q", completions=["a", "b"], answers=[None, None], right=[False, False])
    assert judgements([silent], random.Random(0)) == []


class Sampler:
    """Gives each group that is asked again two rollouts, right and wrong."""

    seed = 3

    def __init__(self, *labels):
        self.labels, self.asked = labels, []

    def task(self, label):
        if label not in self.labels:
            raise KeyError(label)
        return SimpleNamespace(extract_answer=lambda text: text)

    def again(self, groups, prompt_of):
        self.asked += [prompt_of(g) for g in groups]
        return [group_of(g.number, prompt_of(g), (1.0, 0.0)) for g in groups]


def group_of(number, prompt, rewards):
    rollouts = [SimpleNamespace(completion=f"answer {n}", environment_reward=0.0) for n in range(len(rewards))]
    scores = [Score(r) for r in rewards]
    return Group(number=number, place=("q", number), prompt=prompt, inputs=None, rollouts=rollouts, scores=scores)


def test_a_step_also_trains_on_judgements_and_reflections():
    prompts = [Prompt(id=f"p{n}", task="q", messages=[user_message(f"How {n}?", "a.png")], answer=n) for n in range(4)]
    rewards = ((1.0, 0.0), (0.0, 0.0), (1.0, 1.0), (None, 1.0))
    groups = [group_of(n, p, r) for n, (p, r) in enumerate(zip(prompts, rewards, strict=True))]
    sample, rule = Sampler("q", "judge/recycled"), Recycle(share=1.0)
    found = rule(list(groups), sample)
    judged = [p for p in sample.asked if p.task == "judge/recycled"]
    again = [p for p in sample.asked if p.task == "q"]
    assert len(found) == 4 + len(judged) + len(again) and len(judged) == 4 and len(again) == 3
    assert all(p.answer in ("Yes", "No", "A", "B") and p.images == ("a.png",) for p in judged)
    assert {p.id: p.answer for p in again} == {f"p{n}-reflection": n for n in (0, 1, 3)}
    everything = [*groups, *(other for g in groups for other in g.others)]
    assert rule.counts(everything)["sampling/reflection"] == 3
    twice = Sampler("q", "judge/recycled")
    Recycle(share=1.0)([group_of(n, p, r) for n, (p, r) in enumerate(zip(prompts, rewards, strict=True))], twice)
    assert [p.text for p in twice.asked] == [p.text for p in sample.asked]  # the same in every learner process


def test_what_cannot_work_is_refused():
    with pytest.raises(UserError, match="share = 0"):
        Recycle(share=0)
    with pytest.raises(UserError, match="add \\[\\[tasks\\]\\]"):
        Recycle().check(["vqa/answer"])
    with pytest.raises(UserError, match="is no task of the run"):
        Recycle()([], Sampler("q"))


def test_the_judge_is_measured_on_right_and_wrong_answers():
    task = RecycledJudging(task="vqa/shapes")
    prompts = task.prompts("test", 0)
    found = [prompts[n] for n in range(12)]
    assert {p.meta["kind"] for p in found} == {"pointwise", "pairwise"} and len({str(p.answer) for p in found}) > 2
    for prompt in found:
        scores = [
            boxed(Case(completion=text, answer=prompt.answer)) for text in (task.gold(prompt), prompt.meta["wrong"], "\\boxed{")
        ]
        assert scores == [1.0, 0.0, 0.0]
        assert boxed(Case(completion=f"\\boxed{{{prompt.meta['wrong']}}}", answer=prompt.answer)) == 0.0


@pytest.mark.slow
def test_a_run_trains_on_what_is_recycled_beside_its_own_groups(tmp_path):
    judge = {"id": "judge/recycled", "weight": 0.0, "options": {"task": "vqa/shapes", "options": {"size": 56}}}
    rl = {"kind": "rl", "steps": 1, "prompts_per_step": 4, "group_size": 2, "rules": [{"id": "judge/recycle"}]}
    tasks = [{"id": "vqa/shapes", "options": {"size": 56}}, judge]
    config = runs.toy_config(tmp_path, tasks=tasks, stages=[{**rl, "oversample": 1.5}], evaluate={"num_prompts": 0})
    (row,) = [row["metrics"] for row in runs.rows(runs.run(config)) if "metrics" in row]
    assert row["sampling/pointwise"] == 3 and "task/judge/recycled/reward" in row
    assert row["sampling/groups"] == 6 and row["sampling/filtered_share"] == pytest.approx(1 / 3)
