"""pi0-FAST acts as LeRobot's own class does, whichever of the two saved it."""

from __future__ import annotations

import pytest

from peer_pythons import LEROBOT, MISSING, assert_same
from pi0_fast_parity import CASES, both_ways

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LEROBOT, reason=MISSING)]


@pytest.mark.parametrize("case", CASES)
def test_lerobot_acts_the_same(case, tmp_path):
    for pairs in both_ways(case, tmp_path).values():
        assert_same(pairs)
