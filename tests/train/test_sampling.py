"""Which completions a step trains on. What the policy answers is written in the test, `REWARD` or `REWARD:TOKENS`, and is worth
what it says; `x` is a completion whose verifier fails, `RIGHT/FORMAT` one that is judged by two verifiers."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from mmrl import SamplingRule, Task
from mmrl.api.episodes import Conversation
from mmrl.api.errors import PluginError, UserError
from mmrl.api.media.clips import Clip
from mmrl.api.seeds import derive
from mmrl.api.types import Prompt, Score, Status, Turn, user_message
from mmrl.compute import ranks
from mmrl.config.sections import RlStage
from mmrl.judge import weighted_score
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.metrics import StepTimer
from mmrl.train.position import StepIndex
from mmrl.train.sampling import rules
from mmrl.train.sampling.dynamic_sampling import DynamicSampling
from mmrl.train.sampling.groups import outcomes
from mmrl.train.sampling.hints import HINT
from mmrl.train.sampling.numbers import step_load
from mmrl.train.sampling.oversampling import Oversampling
from mmrl.train.sampling.prompts import append_text
from mmrl.train.sampling.sampler import Sampler, collect_groups
from mmrl.train.sampling.source import EncodedPrompt, Prompts, PromptSource


class Numbers(Task):
    """Its gold completion is the prompt's answer; a prompt `p` is rephrased as `q`."""

    def gold(self, prompt):
        return prompt.answer

    def rephrase(self, prompt):
        return replace(prompt, messages=[user_message(prompt.text.replace("p", "q"))], task="another's")


LOST = "lost"
SEED = derive(0, "sample", 0)
SEEDS = [SEED, *(derive(SEED, call) for call in range(1, 9))]
"""Of the step's first completions, and of the later ones."""


def encode(prompt):
    return SimpleNamespace(ids=torch.tensor(list(prompt.text.encode())))


def rollout(prompt, inputs, text, logprob=-1.0, reward=0.0):
    """`LOST` is the text of an episode whose environment failed."""
    status = Status.ENVIRONMENT_ERROR if text == LOST else Status.FINISHED
    length = int(text.partition(":")[2] or 2)
    turn = Turn(
        observed_ids=tuple(inputs.ids.tolist()), token_ids=(7,) * length, logprobs=(logprob,) * length, text=text, reward=reward
    )
    return Conversation(prompt=prompt, group=99, turns=(turn,), status=status, inputs=inputs)


class Collector:
    """Answers a prompt as the script has it, by its text, and `~` where its video is shuffled; keeps what it was asked."""

    reductions: dict[str, str] = {}

    def __init__(self, script, rewards=()):
        self.script, self.calls, self.rewards = script, [], dict(rewards)

    def collect(self, prompts, inputs, size, sampling, version=0, numbers=()):
        self.calls.append(([p.text for p in prompts], size, sampling, version))
        named = [p.text + "~" * any(v.shuffled is not None for v in p.videos) for p in prompts]
        answers = [(p, i, t) for p, i, n in zip(prompts, inputs, named, strict=True) for t in self.script[n][:size]]
        assert len(answers) == len(prompts) * size
        return [rollout(p, i, text, reward=self.rewards.get(text, 0.0)) for p, i, text in answers]

    def encode(self, prompts):
        return [encode(prompt) for prompt in prompts]

    def wake_up(self):
        pass

    def metrics(self):
        return {}

    def demonstrate(self, prompts, inputs, completions):
        return [rollout(p, i, text, math.nan) for p, i, text in zip(prompts, inputs, completions, strict=True)]


class Judge:
    def __init__(self):
        self.asked = []

    def score(self, cases, weights):
        self.asked += [(c.completion, dict(w)) for c, w in zip(cases, weights, strict=True)]
        return [weighted_score(w, self.verdicts(c.completion)) for c, w in zip(cases, weights, strict=True)]

    @staticmethod
    def verdicts(text):
        right, _, form = text.partition(":")[0].partition("/")
        return {
            "right": Score(None, {}, "out") if right == "x" else Score(float(right)),
            "format": Score(None, {}, "out") if form == "x" else Score(float(form or 0)),
        }


class Step:
    """A sampler and what was asked of it, on prompts p0, p1, ... of the task `a`, or of the tasks that are named. It is its own
    source of prompts."""

    def __init__(
        self,
        script,
        tasks=(),
        answer="1",
        limits=None,
        sizes=None,
        weights=None,
        environment=(),
        task=None,
        version=0,
        films="",
        **stage,
    ):
        """films: the tasks whose prompts show a video."""
        self.takes, self.tasks, self.answer, self.films = [], tasks, answer, films
        limits, sizes = limits or {}, sizes or {}
        self.stage = RlStage(kind="rl", **{"steps": 1, "prompts_per_step": 2, "group_size": 2, **stage})
        self.collector, self.judge, self.at = Collector(script, environment), Judge(), StepIndex(0, 0, version)
        run = SimpleNamespace(
            config=SimpleNamespace(seed=0),
            tasks={t: task or Numbers() for t in "ab"},
            setup=SimpleNamespace(
                entries={t: SimpleNamespace(group_size=sizes.get(t)) for t in "ab"},
                weights={t: {v: (w, w) for v, w in (weights or {"right": 1.0}).items()} for t in "ab"},
            ),
            collector=self.collector,
            judge=self.judge,
            sampling=lambda task, seed: SamplingParams(max_tokens=limits.get(task, 20), temperature=1.0, seed=seed),
        )
        self.rules = rules.rules_of(self.stage)
        self.sampler = Sampler(run, self.stage, self, self.rules)

    def settle(self):
        pass

    def metrics(self):
        return {}

    def upcoming(self, n):
        return Prompts(self, n)

    def read(self, n, at, clock):
        assert at is self.at
        with clock("process"):
            return self.take(n)

    def take(self, n):
        first = sum(self.takes)
        self.takes.append(n)
        numbers = range(first, first + n)
        asked = [(i, self.tasks[i] if self.tasks else "a") for i in numbers]
        shown = [[Clip(path="film.mp4")] if task in self.films else [] for _, task in asked]
        prompts = [
            Prompt(id=f"p{i}", task=task, messages=[user_message(f"p{i}", *films)], answer=self.answer)
            for (i, task), films in zip(asked, shown, strict=True)
        ]
        return [EncodedPrompt(("place", i), p, encode(p)) for i, p in zip(numbers, prompts, strict=True)]

    def __call__(self):
        self.found = self.sampler(self.upcoming(self.sampler.prompts), self.at)
        return self.found

    def neutral(self):
        """Of each rollout, whether its advantage is set to 0."""
        advantages = torch.ones(len(self.found.rollouts))
        for rule in self.rules:
            rule.credit(self.found.groups, advantages)
        return (advantages == 0).tolist()


