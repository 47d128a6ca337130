"""An ACT that LeRobot saved acts and learns here as there, and one that mmrl saved acts there as here."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file

from act_cases import PICTURES, STATES, act
from act_parity import BOTH, CASES, acted, both_ways, pairs
from mmrl.policies.act.ensemble import Ensemble
from peer_pythons import LEROBOT, MISSING, assert_same, lerobot

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not LEROBOT, reason=MISSING)]


@pytest.mark.parametrize("case", CASES)
def test_lerobot_acts_and_learns_the_same_before_and_after(case, tmp_path):
    for found in both_ways(case, tmp_path).values():
        assert_same(found)
        assert found["normalised"][0].std(0).max() > 1e-3, "calls differ"
        assert sum("gradient" in name for name in found) > 30


@pytest.mark.parametrize("model", [STATES, PICTURES])
def test_lerobot_loads_a_tiny_one(model, tmp_path):
    policy = act(model, cameras=["wrist"] if model == PICTURES else [], dropout=0.0)
    policy.save(tmp_path)
    draw = torch.Generator().manual_seed(1)
    seen = {"observation.state": torch.randn(3, policy.robot, generator=draw)}
    if model == PICTURES:
        seen["observation.images.wrist"] = torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8, generator=draw)
    else:
        seen[BOTH[1]] = torch.randn(3, 3, generator=draw)
    seen |= {"action": torch.randn(3, 5, 3, generator=draw), "action_is_pad": torch.zeros(3, 5, dtype=torch.bool)}
    seen["noise"] = torch.randn(3, 4, generator=draw)
    acted(tmp_path, seen)
    assert_same(pairs(policy, seen, tmp_path))


@pytest.mark.parametrize("coefficient", [0.01, -0.3])
def test_temporal_ensembling_is_lerobots(coefficient, tmp_path):
    predicted, place = torch.randn(9, 2, 4, 3, generator=torch.Generator().manual_seed(1)), tmp_path / "steps.safetensors"
    save_file({"predicted": predicted}, place)
    lerobot("act_of_lerobot", "ensemble", place, coefficient)
    mean, seeds = Ensemble(coefficient, 4), torch.tensor([7, 8])
    ours = torch.stack([mean(seeds, torch.full((2,), step), one) for step, one in enumerate(predicted)])
    torch.testing.assert_close(ours, load_file(place)["actions"], atol=1e-5, rtol=1e-5)
