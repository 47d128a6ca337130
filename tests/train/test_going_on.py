"""Rules that let begun answers go on: what `StepSampler.go_on` asks the sampler for, and a run whose rule does."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace

import pytest

import runs
from mmrl.api.episodes import Conversation, Trajectory
from mmrl.api.errors import PluginError, UserError
from mmrl.api.sampling import Continued
from mmrl.api.types import Prompt, Status, Turn
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.metrics import StepTimer
from mmrl.train.position import StepIndex
from mmrl.train.sampling.sampler import SamplingStep
from mmrl.train.sampling.smoke_gold import SmokeGold

LIMITS = {"a": 20, "b": 30, "c": 20}


def answer(task, group, turns=1, **more):
    turn = Turn(observed_ids=(), token_ids=(7,), logprobs=(-1.0,), text=f"{task}{group}")
    prompt = Prompt(id=f"{task}{group}", task=task, messages=[])
    return Conversation(prompt=prompt, group=group, turns=(turn,) * turns, status=Status.FINISHED, **more)


class Collector:
    """Keeps what it was asked."""

    def __init__(self):
        self.asked = []

    def go_on(self, rollouts, begun, sampling, **how):
        self.asked.append(([r.prompt.id for r in rollouts], begun, sampling, how))
        return [Continued(rollout=r, text=text, tokens=0) for r, text in zip(rollouts, begun, strict=True)]


def step(collector=None, add_gold=None):
    def sampling(task, seed, temperature=None):
        return SamplingParams(max_tokens=LIMITS[task], temperature=1.0 if temperature is None else temperature, seed=seed)

    run = SimpleNamespace(config=SimpleNamespace(seed=0), collector=collector or Collector(), sampling=sampling)
    sampler = SimpleNamespace(run=run, weights=SimpleNamespace(of=lambda at: {}), add_gold=add_gold)
    return SamplingStep(sampler, StepIndex(3, 3, 2), StepTimer())


def test_answers_of_tasks_with_one_limit_go_on_together_and_come_back_in_their_order():
    collector = Collector()
    found = step(collector).go_on([answer(*one) for one in (("a", 0), ("b", 1), ("c", 2), ("a", 0))], [*"wxyz"], 0.9, 5)
    assert [(one.rollout.prompt.id, one.text) for one in found] == [("a0", "w"), ("b1", "x"), ("c2", "y"), ("a0", "z")]
    (first, texts, how, more), (second, _, other, _) = collector.asked
    assert (first, texts, second) == (["a0", "c2", "a0"], ["w", "y", "z"], ["b1"])
    assert (how.max_tokens, how.temperature, other.max_tokens) == (20, 0.9, 30)
    assert (more["version"], more["most"], more["endings"]) == (2, 5, [None] * 3) and len(set(more["numbers"])) == 3


def test_random_draws_are_those_of_the_group_whatever_others_there_are():
    """Each learner process has groups of its own."""
    both, one = Collector(), Collector()
    step(both).go_on([answer("a", 0), answer("a", 4), answer("a", 4)], [*"xyz"])
    step(one).go_on([answer("a", 4), answer("a", 4)], [*"yz"])
    ((_, _, how, more),), ((_, _, alone, few),) = both.asked, one.asked
    assert more["numbers"][1:] == few["numbers"] and how.seed == alone.seed


def test_each_call_has_another_seed_and_one_without_answers_asks_for_nothing():
    collector = Collector()
    sample = step(collector)
    before = sample.seed
    assert sample.go_on([], []) == [] and collector.asked == []
    assert before != sample.seed, "the same number of calls in all processes"
    sample.go_on([answer("a", 0)], ["x"])
    assert collector.asked[0][2].seed not in (before, sample.seed)


def test_in_a_smoke_run_every_second_one_ends_with_its_gold_completion():
    collector = Collector()
    gold = SimpleNamespace(of=lambda prompt: None if prompt.task == "b" else f"gold of {prompt.id}")
    add_gold = SimpleNamespace(endings=lambda rollouts: SmokeGold.endings(gold, rollouts))
    step(collector, add_gold).go_on([answer("a", n) for n in range(3)] + [answer("a", 3), answer("b", 4)], [*"vwxyz"])
    assert collector.asked[0][3]["endings"] == ["gold of a0", None, "gold of a2", None] and collector.asked[1][3]["endings"] == [
        None
    ]


SEVERAL = "^task 'a' has episodes of several turns, which don't go on from a begun answer: leave it out$"


@pytest.mark.parametrize(
    ("rollout", "why"),
    [
        (answer("a", 0, turns=2), SEVERAL),
        (answer("a", 0, media_rows=({},)), SEVERAL),
        (
            Trajectory(prompt=Prompt(task="a", messages=[]), group=0, status=Status.FINISHED, data=None),
            "^task 'a' acts, and only answers in words go on from a begun one: leave the task or the rule out$",
        ),
    ],
)
def test_other_episodes_are_refused(rollout, why):
    with pytest.raises(UserError, match=why):
        step().go_on([rollout], ["x"])


MANY = [([], None), (["x", "y"], 4), *[(["x"], most) for most in (0, -3, True, 2.5, "3", math.nan, 10**12)]]


@pytest.mark.parametrize(("begun", "most"), MANY)
def test_calls_that_can_not_be_meant_are_refused(begun, most):
    why = rf"^sample.go_on\(\): 1 answers need as many texts, not {len(begun)}; most: from 1 to 131072, not {most!r}$"
    with pytest.raises(PluginError, match=why):
        step().go_on([answer("a", 0)], begun, most=most)


@pytest.mark.parametrize("text", [None, b"x", 7, "a\ud800"])
def test_what_is_no_text_is_refused(text):
    with pytest.raises(
        PluginError, match=r"^sample.go_on\(\): an answer can't begin with .*: give a str without lone surrogates$"
    ):
        step().go_on([answer("a", 0)], [text])


@pytest.mark.parametrize("temperature", [-1, 1e-320, 1e4, math.nan, math.inf, "0.9", True])
def test_temperatures_at_which_nothing_can_be_sampled_are_refused(temperature):
    with pytest.raises(PluginError, match=r"^sample.go_on\(\): temperature = \S+ must be 0, or from 0.001 to 1000$"):
        step().go_on([answer("a", 0)], ["x"], temperature)


def test_rules_that_select_are_refused():
    sample = step()
    sample.selecting = True
    with pytest.raises(PluginError, match=r'^sample.go_on\(\) is for the phase "score": write `phase = "score"` in the rule'):
        sample.go_on([], [])


RULE = """
from dataclasses import replace
from mmrl import SamplingRule, SamplingRuleSpec, hookimpl

