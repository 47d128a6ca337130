"""Prompts that later epochs leave out: which, when, and the filter's state."""

import json

import pytest

from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import EpochFilterConfig
from mmrl.data.epoch_filter import EpochFilter, mean_value
from mmrl.data.stream import GroupOutcome, PromptStream

COUNT = 6


def items(count=COUNT):
    return [Prompt(id=str(i), messages=[user_message("?")], meta={"difficulty": -i}) for i in range(count)]


def stream(order="shuffled", **options):
    options = {"above": 0.0, "up_to": 0.7, **options}
    rule = EpochFilter(EpochFilterConfig(**options), {"t": COUNT})
    return PromptStream({"t": items()}, {"t": 1.0}, 3, order=order, epoch_filter=rule)


def outcome(place, value):
    return GroupOutcome(place, () if value is None else (value,), spread=True, failed=False, value=value)


VALUES = {0: 0.0, 1: 0.1, 2: 0.7, 3: 0.71, 4: None, 5: 1.0}
"""Of each prompt; 4 has no score."""


@pytest.mark.parametrize("order", ["shuffled", "easy-first"])
def test_an_epoch_keeps_what_was_neither_never_right_nor_easy(order):
    """Time-R1 keeps 0 < IoU <= 0.7."""
    one = stream(order)
    first = [one.draw() for _ in range(COUNT)]
    assert sorted(i for _, i in first) == list(range(COUNT))
    one.record_outcomes([outcome(place, VALUES[place[1]]) for place in first])
    second = [one.draw()[1] for _ in range(3)]
    assert sorted(second) == [1, 2, 4] and one.metrics() == {"task/t/prompts": 3.0}
    assert order == "shuffled" or second == [4, 2, 1]
    one.record_outcomes([outcome(("t", i), 0.9) for i in (1, 2)])
    assert [one.draw()[1] for _ in range(2)] == [4, 4], "what is left out stays out, and an epoch is as long as it has prompts"


def test_all_stay_where_none_would_be_left():
    one = stream()
    one.record_outcomes([outcome(one.draw(), 1.0) for _ in range(COUNT)])
    assert sorted(one.draw()[1] for _ in range(COUNT)) == list(range(COUNT))


def test_a_prompt_that_can_not_be_shown_goes_and_is_never_all_that_an_epoch_has():
    one = stream()
    first = [one.draw() for _ in range(COUNT)]
    one.epoch_filter.leave_out(("t", 4))
    one.record_outcomes([outcome((t, i), 0.5 if i < 2 else 0.9) for t, i in first if i != 4])
    assert sorted(one.draw()[1] for _ in range(2)) == [0, 1], "although it has no score"
    late = stream()
    late.record_outcomes([outcome(("t", i), 0.9) for i in range(COUNT) if i != 4])
    drawn = [late.draw()[1] for _ in range(COUNT + 3)]
    assert drawn[COUNT:] == [4] * 3, "nobody knew yet"
    late.epoch_filter.leave_out(("t", 4))
    assert sorted(late.draw()[1] for _ in range(COUNT)) == list(range(COUNT))


@pytest.mark.timeout(20)
def test_easy_first_is_fast_where_something_is_left_out():
    """What is left is looked up once an epoch, not for each draw."""
    many = 4000
    rule = EpochFilter(EpochFilterConfig(), {"t": many})
    one = PromptStream({"t": items(many)}, {"t": 1.0}, 3, order="easy-first", epoch_filter=rule)
    one.record_outcomes([outcome(one.draw(), 0.5 if n else 0.9) for n in range(many)])
    assert [one.draw()[1] for _ in range(many - 1)] == list(range(many - 2, -1, -1))


def test_values_of_an_earlier_epoch_do_not_decide_again():
    one = stream()
    one.record_outcomes([outcome(one.draw(), 0.9) for _ in range(COUNT)])  # none would be left, so all stay
    again = [one.draw() for _ in range(COUNT)]
    one.record_outcomes([outcome(again[0], 0.8)])  # the others have no score in this epoch
    assert {one.draw() for _ in range(COUNT - 1)} == {*again[1:]}


def test_a_group_is_worth_the_mean_of_its_rewards_or_of_a_verifiers_values():
    parts = [{"iou": 0.2, "form": 1.0}, {"iou": 0.6}]
    assert mean_value([1.0, 2.0], parts, "") == 1.5 and mean_value([], parts, "") is None
    assert mean_value([1.0, 2.0], parts, "iou") == pytest.approx(0.4) and mean_value([1.0], parts, "other") is None


def test_a_resumed_source_draws_the_same():
    one = stream()
    for _ in range(2):
        one.record_outcomes([outcome(place, VALUES[place[1]]) for place in (one.draw() for _ in range(4))])
    again = stream()
    again.restore(json.loads(json.dumps(one.state())))
    for source in (one, again):
        source.record_outcomes([outcome(("t", 1), 0.9)])
    assert [again.draw() for _ in range(20)] == [one.draw() for _ in range(20)]


def test_a_state_with_later_outcomes_is_made_beside_a_source_that_draws_on():
    one = stream()
    first = [one.draw() for _ in range(COUNT)]
    state = json.loads(json.dumps(one.state()))
    for _ in range(COUNT + 2):
        one.draw()  # for later steps, which a resumed run draws again
    before = one.state()
    made = one.after(state, [outcome(place, VALUES[place[1]]) for place in first])
    assert one.state() == before != made and made["draws"] == COUNT
    again = stream()
    again.restore(json.loads(json.dumps(made)))
    assert sorted(again.draw()[1] for _ in range(3)) == [1, 2, 4]


@pytest.mark.parametrize(
    ("key", "value", "complaint"),
    [
        ("epochs", {"u": 0}, "must have the tasks t"),
        ("epochs", {"t": -1}, "can't begin at prompt"),
        ("begun", {"t": 1}, "can't begin at prompt 1"),
        ("kept", {"t": []}, "must name prompts once"),
        ("kept", {"t": [0, 0]}, "must name prompts once"),
        ("kept", {"t": [COUNT]}, "must be of its 6 prompts"),
        ("values", [["t", 9, 0.5]], "names prompt 9 of 't', which isn't there"),
        ("values", [["t", 1, "high"]], "must be rows of a task, a prompt and a number"),
        ("values", {}, "must be rows of a task, a prompt and a number"),
    ],
)
def test_a_state_that_can_not_be_is_refused_and_changes_nothing(key, value, complaint):
    one, before = stream(), stream().state()
    with pytest.raises(ValueError, match=complaint):
        one.restore({**before, "epoch_filter": {**before["epoch_filter"], key: value}})
    assert one.state() == before


def test_a_state_of_another_kind_of_source_is_refused():
    plain, one = PromptStream({"t": items()}, {"t": 1.0}, 3), stream()
    for taken, other in ((plain, one), (one, plain)):
        with pytest.raises(ValueError, match="a source's state has"):
            taken.restore(other.state())
    with pytest.raises(ValueError, match="an epoch filter's state has epochs, begun, kept, values"):
        one.restore({**one.state(), "epoch_filter": {}})