def script(*groups, **others):
    """p0, p1, ... and what stands under other names: blanks between the answers."""
    return {f"p{i}": g.split() for i, g in enumerate(groups)} | {k: v.split() for k, v in others.items()}


def names(groups):
    return [g.prompt.text for g in groups]


def values(group):
    return [s.value for s in group.scores]


def spent(found):
    """What was sampled besides the groups of the step's prompts."""
    return found.everything[len(found.sampled) :]


def contrast(**options):
    return [{"id": "video/temporal-contrast", "options": options}]


# -- videos whose order matters -----------------------------------------------------------------------------------------


TIMED = {
    "p0": ["1", "0", "0.05", "1"],  # half of it, and with shuffled frames a tenth
    "p0~": ["0.1", "0.1"],
    "p1": ["1", "0", "0", "0"],  # a quarter, and shuffled as well as that over 0.8
    "p1~": ["0.3125", "0.3125"],
    "p2": ["1", "0", "0", "0"],  # a quarter, and shuffled more
    "p2~": ["0", "0.64"],
    "p3": ["1", "1", "0", "0"],  # no video
}


def test_right_answers_are_paid_where_the_order_of_frames_matters():
    """By hand, after Video-R1: 0.3 for each answer above 0.1 where the mean is at least 0.8 of that with shuffled frames."""
    step = Step(TIMED, tasks="aaab", films="a", prompts_per_step=4, group_size=4, rules=contrast())
    found = step()
    assert [values(g) for g in found.groups] == [
        pytest.approx([1.3, 0, 0.05, 1.3]),
        pytest.approx([1.3, 0, 0, 0]),
        pytest.approx([1, 0, 0, 0]),
        [1, 1, 0, 0],
    ]
    bonuses = [[s.parts.get("temporal") for s in g.scores] for g in found.groups]
    assert bonuses == [[0.3, 0, 0, 0.3], [0.3, 0, 0, 0], [0, 0, 0, 0], [None] * 4]
    assert [(c[0], c[1]) for c in step.collector.calls] == [(["p0", "p1", "p2", "p3"], 4), (["p0", "p1", "p2"], 2)]
    assert found.counts == pytest.approx(
        {"temporal/ordered": (2.05 + 1 + 1) / 12, "temporal/shuffled": (0.2 + 0.625 + 0.64) / 6, "temporal/paid_share": 2 / 3}
    )
    assert len(found.rollouts) == 16 and [names(spent(found))] == [["p0", "p1", "p2"]], "shuffled ones are not trained on"
    assert all(r.prompt.videos[0].shuffled is None for g in found.groups[:3] for r in g.rollouts)
    mixed = {v.shuffled for g in spent(found) for r in g.rollouts for v in r.prompt.videos}
    assert None not in mixed and len(mixed) == 3, "each prompt has an order of its own"


def test_a_group_without_a_right_answer_is_not_paid():
    """Its mean is as large as with shuffled frames: 0."""
    found = Step(
        {"p0": ["0", "0.1"], "p0~": ["0"], "p1": ["1", "0"], "p1~": ["0"]}, films="a", prompts_per_step=2, rules=contrast()
    )()
    assert [values(g) for g in found.groups] == [[0.0, 0.1], [1.3, 0.0]] and found.counts["temporal/paid_share"] == 0.5


def test_one_verifier_may_tell_what_is_right():
    answers = {"p0": ["1/0", "0/1"], "p0~": ["0/1"]}
    weights = {"right": 1.0, "format": 1.0}
    keys = {"films": "a", "prompts_per_step": 1, "weights": weights}
    by_reward = Step(answers, rules=contrast(ratio=1.0), **keys)()
    by_verifier = Step(answers, rules=contrast(ratio=1.0, verifier="right"), **keys)()
    assert values(by_reward.groups[0]) == pytest.approx([1.3, 1.3]) and values(by_verifier.groups[0]) == pytest.approx([1.3, 1.0])


def test_scores_that_failed_are_neither_right_nor_wrong():
    found = Step({"p0": ["1", "x"], "p0~": ["x"]}, films="a", prompts_per_step=1, rules=contrast())()
    assert values(found.groups[0]) == [1.0, None] and "temporal/paid_share" not in found.counts


# -- lengths that are paid ----------------------------------------------------------------------------------------------


def measured(*groups, **keys):
    """Groups of four, `RIGHT:TOKENS`, and what length paid each answer; None where it had no say."""
    step = Step(script(*groups), group_size=4, prompts_per_step=len(groups), **{"length": {}} | keys)
    return [[s.parts.get("length") for s in g.scores] for g in step().groups]


def test_right_answers_of_some_length_are_paid_where_two_are_right():
    """By hand, after Video-R1: 0.2 for 320 to 512 tokens, to answers above 0.1, of which there are at least two."""
    groups = ["0:400 0:320 0.1:400 0:512", "1:400 0:400 0.1:320 x:400", "1:319 1:320 0:400 0.1:400", "1:512 0.2:513 0:320 x:400"]
    assert measured(*groups) == [[0] * 4, [0, 0, 0, None], [0, 0.2, 0, 0], [0.2, 0, 0, None]]
    assert measured("1:320 1:512 1:319 1:513") == [[0.2, 0.2, 0, 0]]
    assert measured("1:2 1:3 0.5:4 0.4:3", length={"bonus": 0.5, "min_tokens": 3, "max_tokens": 4, "correct_above": 0.4}) == [
        [0, 0.5, 0.5, 0]
    ]


def test_an_answer_that_an_environment_pays_for_is_right_too():
    long = {"min_tokens": 2, "max_tokens": 9}
    paid = Step(script("0:5 0:5 0:50", "0"), group_size=3, prompts_per_step=1, environment={"0:5": 1.0}, length=long)
    assert paid().groups[0].rewards == [1.2, 1.2, 0.0]
    judged = Step(
        script("1:5 1:5 0:9"), group_size=3, prompts_per_step=1, environment={"0:9": 1.0}, length=long | {"verifier": "right"}
    )
    assert judged().groups[0].rewards == [1.2, 1.2, 1.0], "a verifier decides alone"


