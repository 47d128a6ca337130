"""Held-out figures: intervals against their definitions and published values, and what is asked, counted and left out."""

import itertools
import json
import math
import random
import statistics
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image
from scipy import stats
from scipy.stats import binomtest

import runs
from mmrl.api.coordinates import CoordinateFormat
from mmrl.api.episodes import Conversation
from mmrl.api.errors import PluginError, UserError
from mmrl.api.interfaces import Task
from mmrl.api.media.clips import VideoFrames
from mmrl.api.seeds import derive
from mmrl.api.simulators.types import Simulation
from mmrl.api.specs import VerifierSpec
from mmrl.api.statistics import effective_count, effective_count_of_shares, mean_interval, student, variance_freedom, wilson
from mmrl.api.tasks.perturb import blanked
from mmrl.api.types import Prompt, Score, Status, Turn, user_message
from mmrl.evaluation.evaluator import Evaluator
from mmrl.evaluation.results import (
    Evaluation,
    PromptResult,
    confidence_interval,
    figure_of,
    mean_parts,
    outcome_interval,
    parts_by_prompt,
    pass_at,
    pass_at_k_metrics,
)
from mmrl.registry import plugins
from mmrl.train.resolve import resolve
from mmrl.ui.cli import main


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
    assert all(wilson(0, n)[0] == 0.0 and wilson(n, n)[1] == 1.0 for n in range(1, 300)), "no rounding at the ends"


def test_the_bounds_are_the_proportions_that_lie_z_standard_errors_away():
    for bound in wilson(7, 25, z=2.5):
        assert abs(7 / 25 - bound) / math.sqrt(bound * (1 - bound) / 25) == pytest.approx(2.5)


# -- Student's interval ------------------------------------------------------------------------------------------------


def test_students_t_equals_the_tables_and_scipys():
    # any table of Student's t, two-sided 95%
    assert [round(student(freedom), 3) for freedom in (1, 2, 3, 4, 10, 30)] == [12.706, 4.303, 3.182, 2.776, 2.228, 2.042]
    assert round(student(2, 0.9), 3) == 2.92
    for freedom in (1, 2, 5, 6, 99, 100, 396, 5000):
        assert student(freedom) == pytest.approx(stats.t.ppf(0.975, freedom), abs=1e-8)


def test_the_interval_of_a_mean():
    # mean 2, standard deviation 1, three values: 2 -+ 4.302653 / sqrt(3)
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx((2 - 2.484138, 2 + 2.484138), abs=1e-6)
    assert mean_interval([0.5, 0.5]) == (0.5, 0.5)
    assert mean_interval([0.5]) == mean_interval([]) == (-math.inf, math.inf)


def test_the_interval_of_a_mean_whose_values_come_in_sets():
    """By hand, and in the two extremes: values that say the same as another of their set, and sets of one value."""
    # deviations of +-1/2, sums of +-1: the variance is 2 / 1 * (1 + 1) / 4^2, that of independent values 1 / 3 / 4
    assert mean_interval([1, 1, 0, 0], "aabb") == pytest.approx((0.5 - 12.706205 / 2, 0.5 + 12.706205 / 2), abs=1e-6)
    assert effective_count([1, 1, 0, 0], "aabb") == pytest.approx(4 / 3) and effective_count([1, 0, 1, 0], "aabb") == 4
    chance = random.Random(3)
    values = [chance.random() for _ in range(9)]
    assert mean_interval(values * 4, [*range(9)] * 4, 0, 1) == pytest.approx(mean_interval(values, None, 0, 1))
    assert (
        mean_interval(values, range(9)) == pytest.approx(mean_interval(values)) and mean_interval(values, "a" * 9)[0] == -math.inf
    )
    assert confidence_interval([1.0] * 6, sets="aabbcc") == wilson(3, 3) != confidence_interval([1.0] * 6) == wilson(6, 6)
    assert confidence_interval([0.5] * 6, sets="aabbcc") == confidence_interval([0.5] * 3)
    low, high = confidence_interval([1, 1, 0, 0, 0, 0], sets="aabbcc")
    assert low < wilson(2, 6)[0] and wilson(2, 6)[1] < high
    assert confidence_interval([1, 0], sets="aa", counted=False) == (0, 1), "one set says nothing of the spread of sets"
    assert effective_count([1.0] * 6, "aaaaab") == 36 / 26, "a large set outweighs others"
    for size in (1e-200, 1e200):  # whose squares are 0, and too large
        assert effective_count([size, size, 0, 0], "aabb") == effective_count([1, 1, 0, 0], "aabb")
    assert confidence_interval([0.5, 0.5 + 1e-15] * 3, sets="aabbcc") == pytest.approx(confidence_interval([0.5] * 3))


def test_the_interval_of_an_outcome_is_that_of_the_figure():
    """Of the same values in the same sets; a return has no range, whatever it was."""
    values, sets = [1.0, 1.0, 0.0, 0.0, 1.0, 1.0], [0, 0, 1, 1, 2, 2]
    assert outcome_interval("chain_3", values, sets) == confidence_interval(values, sets=sets) != confidence_interval(values)
    assert outcome_interval("chain_3", [0.5] * 4, None) == confidence_interval([0.5] * 4)
    assert outcome_interval("return", values, sets) == mean_interval(values, sets) != confidence_interval(values, sets=sets)
    assert outcome_interval("return", [1.0] * 4, None) == (-math.inf, math.inf), "equal returns say nothing of their spread"
    assert outcome_interval("calls", [0.2, 0.4], None, others=[3.0]) == mean_interval([0.2, 0.4]), "the other run's are no shares"


