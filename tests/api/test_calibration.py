"""A stated confidence, and what it is paid."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.api.verifiers.calibration import brier, stated_confidence

SAID = "<answer>7</answer><confidence>{}</confidence>"


@pytest.mark.parametrize(
    ("text", "number"), [("0.8", 0.8), (" 1 ", 1.0), ("0", 0.0), (".25", 0.25), ("1e-1", 0.1), ("0.50.", 0.5)]
)
def test_a_number_from_0_to_1_is_a_confidence(text, number):
    assert stated_confidence(SAID.format(text)) == (number, "")


@pytest.mark.parametrize(
    "text", ["", "80", "80%", "1%", "-0.1", "1.01", "nan", "inf", "0.5 or 0.6", "high", "½", "０.5", "1" * 300]
)
def test_nothing_else_is_one(text):
    found, why = stated_confidence(SAID.format(text))
    assert found is None and "is no number from 0 to 1" in why and len(why) < 100
    assert brier(SAID.format(text), True).value == brier(SAID.format(text), False).value == 0.0


@pytest.mark.parametrize(
    "text",
    [
        "<answer>7</answer>",
        "<confidence>0.5",
        "0.5</confidence>",
        SAID.format(0.5) + "<confidence>0.9</confidence>",
        "<think><confidence>0.5</confidence>",
        "</confidence>0.5<confidence>",
    ],
)
def test_there_is_one_tag_outside_of_the_thinking(text):
    assert stated_confidence(text)[0] is None and brier(text, True).value == 0.0


def test_the_reward_by_hand():
    assert brier(SAID.format(0.8), True).value == pytest.approx(0.96) and brier(SAID.format(0.8), False).value == pytest.approx(
        0.36
    )
    assert brier(SAID.format(1), True).value == brier(SAID.format(0), False).value == 1.0
    assert brier(SAID.format(0), True).value == brier(SAID.format(1), False).value == 0.0


@given(st.floats(0, 1))
def test_it_pays_best_to_say_how_often_one_is_right(share):
    """With correctness beside it, an answer that is right more often is never paid less for its confidence."""
    said = np.linspace(0, 1, 101)
    paid = np.array([share * brier(SAID.format(q), True).value + (1 - share) * brier(SAID.format(q), False).value for q in said])
    assert abs(said[paid.argmax()] - share) <= 0.005 + 1e-9
    assert paid.max() + share == pytest.approx(1 - share * (1 - share) + share, abs=1e-4)
