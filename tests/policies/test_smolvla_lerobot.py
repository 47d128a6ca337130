"""A SmolVLA that LeRobot saved acts and learns here as there, and one that mmrl saved acts there as here."""

from __future__ import annotations

import pytest

from peer_pythons import LEROBOT, MISSING, assert_same
from smolvla_parity import CASES, both_ways, tiny

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LEROBOT, reason=MISSING)]
TOLERANCES = {"pixels": (1e-6, 0.0), "loss": (1e-4, 1e-5), "normalised": (1e-4, 1e-5), "actions": (1e-4, 1e-5)}
"""Absolute and relative. Ten steps of the flow add up what CPUs round differently: 1.6e-5 was seen in one of 45 numbers."""


@pytest.mark.parametrize(("case", "attention"), [*((case, "sdpa") for case in CASES), ("published", "eager")])
def test_lerobot_acts_the_same_before_and_after(case, attention, tmp_path):
    for pairs in both_ways(case, tmp_path, attention).values():
        assert_same(pairs, **TOLERANCES)


def test_lerobot_loads_a_tiny_one(tmp_path):
    assert_same(tiny(tmp_path), **TOLERANCES)