def test_the_interval_of_a_share_covers_it_where_sets_are_few():
    """Of sets of 20 answers that are right with a probability of their own, uniformly random."""
    chance, covered, sets = random.Random(0), 0, [i // 20 for i in range(60)]
    for _ in range(300):
        own = [chance.random() for _ in range(3)]
        low, high = confidence_interval([float(chance.random() < own[one]) for one in sets], sets=sets)
        covered += low <= 0.5 <= high
    assert covered >= 0.93 * 300, "it is 0.81 with the normal quantile of their spread"
    assert effective_count_of_shares([1.0, 0.0], "ab") == 2 and effective_count_of_shares([1.0, 0.0], "aa") == 1


# -- one task's figure --------------------------------------------------------------------------------------------------


class Letters(Task):
    splits = ("train", "test", "other")

    def prompts(self, split, seed):
        return [Prompt(id=f"{split}-{seed}-{i}", messages=[user_message("x")], answer=str(i)) for i in range(9)]

    def summarise(self, results):
        return {"answers": float(sum(int(p.answer) * value for p, value in results)), "results": float(len(results))}

    def summarise_parts(self, parts):
        return {f"{name}/least": min(value for _, value in own) for name, own in parts.items()}


class Collector:
    """Answers nothing; the completions of every third prompt are cut off. Keeps what it was asked."""

    def __init__(self, batch_size=256):
        self.batch_size = batch_size
        self.asked = []

    def encode(self, prompts):
        return [f"encoded {p.id}" for p in prompts]

    def wake_up(self):
        """It has no weights."""

    def collect(self, prompts, inputs, group_size, sampling, numbers=()):
        assert inputs == self.encode(prompts) and group_size == 1
        self.asked.append((prompts, sampling))
        turn = Turn(observed_ids=(), token_ids=(), logprobs=(), text="")
        cut = [int(p.answer) % 3 == 2 for p in prompts]
        return [
            Conversation(prompt=p, group=g, turns=(turn,), status=Status.TRUNCATED_LENGTH if c else Status.FINISHED, inputs=i)
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
    config = runs.toy_config(tmp_path, overrides=(f"evaluate.num_prompts={n}", *overrides))
    return Evaluator(runs.setup(config, {"toy/colour": Letters()}), collector or Collector(), judge)("toy/colour")


def test_the_parts_that_a_verifier_names_are_means_over_the_answers_that_have_them():
    scores = [
        Score(1.0, parts={"type": 1.0, "place": 1.0}),
        Score(0.0, parts={"type": 0.0}),
        Score(0.0, parts={"type": 1.0}),
        Score(None),
    ]
    assert mean_parts(scores) == {"part/type": pytest.approx(2 / 3), "part/place": 1.0}
    assert mean_parts([Score(1.0)]) == {}
    first, second = Letters().prompts("test", 0)[:2]
    assert parts_by_prompt([first, second], scores, 2) == {"type": [(first, 0.5), (second, 1.0)], "place": [(first, 1.0)]}


def test_a_task_makes_further_figures_of_the_parts(tmp_path):
    class Parted(Judged):
        def run(self, verifier, cases):
            return [Score(v, parts={} if v == 0 else {"place": v}) for v in self.values]

    found, _ = figure(tmp_path, Parted(1.0, 0.0, 0.5), n=3)
    assert {name: value for name, value in found.extra.items() if name.startswith("part/")} == {
        **{"part/place": 0.75, "part/place/least": 0.5}
    }


def test_an_accuracy_counts_what_was_scored_and_says_what_failed(tmp_path):
    found, scores = figure(tmp_path, Judged(1.0, 0.0, None, 1.0, 1.0), n=5, overrides=("judge.failure_limit=0.2",))
    assert (found.task, found.split, found.metric, found.value, found.n) == ("toy/colour", "test", "accuracy", 0.75, 4)
    assert (found.low, found.high) == wilson(3, 4)
    assert found.extra == {"truncated_share": 0.2, "failed": 1.0, "answers": 3.0 + 7.0 + 8.0, "results": 4.0}, (
        "asked: 3, 4, 6, 7, 8"
    )
    assert len(scores) == 5


def test_other_scores_have_students_interval_of_their_mean(tmp_path):
    values = (0.25, 0.75, 1.0, None, 0.5)
    found, _ = figure(tmp_path, Judged(*values), n=5, overrides=("judge.failure_limit=0.2",))
    assert (found.value, found.n, found.extra["failed"]) == (0.625, 4, 1.0)
    half = 3.182446 * math.sqrt((0.375**2 + 0.125**2 + 0.375**2 + 0.125**2) / 3) / 2
    assert half == pytest.approx(3.182446 * statistics.stdev([0.25, 0.75, 1.0, 0.5]) / math.sqrt(4)) and half > 0.375
    for bound in (found.low, found.high):  # as far as that where the spread is that of a mean at the bound
        assert abs(0.625 - bound) / math.sqrt(bound * (1 - bound)) == pytest.approx(half / math.sqrt(0.625 * 0.375))
    assert 0 < found.low < 0.625 - 0.375 and found.high < 1, "within the verifier's range"


def test_the_interval_of_graded_scores_without_a_range_is_scipys():
    """`scipy.stats.t.interval(0.95, n - 1, mean, sem)` of these values."""
    some, wide = [0.2, 0.5, 0.9], (-math.inf, math.inf)
    assert confidence_interval(some, *wide, counted=False) == pytest.approx((-0.3390671602, 1.4057338269), abs=1e-9)
    more = [0.1, 0.4, 0.35, 0.8, 0.65]
    assert confidence_interval(more, *wide, counted=False) == pytest.approx((0.1216608001, 0.7983391999), abs=1e-9)


def test_the_interval_of_graded_scores_within_a_range():
    """Of values that are 0 or 1, Wilson's for the sample's variance and Student's t; of those in any other range, the same there;
    and near the middle of a wide range, Student's."""
    shares = [1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 1.0]
    expected = wilson(6, 8, student(7) * math.sqrt(8 / 7))
    assert confidence_interval(shares, counted=False) == pytest.approx(expected)
    halved = confidence_interval([3 * share - 1 for share in shares], -1, 2, counted=False)
    assert halved == pytest.approx([3 * bound - 1 for bound in expected])
    assert confidence_interval(shares, -1e6, 1e6, counted=False) == pytest.approx(mean_interval(shares))
    assert confidence_interval([0.25, 0.0], counted=False)[0] > 0 > mean_interval([0.25, 0.0])[0]


def test_the_degrees_of_freedom_are_those_of_the_variance():
    """2 n / (kurtosis - (n - 3) / (n - 1)), at most n - 1, by hand."""
    skewed = [9.0] + [-1.0] * 9  # the kurtosis is 10 (9^4 + 9) / 90^2 = 8.1111
    assert variance_freedom(skewed, None) == pytest.approx(20 / (8.1111111 - 7 / 9))
    assert variance_freedom([1.0, 2.0, 3.0, 4.0], None) == 3 and variance_freedom([2.0, 2.0], None) == 1
    assert variance_freedom([9.0, *([-1.0] * 9)] * 3, [*range(10)] * 3) == pytest.approx(variance_freedom(skewed, None))
    assert variance_freedom([1.0] * 5 + [-1.0] * 5, "aaaabbccde") == pytest.approx(variance_freedom([4, 0, -2, -1, -1], None))
    # between t of 2 and of 3 degrees, 4.302653 and 3.182446, where the freedom is 2.727273; the mean is 0, the deviation sqrt(10)
    low, high = mean_interval(skewed)
    t = 4.302653 + 0.727273 * (3.182446 - 4.302653)
    assert (low, high) == pytest.approx((-t, t), abs=1e-5)


SKEWED = {  # how one is drawn -> their mean
    "beta": (lambda chance: chance.betavariate(0.2, 2), 0.2 / 2.2),
    "mostly 0": (lambda chance: max(0.0, min(1.0, 20 * chance.random() - 18)), 0.075),
}


@pytest.mark.parametrize("name", SKEWED)
def test_the_interval_of_few_skewed_scores_holds_their_mean(name):
    (draw, mean), chance, held = SKEWED[name], random.Random(5), 0
    for _ in range(500):
        low, high = confidence_interval([draw(chance) for _ in range(20)], counted=False)
        held += low <= mean <= high
    assert held >= 0.935 * 500, "0.93 with 19 degrees of freedom, 0.89 to 0.91 with plain Student's t"


def test_the_interval_of_three_graded_scores_holds_the_mean_as_often_as_it_says():
    chance, held = random.Random(7), 0
    for _ in range(4000):
        low, high = confidence_interval([chance.gauss(0.5, 0.1) for _ in range(3)], -9, 9, counted=False)
        held += low <= 0.5 <= high
    assert 0.94 < held / 4000 < 0.96, "1.96 standard errors hold it in 0.82 of the draws"


@pytest.mark.parametrize(("value", "k"), [(0.0, 0.0), (1.0, 4.0), (0.5, 2.0), (0.1, 0.4)])
def test_equal_graded_scores_are_not_certain(tmp_path, monkeypatch, value, k):
    """Four answers of IoU 0 don't show that all others are 0, too; the range of the verifier bounds what they may be."""
    spec = VerifierSpec(id="toy/exact", target="-:-", graded=True, low=-1.0, high=3.0)
    found = figure_of("toy", "test", spec, [scored(4 * value - 1)] * 4, {})
    assert (found.low, found.high) == pytest.approx([4 * b - 1 for b in wilson(k, 4)])
    assert found.low <= found.value <= found.high and found.high - found.low > 1
    one = figure_of("toy", "test", spec, [scored(0.0)], {})
    assert (one.low, one.high) == (-1.0, 3.0)


@pytest.mark.parametrize("values", [[-0.2, -0.2, -0.2], [1.4, 1.4], [-0.2, 1.0, 1.4]])
def test_values_outside_of_the_range_that_was_expected_are_held_by_the_interval(values):
    """`bounds` of a verifier only expects: a reward with a penalty may give less."""
    spec = VerifierSpec(id="toy/sum", target="-:-", graded=True)
    found = figure_of("toy", "test", spec, [scored(v) for v in values], {})
    assert found.value == pytest.approx(sum(values) / len(values)) and found.low <= found.value <= found.high


def test_a_sum_of_rewards_has_an_interval_of_its_own_spread_and_none_without_one():
    """-1e6 to 1e6 only guards against absurd values: a hundred returns of 0 had an interval of -190,000 to 190,000."""
    spec = VerifierSpec(id="interop/return", target="-:-", low=-1e6, high=1e6, graded=True)
    for values in ([0.0] * 100, [0.5]):
        found = figure_of("t", "test", spec, [scored(v) for v in values], {})
        assert (found.low, found.high) == (-math.inf, math.inf)
        assert (found.as_json()["low"], found.as_json()["high"]) == (None, None)
    close = figure_of("t", "test", spec, [scored(v) for v in (0.99, 0.992, 0.991)], {})
    assert (close.low, close.high) == pytest.approx(mean_interval([0.99, 0.992, 0.991])) and close.high - close.low < 0.01


def scored(value):
    return PromptResult(id="a", value=value, values=(value,), answers=("",))


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


@pytest.mark.parametrize("values", [[0.0, 1.0], [0.0, 0.0], [0.5, 1.0]])
@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({}, "accuracy"),
        ({"outcome": True}, "success"),
        ({"outcome": True, "graded": True}, "toy/sum"),
        ({"graded": True}, "toy/sum"),
        ({"high": 2.0}, "toy/sum"),
        ({"high": 2.0, "outcome": True}, "toy/sum"),
    ],
)
def test_what_a_figure_is_called_is_told_by_the_verifier(fields, name, values):
    """And not by what happened to be scored: one name for all evaluations of a run, though a tie of a pair counts half."""
    spec = VerifierSpec(id="toy/sum", target="-:-", **fields)
    found = figure_of("toy", "test", spec, [scored(v) for v in values], {})
    assert (found.metric, found.verifier) == (name, "toy/sum")
    if values == [0.0, 1.0]:
        assert ((found.low, found.high) == wilson(1, 2)) == (name != "toy/sum"), "a share has the interval of one"


