"""Two runs on the same items: tests and intervals against enumeration, published values and scipy."""

import itertools
import math
import random

import pytest
from scipy import stats

from mmrl.evaluation import paired_tests
from mmrl.evaluation.paired_tests import mcnemar, paired_difference, proportions_interval, sign_flips


@pytest.mark.parametrize(
    ("wins", "losses", "p"),
    [
        # twice the smaller tail, by hand
        (5, 0, 2 / 32),
        (0, 5, 2 / 32),
        (3, 1, 2 * (1 + 4) / 16),
        (6, 2, 2 * (1 + 8 + 28) / 256),
        (2, 2, 1.0),  # twice the tail would be 22 / 16
        (0, 0, 1.0),
    ],
)
def test_mcnemars_exact_test_by_hand(wins, losses, p):
    assert mcnemar(wins, losses) == p


def test_mcnemars_exact_test_is_scipys_binomial_test():
    for wins, losses in [(31, 13), (13, 31), (600, 520), (4000, 3900)]:
        assert mcnemar(wins, losses) == pytest.approx(stats.binomtest(wins, wins + losses).pvalue, rel=1e-9)


def test_the_interval_of_paired_proportions():
    # Agresti, Categorical data analysis, table 10.1: of 1600 people 150 and 86 changed their mind about a prime minister; the
    # interval without the added halves is (0.021, 0.059); with half a person more in each cell it is
    # (86 - 150) / 1602 -+ 1.96 sqrt(237 - 64^2 / 1602) / 1602
    half = 1.959964 * math.sqrt(86 + 150 + 1 - 64**2 / 1602) / 1602
    assert proportions_interval(86, 150, 1600) == pytest.approx((-64 / 1602 - half, -64 / 1602 + half), abs=1e-9)
    assert proportions_interval(86, 150, 1600) == pytest.approx((-0.0587, -0.0212), abs=5e-5)
    # no difference seen in 20 items: 0 -+ 1.96 sqrt(1) / 22
    assert proportions_interval(0, 0, 20) == pytest.approx((-0.08909, 0.08909), abs=5e-6)
    assert proportions_interval(3, 0, 3)[1] == 1.0 and proportions_interval(0, 3, 3)[0] == -1.0


def test_the_interval_of_paired_proportions_covers_what_it_should():
    rng, covered = random.Random(0), 0
    for _ in range(2000):  # 50 items; the second wins with 0.2 and loses with 0.08
        draws = [rng.random() for _ in range(50)]
        wins, losses = sum(d < 0.2 for d in draws), sum(d > 0.92 for d in draws)
        low, high = proportions_interval(wins, losses, 50)
        covered += low <= 0.12 <= high
    assert 0.935 <= covered / 2000 <= 0.975


def flipped(differences):
    """The share of all choices of signs whose sum is as far from 0."""
    sums = [
        abs(sum(s * d for s, d in zip(signs, differences, strict=True)))
        for signs in itertools.product((1, -1), repeat=len(differences))
    ]
    return sum(s >= abs(sum(differences)) - 1e-9 for s in sums) / len(sums)


def test_flipping_signs_counts_every_choice():
    assert sign_flips([0.5, 0.25, 0.125]) == (2 / 8, True)
    assert sign_flips([0.5, 0.25, -0.125]) == (4 / 8, True)  # 5/8 is reached or passed by +++, ++- and their opposites
    assert sign_flips([0.3, 0.1, 0.2, 0.0, -0.3]) == (flipped([0.3, 0.1, 0.2, -0.3]), True), (
        "sums that differ by rounding are equal"
    )
    assert sign_flips([0.0, 0.0]) == sign_flips([]) == (1.0, True)
    rng = random.Random(1)
    for n in (1, 4, 9, 12):
        differences = [rng.gauss(0.3, 1.0) for _ in range(n)]
        assert sign_flips(differences)[0] == pytest.approx(flipped(differences), abs=1e-12)


def test_flipping_signs_of_whole_wins_is_mcnemars_test():
    for wins, losses in [(0, 1), (3, 1), (10, 3), (31, 13), (300, 250)]:
        p, exact = sign_flips([1.0] * wins + [-1.0] * losses)
        assert exact and p == pytest.approx(mcnemar(wins, losses), rel=1e-9)


def test_many_fine_differences_are_drawn(monkeypatch):
    rng = random.Random(2)
    differences = [rng.gauss(0.6, 1.0) for _ in range(13)]
    true, exact = sign_flips(differences)
    assert exact and 0.02 < true < 0.98
    monkeypatch.setattr(paired_tests, "SUMS", 100)
    p, exact = sign_flips(differences)
    assert not exact and p == sign_flips(differences)[0], "the seed is fixed"
    assert p == pytest.approx(true, abs=4 * math.sqrt(true * (1 - true) / paired_tests.DRAWS))
    assert sign_flips(differences, seed=1)[0] != p
    assert sign_flips([1.0 + i / 97 for i in range(60)]) == (1 / (1 + paired_tests.DRAWS), False), "never zero"


def test_binary_values():
    found = paired_difference([0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    assert (found.n, found.wins, found.losses, found.ties, found.difference) == (8, 3, 1, 4, 0.25)
    assert (found.p, found.test) == (0.625, "McNemar's exact test")
    assert (found.low, found.high) == proportions_interval(3, 1, 8)


def test_graded_values():
    found = paired_difference([0.1, 0.5, 0.5, 0.9], [0.3, 0.6, 0.5, 0.8])
    # differences 0.2, 0.1, 0, -0.1: mean 0.05, sum of squares about it 0.05; t of 3 degrees of freedom is 3.182446
    assert (found.wins, found.losses, found.ties) == (2, 1, 1) and found.difference == pytest.approx(0.05)
    half = 3.182446 * math.sqrt(0.05 / 3) / 2
    assert (found.low, found.high) == pytest.approx((0.05 - half, 0.05 + half), abs=1e-6)
    # |+-2 +-1 +-1| >= 2: all but +2 -1 -1 and its opposite
    assert (found.p, found.test) == (6 / 8, "exact sign-flip test")


def test_items_of_a_set_are_one_where_they_are_alike():
    first, second = [0.1, 0.5, 0.5, 0.9], [0.3, 0.6, 0.5, 0.8]
    one, found = paired_difference(first, second), paired_difference(first * 3, second * 3, [*range(4)] * 3)
    assert (found.low, found.high) == pytest.approx((one.low, one.high)) and found.p == one.p
    assert (found.wins, found.test) == (6, "exact sign-flip test of 4 sets")
    won = paired_difference([0.0] * 6, [1.0] * 6, "aaabbb")
    assert (won.p, won.low, won.high) == (0.5, *proportions_interval(2, 0, 2)), "two sets, not six prompts"
    assert paired_difference([0.0, 1.0], [1.0, 1.0], "ab").p == paired_difference([0.0, 1.0], [1.0, 1.0]).p


def test_rounding_is_no_difference():
    found = paired_difference([0.1 + 0.2, 0.5], [0.3, 0.5])
    assert (found.wins, found.losses, found.ties, found.p) == (0, 0, 2, 1.0)


def test_one_graded_item_says_nothing_of_the_spread():
    found = paired_difference([0.25], [0.5])
    assert (found.low, found.high, found.p) == (-math.inf, math.inf, 1.0)
    assert found.as_json()["difference"] == 0.25


def test_items_must_be_pairs():
    with pytest.raises(ValueError, match="zip"):
        paired_difference([1.0], [1.0, 0.0])