def test_a_length_that_is_paid_is_part_of_the_reward_and_a_failed_score_stays_failed():
    found = Step(script("1:400 1:2 x:400 0.5:400"), group_size=4, prompts_per_step=1, length={})().groups[0]
    assert values(found) == pytest.approx([1.2, 1, None, 0.7], nan_ok=False) and found.unaided == pytest.approx([1.2, 1, 0.7])


def test_lengths_are_paid_as_a_slow_reference_has_it():
    draw = random.Random(5)
    for _ in range(60):
        rights = [draw.choice(["0", "0.1", "0.2", "1", "x"]) for _ in range(4)]
        tokens = [draw.choice([319, 320, 321, 511, 512, 513]) for _ in range(4)]
        paid = []
        for one, count in zip(rights, tokens, strict=True):
            correct = [r for r in rights if r not in ("x", "0", "0.1")]
            paid.append(0.2 if one in correct and len(correct) > 1 and not (count < 320 or count > 512) else 0.0)
        expected = [None if r == "x" else p for r, p in zip(rights, paid, strict=True)]
        found = measured(" ".join(f"{r}:{n}" for r, n in zip(rights, tokens, strict=True)))[0]
        assert [p or 0.0 for p in expected] == [p or 0.0 for p in found]


def test_one_verifier_may_tell_which_lengths_are_paid():
    """A form that is right adds to the reward; it makes no answer right."""
    answers, weights = ["1/0:400 0/1:400 1/1:400 0/0:400"], {"right": 1.0, "format": 0.5}
    assert measured(*answers, weights=weights) == [[0.2, 0.2, 0.2, 0]]
    assert measured(*answers, weights=weights, length={"verifier": "right"}) == [[0.2, 0, 0.2, 0]]
    assert measured(*answers, weights=weights, length={"verifier": "format"}) == [[0, 0.2, 0.2, 0]]
    assert measured(*answers, weights=weights, length={"verifier": "another task's"}) == [[None] * 4]


def test_shuffled_answers_have_no_length_that_is_paid():
    step = Step({"p0": ["1:400", "1:400"], "p0~": ["1:400"]}, films="a", prompts_per_step=1, rules=contrast(), length={})
    found = step()
    assert values(found.groups[0]) == pytest.approx([1.5, 1.5]) and [values(g) for g in spent(found)] == [[1.0]]


# -- groups that are replaced and left out ------------------------------------------------------------------------------


def test_without_rules_everything_is_trained_on_and_nothing_counted():
    step = Step(script("0 0", "1 0"))
    found = step()
    assert step.takes == [2] and names(found.groups) == names(found.sampled) == ["p0", "p1"]
    assert found.counts == {} and not found.idle
    assert [r.group for r in found.rollouts] == [0, 0, 1, 1] and [s.value for s in found.scores] == [0.0, 0.0, 1.0, 0.0]


def test_dynamic_sampling_replaces_groups_without_spread_until_there_are_enough():
    step = Step(script("0 0", "1 0", "1 1", "0 0.5", "1 0"), dynamic_sampling=5, version=41)
    found = step()
    assert step.takes == [2, 1, 1], "as many as are missing each time, and no more"
    assert names(found.groups) == ["p1", "p3"] and names(found.sampled) == ["p0", "p1", "p2", "p3"]
    assert [r.group for r in found.rollouts] == [0, 0, 1, 1], "numbered anew, as the packer needs it"
    assert found.counts == {"sampling/groups": 4.0, "sampling/filtered_share": 0.5} and not found.idle
    assert [(c[2].seed, c[3]) for c in step.collector.calls] == [(seed, 41) for seed in SEEDS[:3]], "other noise in each round"


def test_dynamic_sampling_ends_after_its_rounds_with_what_there_is():
    step = Step(script("0 0", "1 0", "1 1", "0 1"), dynamic_sampling=1)
    found = step()
    assert step.takes == [2, 1] and names(found.groups) == ["p1"] and not found.idle
    assert found.counts == {"sampling/groups": 3.0, "sampling/filtered_share": pytest.approx(2 / 3)}


def test_a_step_that_is_left_with_nothing_is_idle():
    step = Step(script("0 0", "1 1", "x x", "1 x"), dynamic_sampling=1)
    found = step()
    assert found.idle and step.takes == [2, 2]
    assert names(found.groups) == names(found.sampled) == ["p0", "p1", "p2", "p3"], "what was sampled can still be looked at"
    assert found.counts == {"sampling/groups": 4.0, "sampling/filtered_share": 1.0}
    assert [r.group for r in found.rollouts] == [0, 0, 1, 1, 2, 2, 3, 3]


def test_an_environment_that_pays_differently_gives_spread_too():
    step = Step(
        script("0 0:3", "0 0"), environment={"0:3": 0.75}, dynamic_sampling=0, min_success_rate=0.5, success_threshold=0.75
    )
    found = step()
    assert names(found.groups) == ["p0"] and found.groups[0].rewards == [0.0, 0.75]
    assert found.groups[0].spread == 0.375 and found.sampled[1].spread == 0.0


EDGES = [
    ("0 0 0 0", 0.0),
    ("0.4999 0.5 0 0", 0.25),  # exactly at the threshold is a success
    ("1 0.5 0.25 0", 0.5),
    ("1 1 1 0", 0.75),
    ("1 1 1 1", 1.0),
    ("1 x x 0", 0.5),  # failed scores don't count
    ("1 x x x", 1.0),
    ("x x x x", 0.0),
]


@pytest.mark.parametrize(("answers", "share"), EDGES)
@pytest.mark.parametrize(("low", "high"), [(0.0, 0.75), (0.25, 1.0), (0.25, 0.75), (0.5, 0.5), (0.0, 0.0001)])
def test_the_bounds_of_the_share_of_successes_are_both_inside(answers, share, low, high):
    found = Step(script(answers), prompts_per_step=1, group_size=4, min_success_rate=low, max_success_rate=high)()
    assert found.sampled[0].successes(0.5) == share
    assert found.idle == (not low <= share <= high)
    assert found.counts == {"sampling/groups": 1.0, "sampling/filtered_share": float(found.idle)}