def test_a_task_that_acts_has_success_whatever_its_verifiers_spec_says(tmp_path):
    """And no majority, since nothing is said in an episode."""

    class Acted(Letters):
        simulation = Simulation(simulator="toy/none")

    class Played(Sampled):
        def collect(self, *asked, **more):
            outcome = {"success": 1.0, "steps": 3.0, "return": 0.5}
            return [replace(rollout, outcome=outcome) for rollout in super().collect(*asked, **more)]

    config = runs.toy_config(tmp_path, overrides=("evaluate.num_prompts=2", *FOUR))
    evaluator = Evaluator(runs.setup(config, {"toy/colour": Acted()}), Played(""), Judged(1.0, *[0.0] * 7))
    found, _ = evaluator("toy/colour")
    assert {row["completion"] for row in found.rows()} == {"succeeded after 3 steps, return 0.5"}
    assert (found.metric, found.value, found.verifier) == ("success", 0.125, "toy/exact")
    assert {name: value for name, value in found.extra.items() if "@" in name} == pytest.approx(
        {"pass@1": 0.125, "pass@2": 0.25, "pass@4": 0.5}
    )


def test_the_prompts_of_a_task_are_made_once(tmp_path):
    class Counted(Letters):
        made = 0

        def prompts(self, split, seed):
            Counted.made += 1
            return super().prompts(split, seed)

    evaluator = Evaluator(runs.setup(runs.toy_config(tmp_path), {"toy/colour": Counted()}), Collector(), Judged(*[1.0] * 4))
    assert evaluator("toy/colour")[0] == evaluator("toy/colour")[0] and Counted.made == 1


