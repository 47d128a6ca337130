"""Weights of objectives by convergence and instability, against numpy."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmrl.algorithms.reweighting import objective_weights

LOSSES = st.lists(st.lists(st.floats(0.01, 1.0), min_size=8, max_size=8), min_size=1, max_size=4)


def by_numpy(losses_KT, window, temperature):
    """The formulas of section 4 in arrays; losses above 0."""
    losses = np.array(losses_KT)[:, -2 * window :]
    before, newest = losses[:, :window].mean(1), losses[:, window:].mean(1)
    scores = np.minimum(newest / before, 2.0) + losses[:, window:].std(1) / (before + newest)
    powers = np.exp(scores / temperature)
    return len(losses) * powers / powers.sum()


@given(LOSSES, st.integers(2, 4), st.floats(0.1, 10))
def test_they_are_those_of_numpy_and_their_mean_is_1(losses, window, temperature):
    found = objective_weights(losses, window, temperature)
    assert found == pytest.approx(by_numpy(losses, window, temperature), rel=1e-9)
    assert np.mean(found) == pytest.approx(1.0)


def test_what_has_converged_weighs_less_and_what_varies_more():
    still, falling, solved, unsteady = [0.5] * 4, [0.8, 0.8, 0.2, 0.2], [0.0] * 4, [0.5, 0.5, 0.1, 0.9]
    a, b, c, d = objective_weights([still, falling, solved, unsteady], 2, 1.0)
    assert d > a > b > c > 0
    forgotten = [0.0, 0.0, 0.6, 0.6]
    assert objective_weights([forgotten, still], 2, 1.0)[0] == pytest.approx(2 * np.exp(2) / (np.exp(2) + np.exp(1)))


def test_before_two_windows_are_full_all_are_1_and_then_only_the_newest_count():
    assert objective_weights([[0.9] * 4, [0.1] * 3], 2, 1.0) == [1.0, 1.0]
    old, new = [[9.0, 9.0], [0.3, 0.1]], [[0.8, 0.8, 0.2, 0.2], [0.5] * 4]
    assert objective_weights([a + b for a, b in zip(old, new, strict=True)], 2, 1.0) == objective_weights(new, 2, 1.0)
