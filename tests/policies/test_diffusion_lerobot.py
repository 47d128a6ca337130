"""A Diffusion Policy that LeRobot saved acts here as there, and one that mmrl saved acts there as here."""

from __future__ import annotations

import pytest
import torch

from diffusion_cases import PICTURES, STATES, diffusion
from diffusion_parity import CASES, acted, both_ways, pairs
from peer_pythons import LEROBOT, MISSING, assert_same

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LEROBOT, reason=MISSING)]


@pytest.mark.parametrize("case", CASES)
def test_lerobot_acts_the_same_before_and_after(case, tmp_path):
    for found in both_ways(case, tmp_path).values():
        assert_same(found)
        assert found["normalised"][0].std(0).max() > 1e-3, "calls differ"


@pytest.mark.parametrize("model", [STATES, PICTURES])
def test_lerobot_loads_a_tiny_one(model, tmp_path):
    policy = diffusion(model, cameras=["wrist"] if model == PICTURES else [], scheduler="DDIM", steps=2)
    policy.save(tmp_path)
    draw = torch.Generator().manual_seed(1)
    seen = {"observation.state": torch.randn(3, 2, policy.robot, generator=draw)}
    if model == PICTURES:
        seen["observation.images.wrist"] = torch.randint(0, 256, (3, 2, 40, 64, 3), dtype=torch.uint8, generator=draw)
    else:
        seen["observation.environment_state"] = torch.randn(3, 2, 3, generator=draw)
    seen["noise"] = torch.randn(3, 3, 8, 3, generator=draw)
    acted(tmp_path, seen)
    assert_same(pairs(policy, seen, tmp_path))