def test_a_metric_that_the_run_file_replaced_is_not_evaluated(tmp_path):
    def metric(verifiers):
        return resolve(runs.toy_config(tmp_path, tasks=[{"id": "toy/colour", "verifiers": verifiers}])).metrics["toy/colour"]

    assert metric({}) == "toy/exact"
    assert metric({"toy/letters": 1.0, "toy/exact": 0.5}) == "toy/exact"


def test_sets_of_prompts_are_asked_whole(tmp_path):
    """The same ones every time, as many as fit, from the whole split; no other prompts than before where all fit or none does."""

    def asked(sets, n):
        class Grouped(Letters):
            def prompt_sets(self, split, seed):
                return sets and iter(sets)

        config = runs.toy_config(tmp_path, overrides=(f"evaluate.num_prompts={n}",))
        held = Evaluator(runs.setup(config, {"toy/colour": Grouped()}), Collector(), Judged()).heldout
        entry = config.tasks[0]
        (batch,) = held.batches(entry, 9, lambda prompt: prompt, strict=False)
        assert {one.set is None for one in batch} == {not sets or len({*sets}) == 1}
        assert [one.posed for one in batch] == held.prompts(entry)
        return "".join(p.answer for p in held.prompts(entry))

    assert [asked("abcabcabc", n) for n in (3, 5, 6, 8, 9)] == ["147", "147", "013467", "013467", "012345678"]
    assert [asked("aabbbbbbc", n) for n in (2, 3, 7)] == ["01", "018", "2345678"], "what is too large leaves room for others"
    assert asked("aaaaabbbb", 4) == "5678"
    assert asked(None, 4) == asked("aaaaaaaaa", 4) == "3467", "no set fits"
    assert asked("abbbbbbbb", 4) == "3467", "one prompt is no evaluation of four"

    class Pairs(Letters):
        def prompt_sets(self, split, seed):
            return [i // 2 for i in range(9)]

    evaluator = Evaluator(runs.setup(runs.toy_config(tmp_path), {"toy/colour": Pairs()}), Collector(), Judged(*[1.0] * 4))
    found = evaluator("toy/colour")[0]
    assert [(row["id"][-1], row["set"]) for row in found.rows()] == [("2", 1), ("3", 1), ("6", 3), ("7", 3)]
    assert (found.low, found.high) == wilson(2, 2) and "set" not in figure(tmp_path, Judged(1.0), 1)[0].rows()[0]
    with pytest.raises(PluginError, match=r"'toy/colour': prompt_sets\('test', 0\) raised TypeError: unhashable type: 'list'"):
        asked([[1]] * 9, 4)
    with pytest.raises(PluginError, match=r"'toy/colour': prompt_sets\(\) must give a set for each of 9 prompts, not 2"):
        asked("ab", 4)


def test_fewer_prompts_than_asked_for_are_all_asked(tmp_path):
    assert figure(tmp_path, Judged(*[0.0] * 9), n=200)[0].n == 9


def test_an_evaluation_with_too_many_failed_scores_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"'toy/colour': 1 of 4 scores failed, more than .*the first: the grader is out"):
        figure(tmp_path, Judged(1.0, None, 0.0, 1.0), n=4, overrides=("judge.failure_limit=0.2",))
    with pytest.raises(UserError, match=r"2 of 2 scores failed"):
        figure(tmp_path, Judged(None, None), n=2, overrides=("judge.failure_limit=1",))


def test_verifiers_see_the_sizes_and_the_coordinate_format_that_they_see_in_training(tmp_path):
    class Sized(Collector):
        def encode(self, prompts):
            return [
                SimpleNamespace(image_sizes=((9, 6),), model_sizes=((84, 56),), coordinate_format=CoordinateFormat.MODEL_PIXELS)
                for _ in prompts
            ]

        def collect(self, prompts, inputs, group_size, sampling, numbers=()):
            turn = Turn(observed_ids=(), token_ids=(), logprobs=(), text="")
            return [
                Conversation(prompt=p, group=0, turns=(turn,), status=Status.FINISHED, inputs=i)
                for p, i in zip(prompts, inputs, strict=True)
            ]

    class Look(Judged):
        def run(self, verifier, cases):
            self.asked += cases
            return super().run(verifier, cases)[: len(cases)]

    judge = Look(1.0)
    figure(tmp_path, judge, 1, Sized())
    assert (judge.asked[0].image_sizes, judge.asked[0].model_sizes, judge.asked[0].coordinate_format) == (
        ((9, 6),),
        ((84, 56),),
        CoordinateFormat.MODEL_PIXELS,
    )
    assert judge.asked[0].rollout.inputs is None


# -- several answers to a prompt ----------------------------------------------------------------------------------------


class Worn(Letters):
    """A task of 40 prompts, of which some can't be posed and others not be read."""

    splits = ("train", "test")

    def __init__(self, unposed=(), unread=()):
        self.unposed, self.unread = unposed, unread

    def prompts(self, split, seed):
        return self

    def __len__(self):
        return 40

    def __getitem__(self, index):
        if index in self.unposed:
            raise UserError(f"table.jsonl line {index} is broken: mend it")
        return Prompt(id=f"p{index}", messages=[user_message("x")], answer=str(index))


class Picky(Collector):
    """Can't read some prompts."""

    def __init__(self, unread):
        super().__init__(batch_size=7)
        self.unread = {f"p{i}" for i in unread}

    def encode(self, prompts):
        if bad := [p.id for p in prompts if p.id in self.unread]:
            raise UserError(f"video {bad[0]}.mp4 is broken: replace it")
        return super().encode(prompts)


