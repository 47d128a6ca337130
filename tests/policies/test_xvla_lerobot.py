"""An X-VLA that LeRobot saved acts and learns here as there, and one that mmrl saved acts there as here."""

from __future__ import annotations

import pytest

from peer_pythons import LEROBOT, MISSING, assert_same
from xvla_parity import CASES, both_ways, published_names, tiny

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LEROBOT, reason=MISSING)]


@pytest.mark.parametrize(("case", "attention"), [*((case, "sdpa") for case in CASES), ("auto", "eager")])
def test_lerobot_acts_and_learns_the_same_before_and_after(case, attention, tmp_path):
    for pairs in both_ways(case, tmp_path, attention).values():
        assert_same(pairs)


def test_lerobot_loads_a_tiny_one(tmp_path):
    assert_same(tiny(tmp_path))


def test_florence_with_the_names_of_its_authors(tmp_path):
    assert_same(published_names(tmp_path))