@pytest.mark.parametrize(("success", "share"), [(0.0, 1.0), (0.25, 0.75), (0.26, 0.5), (1.0, 0.25), (1.01, 0.0)])
def test_what_a_success_is_can_be_set(success, share):
    group = Step(script("1 0.5 0.25 0"), prompts_per_step=1, group_size=4)().groups[0]
    assert group.successes(success) == share
    for low, idle in ((share - 0.01, False), (share, False), (share + 0.01, True)):
        if 0 <= low < 1:
            step = Step(script("1 0.5 0.25 0"), prompts_per_step=1, group_size=4, success_threshold=success, min_success_rate=low)
            assert step().idle == idle


@pytest.mark.parametrize("tenths", range(11))
def test_shares_of_ten_are_compared_exactly(tenths):
    """0.1 and 0.9 of ten completions: SimpleVLA-RL's bounds."""
    answers = " ".join(["1"] * tenths + ["0"] * (10 - tenths))
    found = Step(script(answers), prompts_per_step=1, group_size=10, min_success_rate=0.1, max_success_rate=0.9)()
    assert found.idle == (tenths in (0, 10))
    if 0 < tenths < 10:
        exactly = Step(
            script(answers), prompts_per_step=1, group_size=10, min_success_rate=tenths / 10, max_success_rate=tenths / 10
        )()
        assert not exactly.idle


def test_success_rules_replace_only_with_dynamic_sampling():
    answers = script("1 1", "1 0", "0 1")
    alone, replaced = Step(answers, max_success_rate=0.5), Step(answers, max_success_rate=0.5, dynamic_sampling=1)
    assert names(alone().groups) == ["p1"] and alone.takes == [2]
    assert names(replaced().groups) == ["p1", "p2"] and replaced.takes == [2, 1]


def test_a_group_without_spread_that_passes_the_success_rules_stays_without_dynamic_sampling():
    answers = script("1 1", "0 0")
    assert names(Step(answers, min_success_rate=0.5)().groups) == ["p0"]
    assert Step(answers, min_success_rate=0.5, dynamic_sampling=1, prompts_per_step=1)().idle


def test_a_plugins_rule_chooses_before_the_built_in_ones_and_in_every_round(monkeypatch):
    class Odd(SamplingRule):
        phase, leaves_out = "select", True

        def __call__(self, groups, sample):
            return [g for g in groups if g.place[1] % 2]

        def counts(self, groups):
            return {"odd/groups": float(len(groups))}

    monkeypatch.setattr(rules, "plugin_rules", lambda stage: [Odd()])
    step = Step(script("1 0", "1 0", "1 0", "1 1", "0 1", "1 0"), dynamic_sampling=4)
    found = step()
    assert step.takes == [2, 1, 1, 1, 1] and names(found.groups) == ["p1", "p5"]
    assert found.counts == {"sampling/groups": 6.0, "sampling/filtered_share": pytest.approx(2 / 3), "odd/groups": 6.0}


def test_groups_that_a_rule_samples_again_are_in_its_order_those_of_further_prompts_too(monkeypatch):
    """A rule pairs them with what it asked for."""
    seen = []

    class Again(SamplingRule):
        phase = "select"

        def __call__(self, groups, sample):
            groups = [*sample.more(1), *groups[::-1]]
            tried = sample.again(groups, lambda g: replace(g.prompt, messages=[user_message(f"{g.prompt.text}!")]))
            seen.append(([g.number for g in tried], names(tried)))
            return groups

    monkeypatch.setattr(rules, "plugin_rules", lambda stage: [Again()])
    Step(script("1 0", "1 0", "1 0", **{f"p{i}!": "1 1" for i in range(3)}))()
    assert seen == [([2, 1, 0], ["p2!", "p1!", "p0!"])]