def test_prompts_that_cant_be_used_are_left_out_named_once_and_counted(tmp_path):
    collector = Picky({3, 4})
    evaluator = Evaluator(
        runs.setup(runs.toy_config(tmp_path, overrides=["evaluate.num_prompts=40"]), {"toy/colour": Worn({20})}),
        collector,
        Judged(*[1.0] * 37),
    )
    found, scores = evaluator("toy/colour")
    assert found.n == len(scores) == 37 and found.extra["left_out"] == 3
    assert [what.partition(":")[0] for what in found.left_out] == ["item 3", "item 4", "item 20"]
    assert "video p3.mp4 is broken" in found.left_out[0] and "table.jsonl line 20 is broken" in found.left_out[2]
    assert "left_out" not in found.as_json()
    again, _ = evaluator("toy/colour")
    assert again.items == found.items and again.extra["left_out"] == 3 and again.left_out == ()


def test_more_than_a_tenth_of_them_or_all_end_it(tmp_path):
    def evaluate(task, collector, n):
        config = runs.toy_config(tmp_path, overrides=[f"evaluate.num_prompts={n}"])
        return Evaluator(runs.setup(config, {"toy/colour": task}), collector, Judged(*[1.0] * 40))("toy/colour")

    assert evaluate(Worn(), Picky(range(6)), 40)[0].extra["left_out"] == 6
    with pytest.raises(UserError, match=r"7 of 40 prompts of split 'test' are broken: .*the last: video p\d+\.mp4 is broken"):
        evaluate(Worn(), Picky(range(7)), 40)
    with pytest.raises(UserError, match=r"1 of 1 prompts of split 'test' are broken: .*the last: table\.jsonl line"):
        evaluate(Worn(range(40)), Picky(()), 1)


class Sampled(Collector):
    """Gives prompt after prompt the next so many of these texts."""

    def __init__(self, *texts, batch_size=256):
        super().__init__(batch_size)
        self.texts = texts
        self.at = 0

    def collect(self, prompts, inputs, group_size, sampling, numbers=()):
        self.asked.append((prompts, sampling))
        rollouts = []
        for group, prompt in enumerate(prompts):
            for _ in range(group_size):
                text = self.texts[self.at % len(self.texts)] if self.texts else ""
                turn = Turn(observed_ids=(), token_ids=(7,), logprobs=(-1.0,), text=text)
                rollouts.append(Conversation(prompt=prompt, group=group, turns=(turn,), status=Status.FINISHED))
                self.at += 1
        return rollouts


FOUR = ("evaluate.num_samples=4", "evaluate.temperature=0.8")


def test_several_answers_to_a_prompt(tmp_path):
    texts = ("x", "y", "<answer> Y </answer>", "z", "q", "r", "r", "q", "", " ", "n", "")
    values = (1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0)
    found, scores = figure(tmp_path, Judged(*values), 3, Sampled(*texts), (*FOUR, "record.evaluation_prompts=1"))
    # means 1/4, 3/4, 1/4, whose standard deviation is sqrt(1/12)
    assert (found.metric, found.n, len(scores)) == ("accuracy", 3, 12) and found.value == pytest.approx(5 / 12)
    half = 4.302653 * math.sqrt(1 / 12) / math.sqrt(3)
    assert half > 7 / 12 and found.low < 0.1 and found.high > 0.85, "three prompts say next to nothing"
    # pass@2 is 1 - C(3, 2) / C(4, 2) = 1/2 with one right of four, and 1 with three
    several = {name: value for name, value in found.extra.items() if "@" in name}
    assert list(several) == ["pass@1", "pass@2", "pass@4", "majority@4"]
    # the majorities: y, wrong; of q and r the first, right; n, the only one that says anything, right
    assert several == pytest.approx({"pass@1": 5 / 12, "pass@2": 2 / 3, "pass@4": 1.0, "majority@4": 2 / 3})
    assert found.extra["results"] == 3.0, "the task summarises prompts, not answers"
    assert [i.id for i in found.items] == ["test-0-3", "test-0-4", "test-0-6"]
    (first, *others), (row, *rows) = found.items, found.rows()
    known = {"id": "test-0-3", "value": 0.25, "values": values[:4], "answers": ("x", "y", "y", "z"), "completion": "x"}
    assert first == PromptResult(**known, prompt=first.prompt)
    assert first.prompt.id == "test-0-3" and row["messages"] == first.prompt.messages and row["answer"] == first.prompt.answer
    assert row["completion"] == "x" and not any(item.prompt for item in others), "what was asked is kept of the first alone"
    assert rows[0] == {
        "task": "toy/colour",
        "split": "test",
        "verifier": "toy/exact",
        "id": "test-0-4",
        "value": 0.75,
        "values": [1.0, 1.0, 0.0, 1.0],
        "completion": "q",
    }
    assert not {"items", "verifier"} & found.as_json().keys() and json.dumps(found.as_json())


def test_answers_are_sampled_alike_whenever_they_are_asked_for(tmp_path):
    config = runs.toy_config(tmp_path, overrides=("evaluate.num_prompts=3", "seed=4", *FOUR))
    collector = Sampled("a", batch_size=9)
    evaluator = Evaluator(runs.setup(config, {"toy/colour": Letters()}), collector, Judged(*[1.0] * 12))
    evaluator("toy/colour")
    evaluator("toy/colour")
    seeds = [derive(4, "evaluate", "toy/colour", start) for start in (0, 2)]
    assert [(len(prompts), s.seed, s.temperature) for prompts, s in collector.asked] == [
        (2, seeds[0], 0.8),
        (1, seeds[1], 0.8),
    ] * 2, "nine at once are two prompts of four answers, and the second chunk has noise of its own"


def test_answers_that_agree_are_one_each(tmp_path):
    found, _ = figure(tmp_path, Judged(*[1.0] * 4, *[0.0] * 4, *[1.0] * 4), 3, Sampled("a"), FOUR)
    assert (found.value, found.low, found.high) == (pytest.approx(2 / 3), *wilson(2, 3)), "three prompts, not twelve answers"


