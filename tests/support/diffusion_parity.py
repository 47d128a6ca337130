"""Diffusion Policy against LeRobot's own class and the schedulers of diffusers: what one saves, the other loads and acts with
alike."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file

from diffusion_cases import diffusion
from mmrl.api.simulators.history import earlier
from mmrl.api.simulators.types import Observation
from peer_pythons import Pairs, lerobot

FRONT = "observation.images.front"
CASES = {
    "published": {"crop_shape": [40, 44]},
    "ddim": {
        "noise_scheduler_type": "DDIM",
        "num_train_timesteps": 20,
        "num_inference_steps": 5,
        "use_group_norm": True,
        "use_separate_rgb_encoder_per_camera": False,
        "resize_shape": [40, 36],
        "crop_ratio": 0.85,
        "n_obs_steps": 3,
        "statistics": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "QUANTILES"},
    },
    "the action is predicted": {
        "prediction_type": "sample",
        "use_film_scale_modulation": False,
        "num_inference_steps": 4,
        "beta_schedule": "scaled_linear",
        "cameras": [FRONT],
        "rename": {"observation.images.top": FRONT},
        "statistics": {"VISUAL": "MIN_MAX", "ACTION": "MEAN_STD"},
    },
    "states": {
        "cameras": [],
        "n_obs_steps": 1,
        "clip_sample": False,
        "beta_schedule": "linear",
        "beta_end": 0.3,
        "kernel_size": 3,
        "statistics": {"STATE": "QUANTILE10", "ACTION": "IDENTITY"},
    },
    "ddim predicts the action": {
        "cameras": [],
        "noise_scheduler_type": "DDIM",
        "prediction_type": "sample",
        "clip_sample_range": 0.5,
    },
}


class Given:
    """Draws of which the first begins a chain and the others are those of its steps."""

    def __init__(self, noise: torch.Tensor) -> None:
        self.noise, self.calls_n = noise, torch.arange(noise.shape[1])

    def normal(self, use: int, *shape: int) -> torch.Tensor:
        assert self.noise[use].shape[1:] == shape
        return self.noise[use]


def observed(seen) -> Observation:
    """LeRobot's observations of several moments as mmrl has them."""
    images = {}
    for key, shown in seen.items():
        if shown.dtype == torch.uint8:
            last = shown.shape[1] - 1
            images |= {earlier(key.rpartition(".")[2], last - k): shown[:, k] for k in range(last, -1, -1)}
    state = torch.cat([seen[key] for key in ("observation.state", "observation.environment_state") if key in seen], -1)
    return Observation(images=images, state=state.flatten(1), instructions=["x"] * len(state))


def pairs(policy, seen, folder: Path) -> Pairs:
    """Of the condition, the noise that is predicted, and the actions before and after the statistics."""
    theirs, noise = load_file(folder / "computed.safetensors"), seen["noise"]
    with torch.no_grad():
        actions, _, _, condition = policy.choose(observed(seen), Given(noise), 0.0)
        predicted = policy.model.predict(condition, theirs["noised"][:, None], theirs["times"][:, None])[:, 0]
        kept = (1 - policy.chain.betas_T).cumprod(0)[theirs["times"]][:, None, None]
    ours = {"condition": condition, "noised": kept.sqrt() * noise[1] + (1 - kept).sqrt() * noise[0], "predicted": predicted}
    ours |= {"normalised": actions}
    ours["actions"] = policy.statistics.action.unnormalize(actions) if policy.statistics else actions
    return {name: (value, theirs[name]) for name, value in ours.items()}


def both_ways(case: str, folder: Path) -> dict[str, Pairs]:
    """By who saved the checkpoint, and of mmrl's loaded again."""
    theirs, ours = folder / "theirs", folder / "ours"
    lerobot("diffusion_of_lerobot", "make", theirs, json.dumps(CASES[case]))
    seen = load_file(theirs / "seen.safetensors")
    policy = diffusion(str(theirs))
    found = {"saved by LeRobot": pairs(policy, seen, theirs)}
    with torch.no_grad():
        for weight in policy.model.parameters():
            weight.add_(0.01 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(3)))
    policy.save(ours)
    acted(ours, seen)
    found["saved by mmrl"] = pairs(policy, seen, ours)
    kept = json.loads((theirs / "config.json").read_text())
    assert json.loads((ours / "config.json").read_text()).keys() >= kept.keys(), "no field is lost"
    statistics = policy.statistics.plain() if policy.statistics else ""
    return found | {"loaded again": pairs(diffusion(str(ours), statistics=statistics), seen, ours)}


def acted(folder: Path, seen) -> None:
    from safetensors.torch import save_file

    save_file(seen, folder / "seen.safetensors")
    lerobot("diffusion_of_lerobot", "act", folder, folder / "seen.safetensors")
