"""RECAP's rules against slow references."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms import recap

steps = st.lists(st.integers(1, 5), min_size=1, max_size=12)


def slow_return(took: list[int], at: int, success: bool, longest: int, failure: float) -> float:
    """The sum of what each step from a call on is paid: -1, the last one 0 or minus the cost of a failure."""
    each = [-1.0] * sum(took)
    each[-1] = 0.0 if success else -failure * longest
    return min(max(sum(each[sum(took[:at]) :]) / longest, -1.0), 0.0)


@given(steps, st.booleans(), st.sampled_from([0.25, 1.0]))
def test_returns_are_the_steps_that_are_left(took: list[int], success: bool, failure: float) -> None:
    longest = sum(took) + 2
    found = recap.returns_to_go(torch.tensor(took), success, longest=longest, failure=failure)
    assert found.tolist() == pytest.approx([slow_return(took, t, success, longest, failure) for t in range(len(took))], abs=1e-6)
    assert (found.diff() >= 0).all() and found.min() >= -1 and found.max() <= 0, "the end comes nearer, within the bins"


def test_a_failure_is_worse_than_every_success_and_the_end_of_a_success_is_worth_nothing() -> None:
    took = torch.ones(10, dtype=torch.int64)
    good, bad = (recap.returns_to_go(took, success, longest=10) for success in (True, False))
    assert good.tolist() == pytest.approx([-0.9, -0.8, -0.7, -0.6, -0.5, -0.4, -0.3, -0.2, -0.1, 0.0])
    assert bad.tolist() == [-1.0] * 10 and bool((bad < good).all())


@given(steps, st.integers(0, 14), st.booleans(), st.integers(0, 2**31))
def test_advantages_look_so_many_calls_ahead(took: list[int], lookahead: int, success: bool, seed: int) -> None:
    values, longest = np.random.default_rng(seed).uniform(-1, 0, len(took)), sum(took) + 1
    returns = recap.returns_to_go(torch.tensor(took), success, longest=longest)
    found = recap.advantages(returns, torch.tensor(took), torch.tensor(values).float(), longest=longest, lookahead=lookahead)
    for t in range(len(took)):
        after = t + lookahead if lookahead else len(took)
        if after >= len(took):
            paid = float(returns[t])
        else:
            paid = -sum(took[t:after]) / longest + values[after]
        assert found[t].item() == pytest.approx(paid - values[t], abs=1e-5)


def test_values_that_foresee_everything_leave_no_advantage() -> None:
    took = torch.tensor([2, 1, 3, 1])
    exact = recap.returns_to_go(took, True, longest=9)
    for lookahead in (0, 1, 2, 9):
        assert recap.advantages(exact, took, exact, longest=9, lookahead=lookahead).abs().max() < 1e-6


@given(st.lists(st.floats(-1, 1), min_size=4, max_size=60, unique=True), st.sampled_from([0.1, 0.3, 0.4, 0.5]))
def test_about_a_share_is_above_the_threshold(advantages: list[float], top: float) -> None:
    found = torch.tensor(advantages, dtype=torch.float64)
    above = int((found > recap.threshold(found, top)).sum())
    assert abs(above - top * len(advantages)) <= 1
    bound = np.quantile(np.array(advantages), 1 - top)
    assert recap.threshold(found, top) == pytest.approx(float(bound), abs=1e-12)


def test_nothing_is_above_the_threshold_where_all_are_equal() -> None:
    equal = torch.zeros(10)
    assert not (equal > recap.threshold(equal, 0.3)).any()


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=20))
def test_the_order_is_the_share_of_pairs_the_right_way_round(rows: list[tuple[int, bool]]) -> None:
    found = recap.ordered(torch.tensor([v for v, _ in rows]).float(), torch.tensor([g for _, g in rows]))
    pairs = [(a > b) + 0.5 * (a == b) for a, good in rows if good for b, other in rows if not other]
    assert found == (pytest.approx(sum(pairs) / len(pairs)) if pairs else None)


def test_the_order_of_many_calls_is_found_without_a_table_of_all_pairs() -> None:
    values = torch.arange(300_000.0)
    assert recap.ordered(values, values >= 150_000) == 1.0