def test_answers_that_fail_to_be_scored_are_left_out(tmp_path):
    values = (1.0, None, 0.0, 0.0, *[None] * 4, 1.0, 1.0, 1.0, 1.0)
    found, _ = figure(tmp_path, Judged(*values), 3, Sampled("a", "b", "c", "c"), (*FOUR, "judge.failure_limit=0.5"))
    assert (found.value, found.n, found.extra["failed"]) == (pytest.approx((1 / 3 + 1) / 2), 2, 5.0)
    # of the first prompt's three scored answers one is right: pass@2 = 1 - C(2, 2) / C(3, 2) = 2/3; only the last has four
    assert found.extra["pass@2"] == pytest.approx((2 / 3 + 1) / 2) and found.extra["pass@4"] == 1.0
    assert found.extra["majority@4"] == pytest.approx((0 + 1) / 2)
    assert [(i.value, i.values) for i in found.items] == [
        (pytest.approx(1 / 3), (1.0, None, 0.0, 0.0)),
        (None, (None,) * 4),
        (1.0, (1.0,) * 4),
    ]
    assert len(found.rows()) == 3 and found.rows()[1]["value"] is None


def item(*values, answers=None):
    return PromptResult(id="", value=None, values=values, answers=answers or ("a",) * len(values))


def test_what_succeeds_and_how_many_are_asked():
    exact, graded = (VerifierSpec(id="v", target="t", low=-1.0, high=2.0, graded=graded) for graded in (False, True))
    values = item(2.0, 1.9, 0.5, 0.49, -1.0, 0.0)
    assert pass_at_k_metrics([values], exact)["pass@1"] == pytest.approx(1 / 6), "the highest score"
    assert pass_at_k_metrics([values], graded)["pass@1"] == pytest.approx(3 / 6), "the middle of -1..2 and above"
    assert [name for name in pass_at_k_metrics([values], exact)] == ["pass@1", "pass@2", "pass@4", "pass@6", "majority@6"]
    assert list(pass_at_k_metrics([item(1.0, 1.0)], exact)) == ["pass@1", "pass@2", "majority@2"]


def test_a_sum_of_rewards_has_no_pass_at_k_and_an_episode_no_majority():
    """Any return that isn't negative lies in the upper half of -1e6..1e6, and the last turn of a game is no answer."""
    total = VerifierSpec(id="v", target="t", low=-1e6, high=1e6, graded=True)
    assert list(pass_at_k_metrics([item(0.0, 0.3)], total)) == ["majority@2"]
    assert pass_at_k_metrics([item(0.0, 0.3)], replace(total, outcome=True)) == {}
    won = VerifierSpec(id="v", target="t", outcome=True)
    assert pass_at_k_metrics([item(0.0, 1.0)], won) == {"pass@1": 0.5, "pass@2": 1.0}


def test_the_majority_of_nothing_but_blanks_is_a_blank():
    spec = VerifierSpec(id="v", target="t")
    assert pass_at_k_metrics([item(0.25, 0.0, answers=("", ""))], spec)["majority@2"] == 0.25
    assert pass_at_k_metrics([item(0.25, 0.5, 0.0, answers=("", "a", ""))], spec)["majority@3"] == 0.5
    assert pass_at_k_metrics([item(0.0, 0.75, 1.0, answers=("b", "a", "a"))], spec)["majority@3"] == 0.75, (
        "the first that gives it"
    )


def test_pass_at_k_is_the_share_of_choices_of_k_with_a_right_one():
    for n in range(1, 7):
        for c in range(n + 1):
            right = [i < c for i in range(n)]
            for k in range(1, n + 1):
                choices = [any(choice) for choice in itertools.combinations(right, k)]
                assert pass_at(k, n, c) == pytest.approx(statistics.fmean(choices), abs=1e-12)
    assert pass_at(10, 200, 1) == pytest.approx(0.05)


@pytest.mark.parametrize(
    ("answer", "told"),
    [(None, r"extract_answer\(\) must give text, not None"), (1 / 3, r"extract_answer\(\) must give text, not 0\.33")],
)
def test_an_answer_that_is_no_text_is_the_tasks_fault(tmp_path, answer, told):
    class Odd(Letters):
        def extract_answer(self, completion):
            return answer

    evaluator = Evaluator(runs.setup(runs.toy_config(tmp_path), {"toy/colour": Odd()}), Collector(), Judged(*[1.0] * 4))
    with pytest.raises(PluginError, match=f"task 'toy/colour': {told}"):
        evaluator("toy/colour")


# -- what the policy is shown -------------------------------------------------------------------------------------------


class Pictures(Task):
    def prompts(self, split, seed):
        picture = Image.new("RGB", (30, 20), (250, 0, 0))
        return [
            Prompt(id=f"{i}", messages=[{"role": "system", "content": "look"}, user_message("what?", picture)]) for i in range(3)
        ]


class Twice(Judged):
    """Other scores at the second call."""

    def run(self, verifier, cases):
        self.asked.append(cases)
        return [Score(v) for v in self.values[len(self.asked) - 1]]


