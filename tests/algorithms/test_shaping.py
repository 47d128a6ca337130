"""Shaped rewards by hand and against slow references; the published values are in test_golden_algorithms.py."""

import math

import numpy as np
import pytest
import torch

from mmrl.algorithms.shaping import (
    cosine_length,
    grasp_potential,
    length_bonus,
    outcome,
    outcome_at_last,
    overlong_penalty,
    potential_difference,
    time_proportional,
)


def test_overlong_penalty_is_a_straight_line_into_the_limit():
    rng = np.random.default_rng(0)
    for _ in range(200):
        lengths = rng.integers(0, 1001, int(rng.integers(1, 30)))
        buffer, factor = int(rng.integers(1, 900)), rng.random()
        expected = [0.0 if n <= 1000 - buffer else (1000 - buffer - n) / buffer * factor for n in lengths]
        found = overlong_penalty(torch.tensor(lengths), max_length=1000, buffer=buffer, factor=factor)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    found = overlong_penalty(torch.tensor([749, 750, 875, 1000]), max_length=1000, buffer=250)
    assert found.tolist() == [0.0, 0.0, -0.5, -1.0]


def test_cosine_length_turns_at_its_end():
    rng = np.random.default_rng(1)
    for _ in range(200):
        lengths = rng.integers(0, 900, int(rng.integers(1, 30)))
        expected = [0.25 + (2 - 0.25) * (1 + math.cos(math.pi * n / 300)) / 2 for n in lengths]
        found = cosine_length(torch.tensor(lengths), max_length=300, shortest=2.0, longest=0.25)
        np.testing.assert_allclose(found.numpy(), expected, rtol=1e-9)
    assert cosine_length(torch.tensor([0, 1024, 2048])).tolist() == pytest.approx([1.0, 0.5, 1.0])


def test_the_length_bonus_needs_two_that_are_correct():
    rng = np.random.default_rng(3)
    for _ in range(200):
        n = int(rng.integers(1, 9))
        acc, lengths = rng.choice([0.0, 0.1, 1.0, np.nan], n), rng.choice([319, 320, 400, 512, 513], n)
        two = sum(a > 0.1 for a in acc) >= 2
        expected = [
            math.nan if a != a else 0.2 if two and a > 0.1 and 320 <= k <= 512 else 0.0 for a, k in zip(acc, lengths, strict=True)
        ]
        np.testing.assert_allclose(length_bonus(torch.tensor(acc), torch.tensor(lengths)).numpy(), expected)


def test_time_and_outcome():
    assert [time_proportional(1.0, t, 10.0) for t in (0, 4, 10, 12)] == pytest.approx([1.0, 0.6, 0.0, 0.0])
    assert [outcome(r, 0.3, True, kind="thresholded", threshold=0.6) for r in (0.5, 0.6, 1.0)] == [-1.0, 1.0, 1.0]
    assert [outcome(r, 0.3, True) for r in (0.99, 1.0)] == [-1.0, 1.0]
    assert outcome(1.0, 0.3, False) == outcome(1.0, 0.3, False, kind="thresholded") == 0.0
    assert outcome(1.0, 0.3, True, kind="original") == 0.3


def test_a_potential_is_paid_once():
    assert [grasp_potential(*map(bool, bits)) for bits in ((0, 0, 1), (1, 0, 0), (1, 1, 0), (1, 1, 1))] == [0.0, 0.1, 0.2, 1.2]
    found = potential_difference(torch.tensor([[0.1, 0.0, 0.1, 1.2], [0.0, 0.2, 0.2, 0.2]], dtype=torch.float64))
    np.testing.assert_allclose(found.numpy(), [[0.1, -0.1, 0.1, 1.1], [0.0, 0.2, 0.0, 0.0]], atol=1e-12)


def test_the_outcome_stands_at_the_last_trained_token():
    mask = torch.tensor([[True, True, False], [True, False, True], [True, True, True], [False] * 3])
    found = outcome_at_last(torch.tensor([1, 1, 0, 1]), mask, scale=5.0)
    assert found.tolist() == [[0.0, 5.0, 0.0], [0.0, 0.0, 5.0], [0.0] * 3, [0.0] * 3]
