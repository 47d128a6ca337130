"""GR00T as a policy: the actions of LeRobot's, which reads the same files through its own processors."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from gr00t_cases import absolute, gr00t, looked, published, relative

LEROBOT = os.environ.get("MMRL_LEROBOT_PYTHON", "")
SCRIPT = Path(__file__).parents[1] / "support" / "gr00t_acts_of_lerobot.py"
AREA = {"use_albumentations": True, "shortest_image_edge": 64, "crop_fraction": 0.95}


def joints():
    """Without a pose, of which LeRobot can't make demonstrations."""
    config, tables = relative()
    for part in (config["state"]["modality_keys"], config["action"]["modality_keys"], config["action"]["action_configs"]):
        del part[0]
    return config, {kind: {name: one for name, one in groups.items() if name != "eef_9d"} for kind, groups in tables.items()}


CASES = {
    "absolute": (absolute(), {}, ("image", "wrist_image"), 8, 4),
    "whole-range": (absolute(), {"use_percentiles": False, "letter_box_transform": True}, ("image", "wrist_image"), 8, 4),
    "area": (absolute(), AREA, ("image", "wrist_image"), 8, 4),
    "relative": (relative(), AREA, ("image",), 13, 13),
    "joints": (joints(), {}, ("image",), 4, 4),
}


@dataclass
class Noise:
    """Draws that LeRobot made."""

    start: torch.Tensor

    @property
    def calls_n(self):
        return torch.zeros(len(self.start), dtype=torch.int64)

    def normal(self, use, *shape):
        assert shape == self.start.shape[1:]
        return self.start if use == 0 else torch.full_like(self.start, torch.nan)  # the noise of steps, of which there is none


@pytest.mark.slow
@pytest.mark.skipif(not LEROBOT, reason="MMRL_LEROBOT_PYTHON names no Python with lerobot 0.6.1 and its extra groot")
@pytest.mark.parametrize("case", CASES)
def test_lerobot_acts_the_same(case, tmp_path):
    tables, settings, cameras, state, dims = CASES[case]
    name = published(tmp_path / "model", {"arm": tables}, settings)
    shown = looked(3, cameras=cameras, size=(96, 128), state=state)
    calls = [
        {
            "images": {camera: pictures[i : i + 1].permute(0, 3, 1, 2) for camera, pictures in shown.images.items()},
            "state": shown.state[i : i + 1],
            "instruction": shown.instructions[i],
        }
        for i in range(3)
    ]
    ahead = len(tables[0]["action"]["delta_indices"])
    policy = gr00t(name, dims=dims, state=state, chunk=ahead)
    noise = torch.Generator().manual_seed(8)
    demonstrated = policy.embodiment.physical(torch.rand(3, ahead, dims, generator=noise) * 2 - 1, shown.state)
    demonstrated = demonstrated + 0.3 * torch.randn(demonstrated.shape, generator=noise)
    if case != "relative":
        for call, shown_by_expert in zip(calls, demonstrated, strict=True):
            call["shown"] = shown_by_expert[None]
    torch.save({"calls": calls, "dims": dims}, tmp_path / "seen.pt")
    path = {**os.environ, "PYTHONPATH": os.environ.get("MMRL_LEROBOT_PATH", "")}
    subprocess.run([LEROBOT, SCRIPT, name, "arm", tmp_path], check=True, timeout=300, env=path)
    chosen = torch.load(tmp_path / "chosen.pt", weights_only=True)
    start = torch.cat([one["start"] for one in chosen])
    actions = policy.choose(shown, Noise(start), 0.0)[0]
    physical = policy.embodiment.physical(actions, shown.state)
    for i, one in enumerate(chosen):
        alone = shown.rows(torch.tensor([i]))
        inputs = policy.reader.inputs(alone, policy.device)
        assert torch.equal(inputs["input_ids"], one["input_ids"]) and int(one["embodiment_id"]) == policy.embodiment.number
        assert torch.equal(inputs["image_grid_thw"], one["image_grid_thw"])
        torch.testing.assert_close(inputs["pixel_values"], one["pixel_values"], atol=1e-5, rtol=0)
        torch.testing.assert_close(policy._state(alone), one["state"][:, 0], atol=1e-5, rtol=0)
        torch.testing.assert_close(actions[i], one["normalised"][0, : policy.chunk], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(physical[i], one["actions"][0, : policy.chunk], atol=1e-5, rtol=1e-5)
        if "learned" in one:
            learned = policy.head.choices_of(policy.embodiment.normalised(demonstrated, shown.state))[i]
            torch.testing.assert_close(learned, one["learned"], atol=1e-5, rtol=1e-5)
            assert 0 < (learned[0, :ahead, :dims].abs() < 1).sum() < ahead * dims, "some are cut"
    assert actions.std() > 0.3 and actions.abs().max() > 1, "some are cut"
    assert (actions[0] - actions[1]).abs().max() > 0.1