def test_blanked_pictures_are_a_second_pass_that_verifiers_do_not_see(tmp_path):
    config = runs.toy_config(tmp_path, overrides=("evaluate.blank_images=true", "evaluate.num_prompts=3"))
    judge, collector = Twice((1.0, 1.0, 0.0), (1.0, 0.0, 0.0)), Sampled("a")
    found, scores = Evaluator(runs.setup(config, {"toy/colour": Pictures()}), collector, judge)("toy/colour")
    assert (found.value, found.extra["blank"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    assert [s.value for s in scores] == [1.0, 1.0, 0.0] and [i.value for i in found.items] == [1.0, 1.0, 0.0]
    (seen, first), (grey, second) = collector.asked
    assert first == second, "the same noise"
    assert {p.images[0].getpixel((0, 0)) for p in seen} == {(250, 0, 0)}
    assert {(p.images[0].size, p.images[0].getcolors()[0]) for p in grey} == {((30, 20), (600, (128, 128, 128)))}
    assert {p.text for p in grey} == {"look\nwhat?"} and [p.id for p in grey] == ["0", "1", "2"]
    assert {c.media[0].getpixel((0, 0)) for cases in judge.asked for c in cases} == {(250, 0, 0)}


class Films(Letters):
    """Six frames in memory, each of a grey of its own."""

    def prompts(self, split, seed):
        frames = np.arange(6, dtype=np.uint8).repeat(12).reshape(6, 2, 2, 3)
        film = VideoFrames(frames_THWC=frames, times_s=tuple(range(6)), duration_s=6.0)
        return [replace(p, messages=[user_message(p.text, film)]) for p in super().prompts(split, seed)]


def frames_in(prompts):
    return [tuple(int(f[0, 0, 0]) for f in p.videos[0].frames_THWC) for p in prompts]


def test_shuffled_videos_are_a_second_pass(tmp_path):
    config = runs.toy_config(tmp_path, overrides=("evaluate.shuffle_frames=true", "evaluate.num_prompts=3"))
    judge, collector = Twice((1.0, 1.0, 0.0), (1.0, 0.0, 0.0)), Sampled("a")
    found, _ = Evaluator(runs.setup(config, {"toy/colour": Films()}), collector, judge)("toy/colour")
    assert (found.value, found.extra["shuffled"]) == (pytest.approx(2 / 3), pytest.approx(1 / 3))
    (seen, first), (mixed, second) = collector.asked
    assert first == second and set(frames_in(seen)) == {tuple(range(6))}
    assert all(sorted(f) == list(range(6)) != list(f) for f in frames_in(mixed)) and len(set(frames_in(mixed))) > 1
    assert {p.videos[0].times_s for p in mixed} == {tuple(range(6))}
    assert all(c.rollout.prompt.videos[0].frames_THWC[0, 0, 0, 0] == 0 for cases in judge.asked for c in cases)


def test_few_frames_and_then_more(tmp_path):
    """Which answers decide is `mmrl.evaluation.probes.sparse_to_dense`'s; here it is what is shown, and that the last answers
    are judged once."""
    settings = ("evaluate.sparse_frames=[2,4]", "evaluate.sparse_agreement=2", "evaluate.num_prompts=2")
    judge, collector = Twice((1.0, 1.0), (1.0, 0.0)), Sampled("ab")
    found, _ = Evaluator(runs.setup(runs.toy_config(tmp_path, overrides=settings), {"toy/colour": Films()}), collector, judge)(
        "toy/colour"
    )
    assert found.extra["sparse_to_dense"] == 0.5 and found.extra["frames/mean"] in (2.0, 3.0, 4.0)
    shown = [len(frames[0]) for frames in (frames_in(prompts) for prompts, _ in collector.asked)]
    assert shown[:3] == [6, 2, 2] and set(shown[3:]) <= {4}
    assert [s.temperature for _, s in collector.asked[1:3]] == pytest.approx([0.8, 0.95]) and len(judge.asked) == 2


def test_more_frames_than_are_seen_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"evaluate\.sparse_frames has 64, above policy\.video\.max_frames = 32"):
        runs.toy_config(tmp_path, overrides=("evaluate.sparse_frames=[32,64]", "policy.video.max_frames=32"))


def test_a_task_without_pictures_is_not_blanked(tmp_path):
    collector = Sampled("a")
    found, _ = figure(tmp_path, Judged(1.0, 1.0), 2, collector, ("evaluate.blank_images=true",))
    assert "blank" not in found.extra and len(collector.asked) == 1


def test_a_picture_on_disk_is_blanked_in_its_upright_size(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    Image.new("RGB", (8, 4)).save(tmp_path / "a.jpg", exif=exif)
    assert blanked(Prompt(messages=[user_message("x", tmp_path / "a.jpg")])).images[0].size == (4, 8)


def test_prompts_are_shown_changed_and_judged_as_they_were_posed(tmp_path):
    def shown(prompt):
        return Prompt(id=prompt.id, messages=[user_message(f"{prompt.text} good")])

    config, judge, collector = runs.toy_config(tmp_path, overrides=("evaluate.num_prompts=2",)), Twice((1.0, 0.0)), Sampled("a")
    found, _ = Evaluator(runs.setup(config, {"toy/colour": Letters()}), collector, judge, shown=shown)("toy/colour")
    assert [p.text for p in collector.asked[0][0]] == ["x good", "x good"]
    assert [(c.answer, c.rollout.prompt.text) for c in judge.asked[0]] == [("3", "x"), ("6", "x")]
    assert found.extra["answers"] == 3.0


def test_entries_of_one_task_have_their_own_figures(tmp_path, monkeypatch):
    registry = plugins.registry()
    spec = replace(registry.get("tasks", "toy/colour"), metric="toy/letters")
    get = type(registry).get
    monkeypatch.setattr(type(registry), "get", lambda self, kind, id: spec if kind == "tasks" else get(self, kind, id))
    tasks = [
        {"id": "toy/colour", "name": "plain", "max_tokens": 3},
        {"id": "toy/colour", "name": "told", "prompt_template": "{text} think", "verifiers": {"toy/exact": [0.0, 1.0]}},
    ]
    config = runs.toy_config(tmp_path, tasks=tasks, overrides=("evaluate.num_prompts=2",))
    collector, judge = Sampled("a"), Judged(1.0, 0.0)
    evaluator = Evaluator(runs.setup(config, {"plain": Letters(), "told": Letters()}), collector, judge)
    assert [evaluator(label)[0].task for label in ("plain", "told")] == ["plain", "told"]
    assert [verifier for verifier, _ in judge.asked] == ["toy/letters", "toy/exact"], "the task's, and the one that replaced it"
    (plain, first), (told, second) = collector.asked
    assert (first.max_tokens, second.max_tokens) == (3, 6), "its own, or generate.max_tokens"
    assert [p.id for p in plain] == [p.id for p in told], "the same prompts"
    assert ({p.text for p in plain}, {p.text for p in told}) == ({"x"}, {"x think"})
    assert {p.task for p in told} == {"told"} and first.seed != second.seed


# -- mmrl eval ----------------------------------------------------------------------------------------------------------

FIGURE = Evaluation(
    task="t",
    split="test",
    metric="accuracy",
    value=0.5,
    low=0.1,
    high=0.9,
    n=2,
    extra={
        "base": 0.25,
        "truncated_share": 0.0,
        "failed": 2.0,
        "pass@1": 0.5,
        "pass@2": 0.625,
        "majority@2": 0.75,
        "blank": 0.125,
    },
    items=(PromptResult(id="", value=0.0, values=(), answers=()),) * 3,
)
RUN_FILE = 'name = "x"\npolicy.model = "tiny:qwen2_5_vl"\ntasks = [{id = "toy/colour"}]\nstages = [{kind = "sft", steps = 1}]\n'


@pytest.fixture
def evaluated(tmp_path, monkeypatch):
    """Runs `mmrl eval` in a folder with a run file, and keeps what was to be evaluated."""
    from mmrl.train import start

    asked = []
    monkeypatch.setattr(start, "evaluate_only", lambda *arguments: asked.append(arguments) or [FIGURE])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.toml").write_text(RUN_FILE)

    def call(*arguments):
        asked.clear()
        return CliRunner().invoke(main, ["eval", *arguments]), asked

    return call


def test_eval_asks_as_it_is_told(evaluated):
    done, asked = evaluated("x.toml", "--num-samples", "2", "--temperature", "0.7", "-n", "4")
    settings, folder = asked[0][0].evaluate, asked[0][1]
    assert (settings.num_samples, settings.temperature, settings.num_prompts, folder) == (2, 0.7, 4, None)
    assert done.stdout.splitlines() == [
        "tiny:qwen2_5_vl, as the run file names it",
        "answers to each prompt: 2, sampled at temperature 0.7",
        "t  test  accuracy 0.500 (0.100 to 0.900), n=2",
        "  4 prompts were requested, and the split has 3",
        "  pass@1 0.500  pass@2 0.625  majority@2 0.750",
        "  base 0.250",
        "  truncated_share 0.000",
        "  failed 2.000",
        "  blank 0.125 (with every image blanked)",
    ]
    assert "sampled" not in evaluated("x.toml", "-n", "3")[0].stdout


def test_eval_says_that_whole_sets_were_drawn(evaluated, monkeypatch):
    from mmrl.train import start

    figure = replace(FIGURE, items=tuple(replace(item, set=0) for item in FIGURE.items))
    monkeypatch.setattr(start, "evaluate_only", lambda *_: [figure])
    assert "  4 prompts were requested, and whole sets with 3 were drawn" in evaluated("x.toml", "-n", "4")[0].stdout.splitlines()


def test_an_unknown_interval_is_called_that(evaluated, monkeypatch):
    from mmrl.train import start

    unknown = replace(FIGURE, metric="interop/return", low=-math.inf, high=math.inf)
    monkeypatch.setattr(start, "evaluate_only", lambda *_: [unknown])
    assert "t  test  interop/return 0.500 (interval unknown), n=2" in evaluated("x.toml")[0].stdout
    figure = json.loads(evaluated("x.toml", "--json")[0].stdout, parse_constant=pytest.fail)["t"]
    assert (figure["low"], figure["value"]) == (None, 0.5)


def test_eval_prints_steered_answers_of_several_tasks(evaluated, monkeypatch):
    """Their intervals are not those of tasks that act, which have a table."""
    from mmrl.train import start

    measured = {f"{way}/{name}": 1.5 for way in ("steered", "unsteered") for name in ("entropy", "peak", "tokens")}
    both = [replace(FIGURE, task=task, extra={"steered": 0.75, **measured}, intervals={"steered": (0.5, 1.0)}) for task in "ab"]
    monkeypatch.setattr(start, "evaluate_only", lambda *_: both)
    done, _ = evaluated("x.toml", "--steer")
    assert done.exit_code == 0 and done.stdout.count("0.750 (0.500 to 1.000)") == 2, done
    assert [line.split()[0] for line in done.stdout.splitlines() if line.startswith(("a ", "b "))] == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (
            ("--checkpoint", "best"),
            "--checkpoint best needs a run folder, and x.toml is a run file: leave it out, or give runs/NAME; "
            "--set policy.model=runs/NAME/checkpoints/STEP/policy evaluates a checkpoint on this file's tasks",
        ),
        (("--num-samples", "4"), "samples = 4 greedy answers would be the same: set temperature, such as 1.0"),
        (("--num-samples", "0"), "0 is not in the range x>=1"),
        (("--temperature", "-1"), "-1.0 is not in the range x>=0"),
    ],
)
def test_eval_refuses(evaluated, arguments, told):
    done, asked = evaluated("x.toml", *arguments)
    assert done.exit_code == 2 and done.stderr.startswith("mmrl: ") and told in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and not asked


