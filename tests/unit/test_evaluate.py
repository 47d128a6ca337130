"""Held-out figures: Wilson's interval against its definition and published values, and what is asked, counted and left out."""

import math
import statistics
from types import SimpleNamespace

import pytest
from scipy.stats import binomtest

import runs
from mmrl.errors import UserError
from mmrl.evaluate import Evaluator, metric_of
from mmrl.interfaces import Task
from mmrl.intervals import wilson
from mmrl.types import Frame, Prompt, Rollout, Score, Status, Turn, user


@pytest.fixture(autouse=True)
def toy(monkeypatch):
    monkeypatch.setenv("MMRL_PLUGIN_FILES", runs.TOY)


# -- Wilson's interval --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("successes", "n", "low", "high"),
    [
        # Newcombe, Two-sided confidence intervals for the single proportion (1998), table I, method 3
        (81, 263, 0.2553, 0.3662),
        (15, 148, 0.0624, 0.1605),
        (0, 20, 0.0000, 0.1611),
        (1, 29, 0.0061, 0.1718),
        # by hand, with z * z = 3.8415: (p + 1.9207 / n -+ 1.96 sqrt(p (1 - p) / n + 0.9604 / n^2)) / (1 + 3.8415 / n)
        (50, 100, 0.4038, 0.5962),
        (1, 1, 0.2065, 1.0),
    ],
)
def test_published_intervals(successes, n, low, high):
    assert wilson(successes, n) == pytest.approx((low, high), abs=5e-5)


def test_the_interval_equals_scipys_and_stays_within_zero_and_one():
    for n in (1, 2, 7, 40, 397, 10_000):
        for k in {0, 1, n // 3, n // 2, n - 1, n}:
            low, high = wilson(k, n)
            expected = binomtest(k, n).proportion_ci(0.95, method="wilson")
            assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-12)
            assert 0.0 <= low <= k / n + 1e-12 and k / n - 1e-12 <= high <= 1.0
    assert wilson(0, 0) == (0.0, 1.0)


def test_the_bounds_are_the_proportions_that_lie_z_standard_errors_away():
    for bound in wilson(7, 25, z=2.5):
        assert abs(7 / 25 - bound) / math.sqrt(bound * (1 - bound) / 25) == pytest.approx(2.5)


# -- one task's figure --------------------------------------------------------------------------------------------------


class Letters(Task):
    splits = ("train", "test", "other")

    def prompts(self, split, seed):
        return [Prompt(id=f"{split}-{seed}-{i}", messages=[user("x")], answer=str(i)) for i in range(9)]

    def summarise(self, results):
        return {"answers": float(sum(int(p.answer) * value for p, value in results)), "results": float(len(results))}


class Collector:
    """Answers nothing; the completions of every third prompt are cut off. Keeps what it was asked."""

    def __init__(self, batch_size=256):
        self.generator = SimpleNamespace(batch_size=batch_size)
        self.asked = []

    def encode(self, prompts):
        return [f"encoded {p.id}" for p in prompts]

    def collect(self, prompts, inputs, group_size, sampling):
        assert inputs == self.encode(prompts) and group_size == 1
        self.asked.append((prompts, sampling))
        turn = Turn(observed_ids=(), token_ids=(), logprobs=(), text="")
        cut = [int(p.answer) % 3 == 2 for p in prompts]
        return [
            Rollout(prompt=p, group=g, turns=(turn,), status=Status.TRUNCATED_LENGTH if c else Status.FINISHED, inputs=i)
            for g, (p, i, c) in enumerate(zip(prompts, inputs, cut, strict=True))
        ]


class Judged:
    """Gives these scores, in this order."""

    def __init__(self, *values):
        self.values, self.asked = values, []

    def run(self, verifier, cases):
        self.asked.append((verifier, [c.answer for c in cases]))
        return [Score(v, detail="the grader is out" if v is None else "") for v in self.values]


def figure(tmp_path, judge, n=200, collector=None, overrides=()):
    config = runs.toy_config(tmp_path, overrides=(f"evaluate.n={n}", *overrides))
    return Evaluator(config, {"toy/colour": Letters()}, collector or Collector(), judge)("toy/colour")


def test_an_accuracy_counts_what_was_scored_and_says_what_failed(tmp_path):
    found, scores = figure(tmp_path, Judged(1.0, 0.0, None, 1.0, 1.0), n=5, overrides=("judge.failure_limit=0.2",))
    assert (found.task, found.split, found.metric, found.value, found.n) == ("toy/colour", "test", "accuracy", 0.75, 4)
    assert (found.low, found.high) == wilson(3, 4)
    assert found.extra == {"truncated_share": 0.2, "failed": 1.0, "answers": 3.0 + 7.0 + 8.0, "results": 4.0}, (
        "asked: 3, 4, 6, 7, 8"
    )
    assert len(scores) == 5