# -- a prompt that comes again ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rank, count", [(0, 1), (0, 2), (1, 2), (2, 3)])
def test_a_prompt_counts_how_often_all_learners_were_dealt_it_before(rank, count, monkeypatch):
    """So that an episode in a simulator is another one, and the same for any number of learners."""
    monkeypatch.setattr(ranks, "owns", lambda number: number % count == rank)
    monkeypatch.setattr(ranks, "gather_sharded", lambda work, stub: [work().get(number) for number in range(7)])
    setup = SimpleNamespace(prompts=lambda stage, label: [Prompt(id=n, messages=[user_message(n)]) for n in "xyz"])
    config = SimpleNamespace(seed=0, tasks=[], weights=lambda stage: {"a": 1.0})
    run = SimpleNamespace(config=config, setup=setup, at=SimpleNamespace(stage=0), collector=Collector({}))
    read = PromptSource(run, RlStage(kind="rl", steps=1)).read(7, StepIndex(0, 0, 0), StepTimer())
    assert [one and one.earlier for one in read] == [n // 3 if n % count == rank else None for n in range(7)]  # epoch by epoch


def test_what_is_sampled_of_equal_prompts_is_told_apart_in_all_that_a_step_samples(monkeypatch):
    """Groups of other learners count, which this one doesn't sample."""

    class Again(SamplingRule):
        phase = "select"

        def __call__(self, groups, sample):
            for n, group in enumerate(groups):
                group.place, group.is_stub = ("a", n // 3), n == 0
            sample.again(groups, lambda g: g.prompt)
            return groups

    class Further(SamplingRule):
        phase = "score"

        def __call__(self, groups, sample):
            sample.complete(groups, [g.prompt for g in groups])
            return groups

    monkeypatch.setattr(rules, "plugin_rules", lambda stage: [Further(), Again()])
    step = Step(script(*["1 0"] * 4), prompts_per_step=4)
    found = step()
    step.sampler.greedy(found.groups, step.at, StepTimer())
    asked = [(prompts, how.earlier) for prompts, _, how, _ in step.collector.calls]
    others = ["p1", "p2", "p3"]
    assert asked == [(["p0", *others], ())] * 2 + [(others, (1, 2, 0))] * 3  # again, what completes that, and greedy


# -- more prompts than are trained on -----------------------------------------------------------------------------------


def test_oversampling_keeps_the_groups_with_the_largest_spread():
    step = Step(script("0 0.2", "0 1", "0.5 0.5", "0 0.6"), oversample=2.0)
    found = step()
    assert step.takes == [4] and names(found.groups) == ["p1", "p3"]
    assert [r.group for r in found.rollouts] == [0, 0, 1, 1]
    assert found.counts == {"sampling/groups": 4.0, "sampling/filtered_share": 0.5}


def test_of_equal_spreads_the_first_sampled_are_kept():
    found = Step(script("0.5 0.5", "1 0", "0 1", "0 0"), oversample=2.0, prompts_per_step=2)()
    assert names(found.groups) == ["p1", "p2"]
    found = Step(script("0 0", "1 1", "0.5 0.5", "0 1"), oversample=1.33, prompts_per_step=3)()
    assert names(found.groups) == ["p3", "p0", "p1"]


@pytest.mark.parametrize(
    ("prompts", "factor", "sampled"), [(10, 1.1, 11), (3, 1.1, 4), (4, 1.25, 5), (7, 1.0, 7), (100, 1.07, 107)]
)
def test_oversampling_rounds_up_what_is_no_whole_number(prompts, factor, sampled):
    step = Step(script(*["1 0"] * sampled), oversample=factor, prompts_per_step=prompts)
    assert len(step().groups) == prompts and step.takes == [sampled]


def test_oversampling_and_dynamic_sampling_together_never_give_too_many_groups():
    step = Step(script("0 0", "1 0", "0 0.5", "0 0", "1 0.5", "0 0.75"), oversample=1.5, dynamic_sampling=3, prompts_per_step=3)
    found = step()
    assert step.takes == [5] and names(found.groups) == ["p1", "p2", "p4"]
    step = Step(script("0 0", "0 0", "1 0.5", "1 0", "0 0.75"), oversample=1.5, dynamic_sampling=3)
    found = step()
    assert step.takes == [3, 2] and names(found.groups) == ["p3", "p4"]
    assert found.counts == {"sampling/groups": 5.0, "sampling/filtered_share": 0.6}


def test_groups_that_a_rule_adds_are_trained_on_beside_those_that_are_wanted():
    def group(number, spread, is_added=False):
        return SimpleNamespace(number=number, spread=spread, is_added=is_added)

    own, added = [group(0, 0.0), group(1, 0.5), group(2, 0.3)], [group(3, 0.1, True), group(4, 0.0, True)]
    asked = []
    sample = SimpleNamespace(wanted=2, more=lambda count: asked.append(count) or [group(5, 0.2)])
    assert [g.number for g in Oversampling(1.5)([*own, *added], sample)] == [1, 2, 3, 4]
    assert [g.number for g in Oversampling(1.0)([*added, *own], sample)] == [0, 1, 3, 4]
    assert [g.number for g in DynamicSampling(3)([own[1], *added], sample)] == [1, 3, 5] and asked == [1]


# -- long completions ---------------------------------------------------------------------------------------------------


def test_the_reward_falls_linearly_over_the_last_share_of_each_tasks_own_limit():
    """Limit 20: the last 5 tokens; limit 8: the last 2."""
    step = Step(
        script("1:15 1:16 1:18 1:20 x:20", "0:6 0:7 0:8 1:1 1:5"),
        tasks="ab",
        limits={"a": 20, "b": 8},
        group_size=5,
        overlong_buffer=0.25,
        overlong_penalty=0.5,
    )
    found = step()
    assert values(found.groups[0]) == [1.0, pytest.approx(0.9), pytest.approx(0.7), 0.5, None]
    assert values(found.groups[1]) == [0.0, -0.25, -0.5, 1.0, 1.0]
    assert found.groups[0].scores[3].parts == {"right": 1.0, "overlong": -0.5}
    failed = found.groups[0].scores[4]
    assert failed.failed and "overlong" not in failed.parts and failed.detail == "right failed: out"


def test_the_longest_turn_of_a_conversation_is_penalised_as_the_limit_is_that_of_a_turn():
    step = Step(script("1:12 1:19"), prompts_per_step=1, overlong_buffer=0.25)
    collect = step.collector.collect
    step.collector.collect = lambda *a, **k: [
        replace(r, turns=(*r.turns, replace(r.turns[0], token_ids=(7,), logprobs=(-1.0,)))) for r in collect(*a, **k)
    ]
    assert values(step().groups[0]) == [1.0, pytest.approx(0.2)]


def test_the_penalty_decides_about_spread_and_success():
    step = Step(script("1:4 1:20"), prompts_per_step=1, overlong_buffer=0.25, dynamic_sampling=1)
    found = step()
    assert not found.idle and values(found.groups[0]) == [1.0, 0.0] and found.groups[0].successes(0.5) == 0.5


# -- tasks of their own sizes -------------------------------------------------------------------------------------------


def test_tasks_have_their_own_group_sizes_and_limits_and_their_prompts_stay_in_order():
    step = Step(
        script("0 0", "1 0 1", "0 1", "1 1 0"), tasks="abab", sizes={"b": 3}, limits={"b": 5}, prompts_per_step=4, group_size=2
    )
    found = step()
    assert names(found.groups) == ["p0", "p1", "p2", "p3"]
    assert [values(g) for g in found.groups] == [[0, 0], [1, 0, 1], [0, 1], [1, 1, 0]]
    assert [(c[0], c[1], c[2].max_tokens) for c in step.collector.calls] == [(["p0", "p2"], 2, 20), (["p1", "p3"], 3, 5)]
    assert [r.group for r in found.rollouts] == [0, 0, 1, 1, 1, 2, 2, 3, 3, 3]


def test_collected_numbers_groups_by_the_prompts_place_whatever_goes_together():
    taken = dict(enumerate(Step({}, tasks="aba").take(3)))
    collector = Collector(script("a0 a0", "b1", "a2 a2"))
    how = {"a": SamplingParams(max_tokens=3, temperature=1.0), "b": SamplingParams(max_tokens=4, temperature=1.0)}
    found = collect_groups(collector, taken, {"a": 2, "b": 1}, how, version=3)
    assert [[(r.group, r.completion, r.prompt.text) for r in g] for g in found] == [
        [(0, "a0", "p0")] * 2,
        [(1, "b1", "p1")],
        [(2, "a2", "p2")] * 2,
    ]
    assert [c[3] for c in collector.calls] == [3, 3]


# -- hints --------------------------------------------------------------------------------------------------------------

GOLD = "1 two three four"
"""Its first 1, 2 and 3 words are the hints."""


def hinted(name, words):
    return name + "\n" + HINT + " ".join(GOLD.split()[:words])  # a text part of its own, as Prompt.text has it


def with_hint(name):
    """Of a prompt whose answer is 1."""
    return name + "\n" + HINT + "1"


def hints(**extra):
    return {
        "p0": ["0", "0"],
        "p1": ["1", "0"],
        "p2": ["0", "x"],
        "p3": ["x", "x"],
        hinted("p0", 1): ["0.25", "0"],
        hinted("p0", 2): ["0.5", "0"],
        hinted("p2", 1): ["1", "0"],
    } | extra


@pytest.mark.parametrize("kind", ["guide", "ghpo"])
def test_groups_that_fail_as_a_whole_are_tried_with_longer_and_longer_hints(kind):
    step = Step(hints(), hints=kind, prompts_per_step=4, answer=GOLD)
    found = step()
    assert [c[0] for c in step.collector.calls] == [
        ["p0", "p1", "p2", "p3"],
        [hinted("p0", 1), hinted("p2", 1)],  # p1 succeeded; of p3 nothing is known, its scores failed
        [hinted("p0", 2)],  # p2 was rescued, and p0 is at the second share
    ], "the third share is needed by nobody"
    assert [c[2].seed for c in step.collector.calls] == SEEDS[:3]
    assert found.counts == {"sampling/hinted": 2.0} and step.takes == [4]
    assert [g.place[1] for g in found.groups] == [0, 1, 2, 3], "each in its place"
    assert [r.group for r in found.rollouts] == [n for n, g in enumerate(found.groups) for _ in g.rollouts]


def test_guide_adds_the_hinted_answers_as_answers_to_the_prompt_itself():
    found = Step(hints(), hints="guide", prompts_per_step=4, answer=GOLD)()
    assert [values(g) for g in found.groups] == [[0, 0, 0.5, 0], [1, 0], [0, None, 1, 0], [None, None]]
    group = found.groups[0]
    assert [r.off_policy for r in group.rollouts] == [False, False, True, True]
    plain = tuple(b"p0")
    for r in group.rollouts:
        assert r.prompt is group.prompt and r.prompt.text == "p0" and r.inputs is group.inputs
        assert r.turns[0].observed_ids == plain == tuple(r.inputs.ids.tolist()), "what the packer insists on"
        assert r.turns[0].logprobs == (-1.0, -1.0), "the sampler's, under the hint"
    assert [(g.prompt.text, values(g)) for g in spent(found) if g.rollouts] == [(hinted("p0", 1), [0.25, 0.0])]


def test_ghpo_puts_the_hinted_group_in_the_place_of_the_other():
    found = Step(hints(), hints="ghpo", prompts_per_step=4, answer=GOLD)()
    assert names(found.groups) == [hinted("p0", 2), "p1", hinted("p2", 1), "p3"]
    assert [values(g) for g in found.groups] == [[0.5, 0], [1, 0], [1, 0], [None, None]]
    for r in found.groups[0].rollouts:
        assert r.prompt.text == hinted("p0", 2) and not r.off_policy
        assert r.turns[0].observed_ids == tuple(hinted("p0", 2).encode()) == tuple(r.inputs.ids.tolist())
    besides = {(g.prompt.text, tuple(values(g))) for g in spent(found)}
    assert besides == {(hinted("p0", 1), (0.25, 0.0)), ("p0", (0.0, 0.0)), ("p2", (0.0, None))}, (
        "their failed scores are failures too"
    )


def test_shares_are_tried_in_the_order_in_which_they_stand_and_all_may_fail():
    answers = {"p0": ["0", "0"]} | {hinted("p0", n): ["0", "0"] for n in (1, 3, 4)}
    step = Step(answers, hints="ghpo", prompts_per_step=1, answer=GOLD, hint_shares=[0.75, 0.25, 1.0])
    found = step()
    assert [c[0] for c in step.collector.calls] == [["p0"], [hinted("p0", 3)], [hinted("p0", 1)], [hinted("p0", 4)]]
    assert found.counts == {"sampling/hinted": 0.0} and names(found.groups) == ["p0"] and values(found.groups[0]) == [0, 0]
    assert len(spent(found)) == 3


def test_a_rescued_group_is_kept_by_the_rules_and_a_lost_one_replaced():
    answers = hints() | {"p1": ["0", "0"], "p2": ["1", "0"]} | {hinted("p1", n): ["0", "0"] for n in (1, 2, 3)}
    step = Step(answers, hints="ghpo", answer=GOLD, dynamic_sampling=2)
    found = step()
    assert step.takes == [2, 1] and names(found.groups) == [hinted("p0", 2), "p2"]
    assert found.counts == {"sampling/groups": 3.0, "sampling/filtered_share": pytest.approx(1 / 3), "sampling/hinted": 1.0}


@pytest.mark.parametrize("kind", ["guide", "ghpo"])
def test_the_source_is_told_that_a_prompt_failed_which_only_a_hint_answered(kind):
    found = Step(hints(), hints=kind, prompts_per_step=4, answer=GOLD)()
    told = outcomes(found.sampled, 0.5)
    assert [o.rewards for o in told] == [(0.0, 0.0), (1.0, 0.0), (0.0,), ()]
    assert [o.failed for o in told] == [True, False, True, False], "nothing is known of the last one"
    assert [o.spread for o in told] == [True, True, True, False], "the others taught something"


def test_a_hint_goes_to_the_end_of_the_last_user_message():
    talk = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    added = append_text(Prompt(messages=[*talk, {"role": "user", "content": "c"}]), "!")
    assert [m["content"] for m in added.messages] == ["s", "a", "b", "c!"]
    assert [m["content"] for m in append_text(Prompt(messages=talk), "!").messages] == ["s", "a!", "b"]
    shown = user_message("text", "picture.png")
    parts = append_text(Prompt(messages=[shown]), "!").messages[0]["content"]
    assert parts == [*shown["content"], {"type": "text", "text": "!"}] and len(shown["content"]) == 2
    with pytest.raises(PluginError, match="prompt 'x' has no user message"):
        append_text(Prompt(id="x", messages=talk[:1]), "!")


# -- the gold completion ------------------------------------------------------------------------------------------------


def test_when_failed_adds_the_gold_completion_to_groups_without_a_success():
    step = Step(script("0 0.25", "1 0", "x x"), prompts_per_step=3, ground_truth="when-failed")
    found = step()
    assert [values(g) for g in found.groups] == [[0, 0.25, 1], [1, 0], [None, None, 1]]
    gold = found.groups[0].rollouts[-1]
    assert gold.is_demonstration and gold.completion == "1" and not gold.off_policy
    assert [r.is_demonstration for r in found.rollouts] == [False, False, True, False, False, False, False, True]
    assert gold.prompt is found.groups[0].prompt and gold.inputs is found.groups[0].inputs
    assert [r.group for r in found.rollouts] == [0, 0, 0, 1, 1, 2, 2, 2]
    assert step.neutral() == [False] * 8


def test_always_adds_it_and_makes_it_neutral_where_a_sampled_answer_is_as_good():
    step = Step(script("0 0.5 0.9", "1 0 0.5", "0 1 x"), answer="0.9", prompts_per_step=3, group_size=3, ground_truth="always")
    found = step()
    assert values(found.groups[0]) == [0, 0.5, 0.9, pytest.approx(1.4 / 3)]  # exactly as good
    assert values(found.groups[1]) == [1, 0, 0.5, 0.5]  # better
    assert values(found.groups[2]) == [0, 1, None, 0.5], "the mean of what could be scored"
    assert [k for k, n in enumerate(step.neutral()) if n] == [3, 7, 11]
    step = Step(script("0 0.5 0.89", "0 0 0"), answer="0.9", group_size=3, ground_truth="always")
    found = step()
    assert [values(g)[-1] for g in found.groups] == [0.9, 0.9] and not any(step.neutral())


def test_what_an_environment_pays_for_the_gold_completion_counts_as_for_any_other():
    for paid, neutral, worth in ((1.0, False, 1.25), (0.5, True, 0.625)):
        step = Step(script("0 0"), answer="0.25", ground_truth="always", prompts_per_step=1)
        collect, shown = step.collector.collect, step.collector.demonstrate
        step.collector.collect = lambda *a, of=collect, **k: [
            earning(r, e) for r, e in zip(of(*a, **k), (1.0, 0.25), strict=True)
        ]
        step.collector.demonstrate = lambda *a, of=shown, paid=paid: [earning(r, paid) for r in of(*a)]
        assert step().groups[0].rewards == [1.0, 0.25, worth] and step.neutral() == [False, False, neutral]


def earning(rollout, reward):
    return replace(rollout, turns=(replace(rollout.turns[0], reward=reward),))


def test_some_verifiers_dont_reward_the_gold_completion():
    answers = script("0/1 0/0", "1/1 0/1")
    weights = {"right": 1.0, "format": 0.5}
    step = Step(answers, answer="1/x", weights=weights, ground_truth="always", ground_truth_without=["format"])
    found = step()
    assert [values(g) for g in found.groups] == [[0.5, 0, 1], [1.5, 0.5, 1.0]], "1.5 is as good as 1: the mean"
    assert step.neutral() == [False, False, False, False, False, True]
    assert [g.scores[-1].parts for g in found.groups] == [{"right": 1.0}] * 2, "for algorithms that look at each part"
    assert step.judge.asked[-2:] == [("1/x", {"right": 1.0, "format": 0.0})] * 2, "a verifier of weight 0 can't make it fail"
    with_it = Step(answers, answer="1/1", weights=weights, ground_truth="always")()
    assert [values(g)[-1] for g in with_it.groups] == [1.5, 1.0]


def test_a_gold_completion_whose_score_fails_leaves_the_update():
    step = Step(script("0 0", "1 0"), answer="x", ground_truth="always")
    found = step()
    assert [values(g) for g in found.groups] == [[0, 0, None], [1, 0, None]] and not any(step.neutral())


def test_the_gold_completion_comes_after_hints_and_after_the_selection():
    answers = {"p0": ["0", "0"], "p1": ["0", "0.25"], with_hint("p0"): ["1", "0"], with_hint("p1"): ["0", "0"]}
    step = Step(answers, hints="ghpo", ground_truth="when-failed", hint_shares=[1.0])
    found = step()
    assert names(found.groups) == [with_hint("p0"), "p1"] and [values(g) for g in found.groups] == [[1, 0], [0, 0.25, 1]]
    assert step.judge.asked[-1:] == [("1", {"right": 1.0})], "asked for the one that no hint helped"
    step = Step(script("0 0", "0.25 0", "1 0"), dynamic_sampling=1, ground_truth="when-failed", prompts_per_step=2)
    found = step()
    assert names(found.groups) == ["p1", "p2"] and [values(g) for g in found.groups] == [[0.25, 0, 1], [1, 0]]
    assert values(found.sampled[0]) == [0, 0], "nothing is paid for a group that is left out"


def test_the_source_hears_nothing_of_the_gold_completion():
    found = Step(script("0 0", "1 0"), ground_truth="always")()
    told = outcomes(found.sampled, 0.5)
    assert [o.rewards for o in told] == [(0.0, 0.0), (1.0, 0.0)] and [o.failed for o in told] == [True, False]


# -- without labels -----------------------------------------------------------------------------------------------------


def test_majority_rewards_what_most_say_and_asks_no_verifier():
    step = Step({"p0": ["a", " A ", "b", ""], "p1": ["b", "a", "", " "]}, labels="majority", group_size=4)
    found = step()
    assert [values(g) for g in found.groups] == [[1, 1, 0, 0], [1, 0, 0, 0]], "of equals the first; blanks never win"
    assert found.groups[0].scores[0].parts == {"majority": 1.0} and step.judge.asked == []
    silent = Step({"p0": ["", " ", "\n", ""]}, labels="majority", prompts_per_step=1, group_size=4)()
    assert values(silent.groups[0]) == [0, 0, 0, 0]


def test_ttrv_rewards_frequency_less_entropy():
    step = Step({"p0": ["a", "a", "b", ""], "p1": ["a", "a", "a", "a"]}, labels="ttrv", group_size=4)
    found = step()
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)) / math.log(2)
    assert values(found.groups[0]) == pytest.approx([n / 4 - 0.75 * entropy for n in (2, 2, 1, 0)])
    assert values(found.groups[1]) == [1, 1, 1, 1] and found.groups[0].scores[2].parts == {"ttrv": values(found.groups[0])[2]}