def test_eval_refuses_a_model_that_would_go_unread(evaluated, tmp_path):
    """The weights of a checkpoint are whole; adapters need the model that they were trained on."""
    from mmrl.config.load import to_dict
    from mmrl.run_folder.writer import RunFolder

    config = runs.toy_config(tmp_path)
    folder = RunFolder.create(tmp_path / "runs" / "x", to_dict(config), 0)
    folder.checkpoint_dir(2).mkdir()
    other = "tiny:qwen3_vl:hidden=64"
    done, asked = evaluated(str(folder.path), "--checkpoint", "2", "--set", f"policy.model={other}")
    assert done.exit_code == 2 and not asked
    assert done.stderr == (
        f"mmrl: policy.model = {other!r} has no effect, since the checkpoint of step 2 has all weights: leave it out, or "
        f"evaluate that model: mmrl eval {folder.path}/config.toml --set policy.model={other}\n"
    )
    for fitting in (f"policy.model={config.policy.model}", f"policy={{model = '{other}', lora = {{}}}}"):
        done, asked = evaluated(str(folder.path), "--checkpoint", "2", "--set", fitting)
        assert asked and asked[0][2] == "2", done.stderr


def test_eval_reads_a_checkpoints_state_once(evaluated, tmp_path, monkeypatch):
    from mmrl.config.load import to_dict
    from mmrl.run_folder.writer import RunFolder
    from mmrl.train import checkpoint

    folder = RunFolder.create(tmp_path / "runs" / "x", to_dict(runs.toy_config(tmp_path)), 0)
    for step in (2, 4):
        folder.checkpoint_dir(step).mkdir()
    read, at = [], {"step": 4, "evaluated_step": 4}
    for best, expected in ((2, (folder.path, "2")), (0, (None, "None"))):
        monkeypatch.setattr(checkpoint, "read_state", lambda path, best=best: read.append(path.name) or {"best_step": best, **at})
        read.clear()
        _, asked = evaluated(str(folder.path))
        assert asked[0][1:] == expected and read == ["step-000004"]
