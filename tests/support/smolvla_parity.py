"""SmolVLA against LeRobot's own classes: what one saves, the other loads, acts and learns with alike."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from mmrl.api.simulators.types import Observation
from peer_pythons import Pairs, lerobot
from pi0_cases import moved
from smolvla_cases import smolvla

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


def pairs(policy, seen, folder: Path) -> Pairs:
    """Of the pictures, the state, the velocity at some time and the end of the chain, before and after the statistics."""
    theirs = load_file(folder / "computed.safetensors")
    images = {key.rpartition(".")[2]: value for key, value in seen.items() if value.dtype == torch.uint8}
    shown = Observation(images=images, state=seen["observation.state"], instructions=TEXTS)
    ours = {"pixels": policy._pictures(shown), "state": policy._state(shown)}
    noise, time, steps = seen["noise"], seen["time"], policy.chains.steps
    with torch.no_grad():
        scene = policy.look(shown)
        velocity = policy.velocity(scene, (time[:, None, None] * noise)[:, None], time[:, None])[:, 0]
        x = noise
        for i in range(steps):
            x = x - policy.velocity(scene, x[:, None], torch.full((len(x), 1), 1 - i / steps))[:, 0] / steps
    ours |= {"loss": (noise - velocity) ** 2, "normalised": x[..., : policy.dims]}
    ours["actions"] = policy.statistics.action.unnormalize(x[..., : policy.dims]) if policy.statistics else x[..., : policy.dims]
    assert x.std() > 0.3 and (x[0] - x[1]).abs().max() > 0.1, "the actions of calls differ"
    theirs["pixels"] = theirs["pixels"][:, : ours["pixels"].shape[1]]  # without empty cameras
    return {name: (value, theirs[name]) for name, value in ours.items()}


def acted(folder: Path, seen) -> None:
    save_file(seen, folder / "seen.safetensors")
    lerobot("smolvla_of_lerobot", "act", folder, folder / "seen.safetensors")


def both_ways(case: str, folder: Path, attention: str = "sdpa") -> dict[str, Pairs]:
    """By who saved the checkpoint, and of mmrl's loaded again."""
    theirs, ours = folder / "theirs", folder / "ours"
    lerobot("smolvla_of_lerobot", "make", theirs, json.dumps(CASES[case]))
    seen, given = load_file(theirs / "seen.safetensors"), {"attention": attention, "dims": None, "chunk": None, "state": None}
    policy = smolvla(str(theirs), **given)
    assert (policy.dims, policy.chunk, policy.state, policy.chains.steps) == (3, 2, 4, 3)
    found = {"saved by LeRobot": pairs(policy, seen, theirs)}
    moved(policy, 0.02).save(ours)  # of larger weights, states are so large that their rounding is beyond the bound
    acted(ours, seen)
    found["saved by mmrl"] = pairs(policy, seen, ours)
    again = smolvla(str(ours), **given, statistics=policy.statistics.plain())
    kept = json.loads((theirs / "config.json").read_text()).keys()
    assert json.loads((ours / "config.json").read_text()).keys() == kept, "no field is lost"
    return found | {"loaded again": pairs(again, seen, ours)}


def tiny(folder: Path) -> Pairs:
    """Of mmrl's tiny one, with cameras that the run file names, as the checkpoint has none."""
    policy = smolvla(cameras=["wrist", "front"], chunk=5, steps=3)
    policy.save(folder)
    draw = torch.Generator().manual_seed(1)
    seen = {
        "observation.images.front": torch.randint(0, 256, (3, 64, 64, 3), dtype=torch.uint8, generator=draw),
        "observation.images.wrist": torch.randint(0, 256, (3, 40, 64, 3), dtype=torch.uint8, generator=draw),
        "observation.state": torch.randn(3, 6, generator=draw),
        "noise": torch.randn(3, 5, 32, generator=draw),
        "time": torch.rand(3, generator=draw),
    }
    acted(folder, seen)
    return pairs(policy, seen, folder)