def test_voters_vote_and_are_not_trained_on():
    step = Step({"p0": ["a", "a", "b", ""]}, labels="ttrv", group_size=4, prompts_per_step=1, voters=1.5)
    (group,) = step().groups
    entropy = -(4 / 5 * math.log(4 / 5) + 1 / 5 * math.log(1 / 5)) / math.log(2)  # two more for a
    assert values(group) == pytest.approx([n / 6 - 0.75 * entropy for n in (4, 4, 1, 0)]) and len(group.rollouts) == 4
    assert step.found.counts == {"votes/agreement": pytest.approx(4 / 6), "votes/voters": 6.0}
    split = Step({"p0": ["b", "a", "a", "b", "b"]}, labels="majority", group_size=5, prompts_per_step=1, voters=1.2)()
    assert values(split.groups[0]) == [1, 0, 0, 1, 1] and len(split.rollouts) == 5
    with pytest.raises(ValueError, match="vote only with labels"):
        Step({"p0": ["a"]}, voters=2.0)


def co_reward_step(**stage):
    """Prompt -> its answers, and those to the same in other words."""
    answers = {
        "p0": ["a", "b", "b"],
        "q0": ["a", "a", "b"],
        "p1": ["c", "", " "],
        "q1": ["", "", ""],
        "p2": ["a", "a", "a"],
        "q2": ["a", "a", "a"],
        "p3": ["a", "b", "a"],
        "q3": ["b", "a", "c"],
    }
    return Step(answers, labels="co-reward", group_size=3, **stage)