def test_other_scores_have_the_normal_interval_of_their_mean(tmp_path):
    values = (0.25, 0.75, 1.0, None, 0.5)
    found, _ = figure(tmp_path, Judged(*values), n=5, overrides=("judge.failure_limit=0.2",))
    assert (found.metric, found.value, found.n, found.extra["failed"]) == ("toy/exact", 0.625, 4, 1.0)
    half = 1.959964 * math.sqrt((0.375**2 + 0.125**2 + 0.375**2 + 0.125**2) / 3) / 2
    assert (found.low, found.high) == pytest.approx((0.625 - half, 0.625 + half))
    assert half == pytest.approx(1.959964 * statistics.stdev([0.25, 0.75, 1.0, 0.5]) / math.sqrt(4))


def test_the_tasks_metric_judges_greedy_answers_to_prompts_spread_over_the_split(tmp_path):
    judge, collector = Judged(*[1.0] * 7), Collector(batch_size=3)
    overrides = ("evaluate.split=other", "seed=4", "generate.temperature=0.7", "generate.max_tokens=11")
    assert figure(tmp_path, judge, 7, collector, overrides)[0].split == "other"
    assert judge.asked == [("toy/exact", ["1", "2", "3", "5", "6", "7", "8"])], "not the verifier that training rewards"
    assert [[p.id for p in prompts] for prompts, _ in collector.asked] == [
        ["other-4-1", "other-4-2", "other-4-3"],
        ["other-4-5", "other-4-6", "other-4-7"],
        ["other-4-8"],
    ]
    assert {(s.temperature, s.max_tokens) for _, s in collector.asked} == {(0.0, 11)}
    assert {p.task for prompts, _ in collector.asked for p in prompts} == {"toy/colour"}


def test_a_verifier_that_is_graded_never_gives_an_accuracy(tmp_path, monkeypatch):
    from mmrl import plugins
    from mmrl.types import replace

    registry = plugins.registry()
    graded = replace(registry.get("verifiers", "toy/exact"), graded=True)
    monkeypatch.setattr(
        type(registry),
        "get",
        lambda self, kind, id, get=type(registry).get: (
            graded if (kind, id) == ("verifiers", "toy/exact") else get(self, kind, id)
        ),
    )
    found, _ = figure(tmp_path, Judged(0.0, 0.0, 1.0), n=3)
    assert found.metric == "toy/exact" and (found.low, found.high) != wilson(1, 3)


def test_the_prompts_of_a_task_are_made_once(tmp_path):
    class Counted(Letters):
        made = 0

        def prompts(self, split, seed):
            Counted.made += 1
            return super().prompts(split, seed)

    evaluator = Evaluator(runs.toy_config(tmp_path), {"toy/colour": Counted()}, Collector(), Judged(*[1.0] * 4))
    assert evaluator("toy/colour")[0] == evaluator("toy/colour")[0] and Counted.made == 1


def test_a_metric_that_the_run_file_replaced_is_not_evaluated(tmp_path):
    def metric(verifiers):
        return metric_of(runs.toy_config(tmp_path, tasks=[{"id": "toy/colour", "verifiers": verifiers}]), "toy/colour")

    assert metric({}) == "toy/exact"
    assert metric({"toy/letters": 1.0, "toy/exact": 0.5}) == "toy/exact"


def test_fewer_prompts_than_asked_for_are_all_asked(tmp_path):
    assert figure(tmp_path, Judged(*[0.0] * 9), n=200)[0].n == 9


def test_an_evaluation_with_too_many_failed_scores_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"'toy/colour': 1 of 4 scores failed, more than .*the first: the grader is out"):
        figure(tmp_path, Judged(1.0, None, 0.0, 1.0), n=4, overrides=("judge.failure_limit=0.2",))
    with pytest.raises(UserError, match=r"2 of 2 scores failed"):
        figure(tmp_path, Judged(None, None), n=2, overrides=("judge.failure_limit=1",))


def test_verifiers_see_the_sizes_and_the_frame_that_they_see_in_training(tmp_path):
    class Sized(Collector):
        def encode(self, prompts):
            return [SimpleNamespace(image_sizes=((9, 6),), model_sizes=((84, 56),), frame=Frame.MODEL_PIXELS) for _ in prompts]

        def collect(self, prompts, inputs, group_size, sampling):
            turn = Turn(observed_ids=(), token_ids=(), logprobs=(), text="")
            return [
                Rollout(prompt=p, group=0, turns=(turn,), status=Status.FINISHED, inputs=i)
                for p, i in zip(prompts, inputs, strict=True)
            ]

    class Look(Judged):
        def run(self, verifier, cases):
            self.asked += cases
            return super().run(verifier, cases)[: len(cases)]

    judge = Look(1.0)
    figure(tmp_path, judge, 1, Sized())
    assert (judge.asked[0].image_sizes, judge.asked[0].model_sizes, judge.asked[0].frame) == (
        ((9, 6),),
        ((84, 56),),
        Frame.MODEL_PIXELS,
    )
    assert judge.asked[0].rollout.inputs is None
