"""VL-Rethinker's forced rethinking: which answers go on, behind which words, and what takes their place, against a slow reference
that looks at one answer after the other, as the released trainer does."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import pytest
from mmrl_vqa.rethinking import TRIGGERS, ForcedRethinking, cut
from mmrl_vqa.vl_rethinker import RETHOUGHT

from mmrl import Conversation, Prompt, Score, Status, Turn, UserError, user_message
from mmrl.api.sampling import Continued, Group, StepLoad

VERIFIER = "vqa/reward@vl-rethinker"
PROMPT = Prompt(id="p", task="t", messages=[user_message("?")], meta={"kind": "number"})


def answer(text, length=9, status=Status.FINISHED, group=0, prompt=PROMPT):
    turn = Turn(observed_ids=(), token_ids=(7,) * length, logprobs=(-1.0,) * length, text=text)
    return Conversation(prompt=prompt, group=group, turns=(turn,), status=status)


def score(right, value=None):
    return Score(float(right) if value is None else value, {VERIFIER: float(right), f"{VERIFIER}/accuracy": float(right)})


def group_of(number, answers):
    """answers: (text, whether it is right, None if its score failed, options of `answer`)."""
    rollouts = [answer(text, group=number, **more) for text, _, more in answers]
    scores = [Score(None) if right is None else score(right) for _, right, _ in answers]
    return Group(number=number, place=("t", number), prompt=PROMPT, inputs=None, rollouts=rollouts, scores=scores)


class Sample:
    """Goes on with (text, tokens, right, status), given by what it is asked to go on with."""

    seed = 5

    def __init__(self, said):
        self.said, self.asked, self.scored = said, [], 0

    def go_on(self, rollouts, begun, temperature=None, most=None):
        found = []
        for rollout, text in zip(rollouts, begun, strict=True):
            self.asked.append((rollout, text, temperature, most))
            more, tokens, right, status = self.said(rollout, text)
            whole = replace(
                answer(text + more, rollout.length + tokens, status, rollout.group, rollout.prompt), outcome={"right": right}
            )
            found.append(Continued(rollout=whole, text=more, tokens=tokens))
        return found

    def score(self, groups, without=()):
        self.scored += 1
        for group in groups:
            group.scores = [Score(None) if (right := r.outcome["right"]) is None else score(right) for r in group.rollouts]


def drawn(seed):
    """Groups of every sort of answer, and what each is gone on with."""
    rng = random.Random(seed)
    texts = ["It is 4.", "It is\n\n\\boxed{4}", "Wait, no.\n\nThe answer is \\boxed{3}"]
    groups = []
    for number in range(12):
        odds, answers = rng.choice([0.0, 0.4, 0.9, 1.0]), []
        for _ in range(8):
            status = rng.choice([Status.FINISHED] * 5 + [Status.TRUNCATED_LENGTH])
            more = {"length": rng.choice([9, 1024, 1025]), "status": status}
            answers.append((rng.choice(texts), rng.choice([rng.random() < odds] * 9 + [None]), more))
        groups.append(group_of(number, answers))
    made = {}

    def said(rollout, text):
        key = (rollout.group, len(made))
        words = rng.choice(["so 4", "wait, wait, so 4", "Wait, wait a bit. Alternatively wait, 4", "alternatively " * 4])
        status = rng.choice([Status.FINISHED] * 6 + [Status.TRUNCATED_LENGTH])
        made[key] = words, rng.choice([30, 31, 500, 1023, 1023]), rng.choice([True, True, True, False, None]), status
        return made[key]

    return groups, said


def slow(groups, asked):
    """What each group is in the end: (rollouts, scores). asked: what was gone on with, in its order, with what came of it."""
    found = []
    for group in groups:
        rollouts, scores, count = [*group.rollouts], [*group.scores], 0
        for place, before, one, right in asked[group.number]:
            assert rollouts[place] is before
            if not 30 < one.tokens < 1024 or not right or one.rollout.status is not Status.FINISHED:
                continue
            if count == 2:
                continue
            count += 1
            low = one.text.lower()
            if 1 + low.count("wait,") + low.count("wait a") + low.count("alternatively") > 4:
                continue
            rollouts[place], scores[place] = one.rollout, score(right)
        found.append((rollouts, scores))
    return found


@pytest.mark.parametrize("seed", range(6))
def test_what_takes_the_place_of_an_answer_is_what_the_released_trainer_takes(seed):
    groups, said = drawn(seed)
    before = [replace(g, rollouts=[*g.rollouts], scores=[*g.scores]) for g in groups]
    sample, came = Sample(said), []
    own = sample.go_on

    def noted(rollouts, begun, **how):
        found = own(rollouts, begun, **how)
        came.extend(found)
        return found

    sample.go_on = noted
    assert ForcedRethinking()(groups, sample) is groups and sample.scored == 1
    asked = {g.number: [] for g in groups}
    for (rollout, text, temperature, most), one in zip(sample.asked, came, strict=True):
        group = before[rollout.group]
        place = next(n for n, r in enumerate(group.rollouts) if r.turns is rollout.turns)
        right, share = group.scores[place], sum(bool(s.value) for s in group.scores) / 8
        assert rollout.status is Status.FINISHED and rollout.length <= 1024 and not right.failed
        assert right.value or share <= 0.7, "of a group that is mostly right only right ones"
        starts = {first + words for first in (rollout.completion, cut(rollout.completion)) for words in TRIGGERS}
        assert text in starts and not text.endswith(TRIGGERS[3 if right.value else 2])
        assert rollout.prompt.meta == {"kind": "number", RETHOUGHT: True} and (temperature, most) == (0.9, 1023)
        asked[group.number].append((place, group.rollouts[place], one, one.rollout.outcome["right"]))
    for group, (rollouts, scores) in zip(groups, slow(before, asked), strict=True):
        assert group.scores == scores
        assert all(a is b for a, b in zip(group.rollouts, rollouts, strict=True))
        assert len(group.others) == bool(asked[group.number]) and group.prompt is PROMPT
    figures = ForcedRethinking().counts(groups)
    replaced = [
        (b, a) for g, o in zip(groups, before, strict=True) for a, b in zip(g.scores, o.scores, strict=True) if a is not b
    ]
    assert figures == pytest.approx(
        {
            "rethinking/asked_share": len(came) / 96,
            "rethinking/right_share": sum(bool(one.rollout.outcome["right"]) for one in came) / 96,
            "rethinking/kept_share": len(replaced) / 96,
            "rethinking/mended_share": sum(not old.value for old, _ in replaced) / 96,
        }
    )


def test_shares_of_answers_and_of_words_are_the_released_ones():
    """0.65 of the answers go on, a half of them without their end; a fifth, three tenths and a half get each text of doubt."""
    answers = [("It is\n\n\\boxed{4}", n % 2 == 0, {}) for n in range(8)]
    groups = [group_of(number, answers) for number in range(500)]
    sample = Sample(lambda rollout, text: ("", 1, False, Status.FINISHED))
    ForcedRethinking()(groups, sample)
    assert len(sample.asked) / 4000 == pytest.approx(0.65, abs=0.03)
    ends = Counter(next(words for words in reversed(TRIGGERS) if text.endswith(words)) for _, text, _, _ in sample.asked)
    assert [ends[words] / len(sample.asked) for words in TRIGGERS] == pytest.approx([0.2, 0.3, 0.25, 0.25], abs=0.04)
    whole = sum("boxed" in text for _, text, _, _ in sample.asked)
    assert whole / len(sample.asked) == pytest.approx(0.5, abs=0.04)
    again = Sample(lambda rollout, text: ("", 1, False, Status.FINISHED))
    ForcedRethinking()([group_of(number, answers) for number in (7, 3)], again)
    alone = [text for rollout, text, _, _ in sample.asked if rollout.group == 3]
    assert [text for rollout, text, _, _ in again.asked if rollout.group == 3] == alone, "whatever other groups this process has"


@pytest.mark.parametrize(
    ("text", "left"),
    [  # by the released lines, run
        ("It is 4.", "It is 4."),
        ("It is 4.\n\nSo \\boxed{4}", "It is 4."),
        ("First \\boxed{3}.\n\nWait, no. \\boxed{4}", "First "),
        ("Wait. Wait again\n\nand so \\boxed{1} on\n\n then \\boxed{2}.", "Wait. "),
        ("The Answer: \\boxed{7}", "The "),
        ("A\n\nB\n\nThe answer is \\boxed{7}.\n\nDone.", "A\n\nB"),
        ("wait, 3\n\n \\boxed{3}", "wait, 3"),
        ("x\n\n\n\ny \\boxed{3}", "x"),
        ("Wait", ""),
        ("\\boxed{1}", ""),
        ("so  \n\nWaiting \\boxed{2} ANSWER", "so"),
        ("one\ntwo\n", "one\ntwo\n"),
        ("answer\n\n\\boxed{4}", ""),
        ("a \n\n b \n\n", "a \n\n b"),
    ],
)
def test_the_end_that_is_cut_off(text, left):
    assert cut(text) == left


def test_groups_that_nobody_judges_stay_as_they_are():
    groups = [group_of(0, [("a", None, {}), ("b", None, {})])]
    groups[0].scores = [Score(1.0, {"other": 1.0}), Score(None)]
    sample = Sample(None)
    assert ForcedRethinking(chance=1.0)(groups, sample) == groups and not sample.asked and not groups[0].others
    assert ForcedRethinking()([], sample) == [] and ForcedRethinking().counts([]) == {} and sample.scored == 2


def test_another_verifier_may_say_what_is_right_by_its_value():
    groups = [group_of(0, [("a", True, {})])]
    groups[0].scores = [Score(0.3, {"vqa/answer": 1.0})]
    sample = Sample(lambda rollout, text: ("b", 40, True, Status.FINISHED))
    ForcedRethinking(verifier="vqa/answer", chance=1.0)(groups, sample)
    assert len(sample.asked) == 1 and groups[0].rollouts[0].completion == "a", "what it ends with nobody judges"


def test_a_plan_counts_every_answer_twice_in_sampling_and_once_in_the_update():
    load = ForcedRethinking().adds(StepLoad(wanted=4, groups=4, size=8, sampled=((4, 8),)))
    assert load.sampled == ((4, 8), (4, 8)) and load.trained == ((4, 8),)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"chance": 0}, "chance = 0 must be a share above 0, at most 1"),
        ({"chance": 1.5}, "chance = 1.5 must be a share above 0, at most 1"),
        ({"chance": "often"}, "chance = 'often' must be a share above 0, at most 1"),
        ({"per_question": 0}, "per_question = 0 must be a whole number from 1"),
        ({"longest": 0.5}, "longest = 0.5 must be a whole number from 1"),
        ({"fewest": -1}, "fewest = -1 must be a whole number from 0 to 131072"),
        ({"fewest": 10**6, "most": 10**6}, "fewest = 1000000 must be a whole number from 0 to 131072"),
        ({"most": 30}, "most = 30 must be a whole number from 31 to 131072"),
        ({"fewest": 0, "most": 0}, "most = 0 must be a whole number from 1 to 131072"),
        ({"most": 10**12}, "most = 1000000000000 must be a whole number from 31 to 131072"),
        ({"temperature": -0.1}, "temperature = -0.1 must be 0, or from 0.001 to 1000"),
        ({"temperature": float("nan")}, "temperature = nan must be 0, or from 0.001 to 1000"),
        ({"temperature": 1e-320}, "temperature = 1e-320 must be 0, or from 0.001 to 1000"),
        ({"triggers": "Wait"}, "triggers = 'Wait' must be 4 texts that aren't blank"),
        ({"triggers": ["a", "b", "c"]}, "must be 4 texts that aren't blank"),
        ({"triggers": ["a", "b", "c", " "]}, "must be 4 texts that aren't blank"),
        ({"triggers": ["a", "b", "c", 4]}, "must be 4 texts that aren't blank"),
        ({"verifier": 3}, "verifier = 3 must be a text"),
    ],
)
def test_options_that_can_not_work_are_refused(options, why):
    with pytest.raises(UserError) as told:
        ForcedRethinking(**options)
    assert str(told.value).endswith(why)


def test_it_says_how_long_answers_become():
    assert ForcedRethinking(longest=5, most=70).longest_continued == 75


def test_a_stage_without_the_verifier_is_refused():
    ForcedRethinking().check([VERIFIER])
    with pytest.raises(
        UserError, match=r"verifier = 'vqa/reward@vl-rethinker' rewards nothing in this stage: choose one of vqa/math$"
    ):
        ForcedRethinking().check(["vqa/math"])
