"""A SmolVLA that LeRobot saved acts and learns here as there, and one that mmrl saved acts there as here. LeRobot itself computes
what is compared."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from mmrl.api.simulators.types import Observation
from pi0_cases import moved
from smolvla_cases import smolvla

LEROBOT = os.environ.get("MMRL_LEROBOT_PYTHON", "")
SCRIPT = Path(__file__).parents[1] / "support" / "smolvla_of_lerobot.py"
TEXTS = ["push the red cube", "x", "stack the ball on the yellow box\n"]
CASES = {
    "published": {},
    "ranges": {"statistics": {"STATE": "MIN_MAX", "ACTION": "QUANTILES"}, "tokenizer_max_length": 48},
    "deciles": {"statistics": {"STATE": "IDENTITY", "ACTION": "QUANTILE10"}, "num_vlm_layers": -1, "min_period": 0.01},
    "physical": {"statistics": {"STATE": "MEAN_STD", "ACTION": "IDENTITY"}, "pad_language_to": "max_length", "prefix_length": 60},
    "marks": {
        "add_image_special_tokens": True,
        "empty_cameras": 1,
        "cameras": ["camera1", "camera2"],
        "rename": {"observation.images.top": "observation.images.camera1", "observation.image": "observation.images.camera2"},
    },
    "cross": {"self_attn_every_n_layers": -1, "num_expert_layers": 2, "expert_width_multiplier": 0.5},
    "self": {"attention_mode": "self_attn", "resize_imgs_with_padding": [48, 48]},
}
pytestmark = pytest.mark.skipif(
    not LEROBOT, reason="MMRL_LEROBOT_PYTHON names no Python with lerobot 0.6.1 and its extra smolvla"
)


def lerobot(*arguments):
    env = {**os.environ, "PYTHONPATH": os.environ.get("MMRL_LEROBOT_PATH", ""), "HF_HUB_OFFLINE": "1"}
    subprocess.run([LEROBOT, SCRIPT, *map(str, arguments)], check=True, timeout=300, env=env)


def compare(policy, seen, computed):
    """The pictures, the state, the velocity at some time and the end of the chain, before and after the statistics."""
    images = {key.rpartition(".")[2]: value for key, value in seen.items() if value.dtype == torch.uint8}
    shown = Observation(images=images, state=seen["observation.state"], instructions=TEXTS)
    shows = policy._pictures(shown)
    torch.testing.assert_close(shows, computed["pixels"][:, : shows.shape[1]], atol=1e-6, rtol=0)
    torch.testing.assert_close(policy._state(shown), computed["state"], atol=1e-5, rtol=1e-5)
    noise, time, steps = seen["noise"], seen["time"], policy.chains.steps
    with torch.no_grad():
        scene = policy.look(shown)
        velocity = policy.velocity(scene, (time[:, None, None] * noise)[:, None], time[:, None])[:, 0]
        x = noise
        for i in range(steps):
            x = x - policy.velocity(scene, x[:, None], torch.full((len(x), 1), 1 - i / steps))[:, 0] / steps
    torch.testing.assert_close((noise - velocity) ** 2, computed["loss"], atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(x[..., :3], computed["normalised"], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(policy.statistics.action.unnormalize(x[..., :3]), computed["actions"], atol=1e-5, rtol=1e-5)
    assert x.std() > 0.3 and (x[0] - x[1]).abs().max() > 0.1


@pytest.mark.parametrize(("case", "attention"), [*((case, "sdpa") for case in CASES), ("published", "eager")])
def test_lerobot_acts_the_same_before_and_after(case, attention, tmp_path):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    lerobot("make", theirs, json.dumps(CASES[case]))
    seen = load_file(theirs / "seen.safetensors")
    policy = smolvla(str(theirs), attention=attention, dims=None, chunk=None, state=None)
    assert (policy.dims, policy.chunk, policy.state, policy.chains.steps) == (3, 2, 4, 3)
    compare(policy, seen, load_file(theirs / "computed.safetensors"))

    moved(policy).save(ours)
    save_file(seen, ours / "seen.safetensors")
    lerobot("act", ours, ours / "seen.safetensors")
    compare(policy, seen, load_file(ours / "computed.safetensors"))
    again = smolvla(str(ours), attention=attention, dims=None, chunk=None, state=None, statistics=policy.statistics.plain())
    compare(again, seen, load_file(ours / "computed.safetensors"))
    kept = json.loads((theirs / "config.json").read_text()).keys()
    assert json.loads((ours / "config.json").read_text()).keys() == kept, "no field is lost"


def test_lerobot_loads_a_tiny_one(tmp_path):
    """With cameras that the run file names, as the checkpoint has none."""
    policy = smolvla(cameras=["wrist", "front"], chunk=5, steps=3)
    policy.save(tmp_path)
    draw = torch.Generator().manual_seed(1)
    seen = {
        "observation.images.front": torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8, generator=draw),
        "observation.images.wrist": torch.randint(0, 256, (3, 40, 64, 3), dtype=torch.uint8, generator=draw),
        "observation.state": torch.randn(3, 6, generator=draw),
        "noise": torch.randn(3, 5, 32, generator=draw),
        "time": torch.rand(3, generator=draw),
    }
    save_file(seen, tmp_path / "seen.safetensors")
    lerobot("act", tmp_path, tmp_path / "seen.safetensors")
    computed = load_file(tmp_path / "computed.safetensors")
    shown = Observation(
        images={key.rpartition(".")[2]: value for key, value in seen.items() if value.dtype == torch.uint8},
        state=seen["observation.state"],
        instructions=TEXTS,
    )
    torch.testing.assert_close(policy._pictures(shown), computed["pixels"], atol=1e-6, rtol=0)
    with torch.no_grad():
        scene, x = policy.look(shown), seen["noise"]
        for i in range(3):
            x = x - policy.velocity(scene, x[:, None], torch.full((3, 1), 1 - i / 3))[:, 0] / 3
    torch.testing.assert_close(x[..., :3], computed["actions"], atol=1e-5, rtol=1e-5)
