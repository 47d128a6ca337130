"""The rule of sampling `video/temporal-contrast`: when the order of frames is paid, and which options are refused. What a whole
step makes of it is in tests/train/test_sampling.py."""

import numpy as np
import pytest
from mmrl_video.temporal_contrast import TemporalContrast

from mmrl import Score, UserError


def bonuses(acc, shuffled):
    """A score of NaN is one that failed."""
    rule, scores = TemporalContrast(), [[Score(None if a != a else float(a)) for a in found] for found in (acc, shuffled)]
    matters = rule.matters(*map(rule.known, scores))
    return [rule.paid(score, matters) for score in scores[0]]


def test_the_bonus_needs_four_fifths_of_the_shuffled_accuracy():
    rng = np.random.default_rng(2)
    for _ in range(200):
        acc, shuffled = (rng.choice([0.0, 0.1, 0.5, 1.0, np.nan], int(rng.integers(1, 9))) for _ in range(2))
        good = [a for a in acc if a == a], [a for a in shuffled if a == a]
        paid = all(good) and sum(good[0]) / len(good[0]) >= 0.8 * sum(good[1]) / len(good[1])
        assert bonuses(acc, shuffled) == [0.3 if paid and a > 0.1 else 0.0 for a in acc]
    assert bonuses([1.0, 0.5], [1.0]) == [0.0, 0.0]  # 0.75 of it


def test_what_is_right_is_what_the_verifier_of_the_task_says():
    """Video-R1 reads the column of its accuracy alone; the form would have been paid."""
    rule = TemporalContrast(verifier=["letter", "span"])
    wrong, right, timed = (
        Score(1.0, parts={"letter": 0.0, "form": 1.0}),
        Score(1.0, parts={"letter": 1.0}),
        Score(0.5, parts={"span": 0.5}),
    )
    rule.check(["letter", "form", "span"])
    assert rule.known([wrong, right, timed]) == [0.0, 1.0, 0.5]
    assert [rule.paid(score, True) for score in (wrong, right, timed)] == [0.0, 0.3, 0.3]
    TemporalContrast().check(["letter", "letter"])


@pytest.mark.parametrize(
    ("options", "verifiers", "why"),
    [
        ({"bonus": -0.1}, ["a"], "bonus = -0.1 must be 0 or more"),
        ({"ratio": 0.0}, ["a"], "ratio = 0.0 must be above 0"),
        ({"share": 1.5}, ["a"], "share = 1.5 must be above 0 and at most 1"),
        ({"verifier": "c"}, ["a", "b"], "options.verifier names 'c', which rewards nothing here: a, b"),
        ({"verifier": ["a", "c"]}, ["a", "b"], "options.verifier names 'c', which rewards nothing here: a, b"),
        ({}, ["a", "b"], "options.verifier must name the one that says what is right, and not the form: a, b"),
        ({}, [], "it needs verifiers, and this stage is scored by labels alone: leave one of them out"),
    ],
)
def test_options_that_make_no_sense_are_refused(options, verifiers, why):
    with pytest.raises(UserError) as error:
        TemporalContrast(**options).check(verifiers)
    assert str(error.value) == why