@hookimpl
def mmrl_sampling_rules():
    return [SamplingRuleSpec(id="doubt/doubt", target="doubt:Doubt")]

class Doubt(SamplingRule):
    def __init__(self, keep=2, words=" no: ", most=3):
        self.keep, self.words, self.most = keep, words, most

    def __call__(self, groups, sample):
        rollouts = [r for g in groups for r in g.rollouts]
        found = sample.go_on(rollouts, [r.completion[: self.keep] + self.words for r in rollouts], most=self.most)
        assert self.most is None or all(one.tokens <= self.most for one in found)
        answers = iter(one.rollout for one in found)
        for group in groups:
            group.rollouts = [next(answers) for _ in group.rollouts]
        sample.score(groups)
        return groups
"""


@pytest.fixture(scope="module")
def doubt(tmp_path_factory):
    file = tmp_path_factory.mktemp("plugin") / "doubt.py"
    file.write_text(RULE)
    return file


def doubting(tmp_path, monkeypatch, doubt, **options):
    """The folder of a run whose rule gives words."""
    monkeypatch.setenv("MMRL_PLUGIN_FILES", f"{runs.TOY}:{doubt}")
    rl = {
        "kind": "rl",
        "steps": 2,
        "prompts_per_step": 3,
        "group_size": 4,
        "learning_rate": 1e-3,
        "rules": [{"id": "doubt/doubt", "options": options}],
    }
    return runs.run(runs.toy_config(tmp_path, stages=[rl], record={"rollouts_every": 1, "rollouts": 12}))


def test_a_step_in_which_nothing_was_sampled_has_no_figures_of_answers(tmp_path, monkeypatch, doubt):
    folder = doubting(tmp_path, monkeypatch, doubt, keep=0, words="word " * 9, most=None)
    metrics = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    assert len(metrics) == 2 and not any(key.startswith(("length/", "reward/", "task/")) for m in metrics for key in m)


def test_a_run_trains_on_answers_that_went_on(tmp_path, monkeypatch, doubt):
    folder = doubting(tmp_path, monkeypatch, doubt)
    texts = [file.read_text() for file in sorted((folder.path / "rollouts").glob("step-*.jsonl"))]
    rows = [json.loads(line) for text in texts for line in text.splitlines()]
    assert len(rows) == 24 and all(" no: " in row["completion"] and row["source"] == "policy" for row in rows)
    metrics = [row["metrics"] for row in runs.rows(folder) if "metrics" in row]
    assert all(m["logprob_gap"] < 1e-4 and m["grad_norm"] > 0 for m in metrics), "of what was sampled, before and after the words"