def test_co_reward_rewards_each_by_the_others_majority_and_trains_both():
    """prompts_per_step counts prompts; those in other words come on top."""
    step = co_reward_step()
    found = step()
    assert step.takes == [2] and names(found.groups) == names(found.sampled) == ["p0", "p1", "q0", "q1"]
    assert [values(g) for g in found.groups] == [[1, 0, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0]]
    assert [r.group for r in found.rollouts] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3 and step.judge.asked == []
    other = found.groups[2]
    assert other.place == ("place", 0) and other.prompt.task == "a", "whatever the task wrote there"
    assert all(r.prompt.text == "q0" and r.turns[0].observed_ids == tuple(b"q0") for r in other.rollouts)
    assert [c[0] for c in step.collector.calls] == [["p0", "p1"], ["q0", "q1"]] and step.collector.calls[1][2].seed == SEEDS[1]


def test_co_reward_replaces_groups_one_by_one_and_keeps_to_twice_the_prompts():
    step = co_reward_step(dynamic_sampling=2)
    found = step()
    assert step.takes == [2, 1, 1], "two of four are missing, which is one prompt; it has no spread"
    assert names(found.groups) == ["p0", "q0", "p3", "q3"]
    assert [values(g) for g in found.groups[2:]] == [[0, 1, 0], [0, 1, 0]]
    shares = {"p0": 2 / 3, "q0": 2 / 3, "p1": 0, "q1": 1 / 3, "p2": 1, "q2": 1, "p3": 1 / 3, "q3": 2 / 3}
    agreed = {"votes/agreement": pytest.approx(sum(shares.values()) / 8), "votes/voters": 3.0}
    assert found.counts == {"sampling/groups": 8.0, "sampling/filtered_share": 0.5, **agreed}


