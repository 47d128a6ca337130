"""The curriculum of GAIN-RL: its Gaussian, its centre, and its state."""

import json
import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import CurriculumConfig
from mmrl.data.curriculum import Curriculum, gaussian_shares, moved_centre
from mmrl.data.stream import GroupOutcome, PromptStream

PUBLISHED = {"step": 500.0, "sensitivity": 2.0, "target": 0.5, "max_step": 1000.0}


def items(n):
    return [Prompt(id=f"p{i}", messages=[user_message("x")]) for i in range(n)]


def curriculum(count=12, order=None, label="t", **options):
    made = Curriculum(CurriculumConfig(**options), {label: count})
    made.orders = {label: list(range(count)) if order is None else order}
    return made


@pytest.mark.parametrize(
    ("rewards", "angles", "expected"),
    [  # `GAINRLSampler.update_after_epoch` of the published code from a centre of 0; its rewards are 2 for a right answer
        ([2.0, 2.0, 2.0, 0.0], [0.5, 0.3, 0.2, 0.4], 533.2425),
        ([0.0, 0.0, 0.0, 0.0], [0.1, 0.1, 0.1, 0.1], 0.0),
        ([2.0, 2.0], [0.9, 0.8], 848.5016),
        ([2.0, 0.0, 0.0], [0.6, 0.6, 0.2], 205.3158),
    ],
)
def test_the_centre_moves_as_in_the_published_code(rewards, angles, expected):
    found = moved_centre(0.0, np.mean(rewards) / 2, float(np.mean(angles)), **PUBLISHED, last=10**6)
    assert found == pytest.approx(expected, abs=2e-3)


@given(st.floats(0, 90), st.floats(0, 1), st.floats(-1, 1), st.floats(0.1, 1e3), st.floats(0.1, 1e3))
def test_the_centre_never_goes_back_nor_too_far_nor_past_the_end(centre, successes, angle, step, most):
    found = moved_centre(centre, successes, angle, step=step, sensitivity=2.0, target=0.5, max_step=most, last=99)
    assert centre <= found <= min(centre + most, 99) + 1e-9


def test_draws_follow_the_gaussian_around_the_centre():
    counts, shares = Counter(), gaussian_shares(9, 3.0, 1.5)
    for seed in range(4000):
        one = curriculum(9, width=1.5)
        one.centres["t"] = 3.0
        counts[one.draw("t", random.Random(seed))] += 1
    expected = shares / shares.sum()
    assert max(abs(counts[i] / 4000 - p) for i, p in enumerate(expected)) < 0.025
    assert shares[3] == 1.0 and shares[1] == pytest.approx(math.exp(-0.5 * (2 / 1.5) ** 2))


def test_no_prompt_comes_twice_in_a_step_and_all_come_where_a_step_is_larger_than_the_task():
    one = curriculum(12, width=0.2)  # most shares are 0 in floats
    drawn = [one.draw("t", random.Random(i)) for i in range(30)]
    assert [sorted(drawn[i : i + 12]) for i in (0, 12)] == [list(range(12))] * 2 and len(set(drawn[24:])) == 6
    assert drawn[:2] == [0, 1]  # the nearest first
    one.angles = {("t", 0): 0.0}
    one.record([(("t", 0), 0.0)])
    assert one.draw("t", random.Random(0)) == 0  # a new step may draw it again


def test_prompts_come_in_the_order_of_their_angles():
    one = curriculum(4, width=1e-3)
    one.set_order({"t": [0.1, 0.9, 0.9, 0.4]})
    assert [one.draw("t", random.Random(i)) for i in range(4)] == [1, 2, 3, 0]


def outcome(place, *rewards):
    share = sum(r >= 0.5 for r in rewards) / len(rewards) if rewards else 0.0
    return GroupOutcome(place, rewards, spread=len(set(rewards)) > 1, failed=not share, successes=share)


def stream(**options):
    return PromptStream({"t": items(40)}, {"t": 1.0}, 3, curriculum=curriculum(40, label="t", width=4.0, step=9.0, **options))


def test_a_step_moves_the_centre_by_the_successes_and_angles_of_its_prompts():
    one = stream()
    for _ in range(2):
        one.draw()
    one.curriculum.angles = {("t", 3): 0.4, ("t", 5): 0.2, ("t", 6): 0.9}
    one.record_outcomes([outcome(("t", 3), 1.0, 1.0), outcome(("t", 5), 0.0, 1.0), outcome(("t", 6))])  # one without scores
    expected = 9.0 * (math.tanh(2 * (0.75 - 0.5)) + math.tanh(2 * 0.3))
    assert one.metrics() == {"task/t/curriculum": pytest.approx(expected)}


def test_a_resumed_source_draws_the_same():
    one = stream()
    for _ in range(3):
        places = [one.draw() for _ in range(5)]
        one.curriculum.angles = dict.fromkeys(places, 0.3)
        one.record_outcomes([outcome(p, 1.0, 0.0) for p in places])
    half = [one.draw() for _ in range(3)]  # in the middle of a step
    again = stream()
    again.restore(json.loads(json.dumps(one.state())))
    assert [again.draw() for _ in range(20)] == [one.draw() for _ in range(20)] and len(set(half)) == 3


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("orders", {"t": [0, 1]}, "each of its 40 prompts once"),
        ("orders", {"u": list(range(40))}, "must have the tasks t"),
        ("centres", {"t": 40.0}, "must be a place of its prompts"),
        ("centres", {"t": "far"}, "must be a place of its prompts"),
        ("centres", {}, "must have the tasks t"),
        ("drawn", {"t": [0, 0]}, "must name places of its prompts once"),
        ("drawn", {"t": [40]}, "must name places of its prompts once"),
        ("drawn", [], "must have the tasks t"),
    ],
)
def test_a_state_that_can_not_be_is_refused_and_changes_nothing(key, value, complaint):
    one, before = stream(), stream().state()
    with pytest.raises(ValueError, match=complaint):
        one.restore({**before, "curriculum": {**before["curriculum"], key: value}})
    assert one.state() == before


def test_a_state_of_another_kind_of_source_is_refused():
    plain, one = PromptStream({"t": items(40)}, {"t": 1.0}, 3), stream()
    for taken, other in ((plain, one), (one, plain)):
        with pytest.raises(ValueError, match="a source's state has"):
            taken.restore(other.state())
    with pytest.raises(ValueError, match="a curriculum's state has orders, centres, drawn"):
        one.restore({**one.state(), "curriculum": {}})
