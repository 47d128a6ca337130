"""pi0 and pi0.5 act as LeRobot's own classes do, whichever of the two saved them."""

from __future__ import annotations

import pytest

from peer_pythons import LEROBOT, MISSING, assert_same
from pi_parity import CASES, both_ways

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LEROBOT, reason=MISSING)]


@pytest.mark.parametrize("case", CASES)
def test_lerobot_acts_the_same(case, tmp_path):
    for pairs in both_ways(case, tmp_path).values():
        assert_same(pairs, actions=(2e-5, 1e-5))
