"""GR00T computes and acts as LeRobot's does, which reads the same files through its own processors."""

from __future__ import annotations

import pytest

from gr00t_parity import CASES, TUNED, acting, both_ways, network
from peer_pythons import LEROBOT, MISSING, assert_same

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LEROBOT, reason=MISSING)]


def assert_exact(pairs):
    assert_same(pairs, **{name: (1e-5, 0.0) for name in pairs if name.startswith(("pixels", "state"))})


def test_lerobot_computes_the_same(tmp_path):
    """In float64, in which rounding hides no difference."""
    pairs = network(tmp_path / "lerobot")
    assert_same(pairs, **dict.fromkeys(pairs, (1e-6, 1e-6)))


@pytest.mark.parametrize("case", CASES)
def test_lerobot_acts_the_same(case, tmp_path):
    assert_exact(acting(case, tmp_path))


@pytest.mark.parametrize("case", TUNED)
def test_what_lerobot_saved_after_tuning_acts_the_same_before_and_after(case, tmp_path):
    for pairs in both_ways(case, tmp_path).values():
        assert_exact(pairs)