@pytest.mark.parametrize("labels", ["majority", "ttrv", "co-reward"])
def test_lost_episodes_neither_vote_nor_count_as_wrong(labels):
    """Their last answer, here the most frequent one, says nothing of the policy."""
    answers = [LOST, LOST, "a", LOST, "b", "b"]
    entropy = -(2 / 3 * math.log(2 / 3) + 1 / 3 * math.log(1 / 3)) / math.log(2)
    one, two = (1 / 3 - 0.75 * entropy, 2 / 3 - 0.75 * entropy) if labels == "ttrv" else (0.0, 1.0)
    step = Step({"p0": answers, "q0": answers, "p1": [LOST] * 6, "q1": [LOST] * 6}, labels=labels, group_size=6)
    for group in step().groups:
        found = [s.value for s in group.scores]
        right = [None] * 6 if group.prompt.text in ("p1", "q1") else [None, None, one, None, two, two]
        assert [v is None for v in found] == [v is None for v in right] == [s.lost for s in group.scores]
        assert [v for v in found if v is not None] == pytest.approx([v for v in right if v is not None])


def test_a_task_that_breaks_its_promises_is_named():
    class Broken(Numbers):
        def extract_answer(self, completion):
            return ["a list"]

        def hint(self, prompt, share):
            return None

        def rephrase(self, prompt):
            return "p0 in other words"

    for stage, what in (
        ({"labels": "majority"}, r"task 'a': extract_answer\(\) must give text, not \['a list'\]"),
        ({"labels": "co-reward"}, r"task 'a': rephrase\(\) must give a mmrl.Prompt, not 'p0 in other words'"),
        ({"hints": "ghpo"}, r"task 'a': hint\(\) must give text, not None"),
    ):
        with pytest.raises(PluginError, match=what):
            Step(script("0 0", "0 0"), task=Broken(), **stage)()
    with pytest.raises(UserError, match="task 'a' doesn't rephrase its prompts"):
        Step(script("0 0", "0 0"), task=Task(), labels="co-reward")()


# -- what a plan says ---------------------------------------------------------------------------------------------------


class Always(dict):
    """Whatever is asked, the answers are these, over and over."""

    def __init__(self, *answers):
        super().__init__()
        self.answers = answers

    def __missing__(self, name):
        return list(self.answers) * 8


@pytest.mark.parametrize(
    "answers, keys",
    [
        (("1", "0"), {}),
        (("1", "0"), {"oversample": 1.6}),
        (("1", "0"), {"labels": "majority", "voters": 2.5}),
        (("1", "0"), {"labels": "co-reward", "oversample": 1.5}),
        (("1", "0"), {"rules": contrast(verifier="right"), "films": "a"}),
        (("1", "0"), {"ground_truth": "always"}),
        (("1", "0"), {"noisy": {"share": 0.6}, "films": "a"}),
        (("0", "0"), {"hints": "ghpo", "hint_shares": [0.3, 0.6], "answer": GOLD}),
        (("0", "0"), {"dynamic_sampling": 2, "hints": "guide", "answer": GOLD, "noisy": {"share": 0.6}, "films": "a"}),
    ],
)
def test_a_step_samples_at_most_what_its_rules_say(answers, keys, monkeypatch):
    """Of every prompt and every group, where all goes as badly as it can."""
    monkeypatch.setattr("mmrl.train.sampling.noisy.noisy", lambda prompt, seed, level: prompt)
    monkeypatch.setattr(Prompt, "images", property(lambda prompt: prompt.videos))
    step = Step(Always(*answers), prompts_per_step=3, group_size=4, **keys)
    load = step_load(3, 4, step.rules)
    found = step()
    asked = [(len(texts), size) for texts, size, *_ in step.collector.calls if texts]
    assert sorted(asked) == sorted((*load.sampled, *load.perhaps))
    trained, told = sorted(len(g.rollouts) for g in found.groups), sorted(size for n, size in load.trained for _ in range(n))
    if answers == ("1", "0"):
        assert trained == told and not load.perhaps
    else:
        assert len(trained) >= len(told) and max(trained) <= max(told), "some completion had to succeed"
