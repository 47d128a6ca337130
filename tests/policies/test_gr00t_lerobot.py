"""GR00T computes and acts as LeRobot's does, which reads the same files through its own processors."""

from __future__ import annotations

import pytest

from gr00t_parity import CASES, acting, network
from peers import LEROBOT, MISSING, assert_same

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LEROBOT, reason=MISSING)]
EXACT = (1e-5, 0.0)


def test_lerobot_computes_the_same(tmp_path):
    """In float64, in which rounding hides no difference."""
    pairs = network(tmp_path / "lerobot")
    assert_same(pairs, **dict.fromkeys(pairs, (1e-6, 1e-6)))


@pytest.mark.parametrize("case", CASES)
def test_lerobot_acts_the_same(case, tmp_path):
    pairs = acting(case, tmp_path)
    assert_same(pairs, **{name: EXACT for name in pairs if name.startswith(("pixels", "state"))})
