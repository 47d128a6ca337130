"""What the benchmarks of learning print of their runs."""

import json
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))

import learning


def run(value: float) -> learning.Run:
    return learning.Run([{"step": 9, "task": "digits", "value": value, "low": 0.0, "high": 1.0, "n": 40}], 2.5)


def test_the_gain_has_an_interval_over_seeds():
    """Gains of 0.1 and 0.3: a deviation of 0.1414, over the root of two 0.1, times Student's 12.706 for one degree of freedom."""
    found = learning.figures("digits", run(0.5), [run(0.6), run(0.8)])
    assert (found["gain"], found["seeds"], found["rl_s"]) == (0.2, [0.6, 0.8], [2.5, 2.5])
    assert (found["low"], found["high"]) == pytest.approx((0.2 - 1.2706, 0.2 + 1.2706), abs=1e-4)


def test_of_a_single_seed_nothing_is_printed_that_json_has_no_word_for():
    found = learning.figures("digits", run(0.5), [run(0.6)])
    assert (found["gain"], found["low"], found["high"]) == (0.1, None, None)
    json.dumps(found, allow_nan=False)
