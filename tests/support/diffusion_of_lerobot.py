"""A small Diffusion Policy as LeRobot saves it, and the actions that LeRobot computes. `peer_pythons` calls `make` and `act` by a
Python with lerobot 0.6.1 and diffusers, which imports nothing of mmrl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from diffusers.schedulers import scheduling_ddpm
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy
from lerobot.policies.factory import make_pre_post_processors
from safetensors.torch import load_file, save_file

CALLS, DIMS, STATE, ENVIRONMENT, HEIGHT, WIDTH = 3, 3, 4, 2, 48, 56
SMALL = {"horizon": 8, "n_action_steps": 3, "down_dims": (16, 32), "diffusion_step_embed_dim": 8, "num_train_timesteps": 6}
SMALL |= {"pretrained_backbone_weights": None, "spatial_softmax_num_keypoints": 4, "device": "cpu", "push_to_hub": False}


def statistics(draw: torch.Generator, cameras: list[str]) -> dict[str, dict[str, torch.Tensor]]:
    found = {}
    for key, size in (("observation.state", (STATE,)), ("action", (DIMS,)), *((key, (3, 1, 1)) for key in cameras)):
        low = torch.rand(size, generator=draw)
        names = ("min", "q01", "q10", "mean", "q90", "q99", "max")
        found[key] = {name: low + i + torch.rand(size, generator=draw) / 2 for i, name in enumerate(names)}
        found[key]["std"] = 0.5 + torch.rand(size, generator=draw)
    return found


def make(place: str, text: str) -> None:
    """Save a policy, and what it sees and does. text: its configuration in JSON; "statistics" is the normalisation, "cameras" the
    keys of its pictures, "rename" LeRobot's map of renamed keys."""
    folder, options = Path(place), json.loads(text)
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    norms, renamed = options.pop("statistics", {}), options.pop("rename", {})
    cameras = options.pop("cameras", ["observation.images.front", "observation.images.wrist"])
    shapes = {key: tuple(value) for key, value in options.items() if isinstance(value, list)}
    config = DiffusionConfig(**{**SMALL, **options, **shapes})
    config.input_features = {key: PolicyFeature(type=FeatureType.VISUAL, shape=(3, HEIGHT, WIDTH)) for key in cameras}
    config.input_features["observation.state"] = PolicyFeature(type=FeatureType.STATE, shape=(STATE,))
    if not cameras:
        config.input_features["observation.environment_state"] = PolicyFeature(type=FeatureType.ENV, shape=(ENVIRONMENT,))
    config.output_features = {"action": PolicyFeature(type=FeatureType.ACTION, shape=(DIMS,))}
    config.normalization_mapping |= {kind: NormalizationMode(norm) for kind, norm in norms.items()}
    policy = DiffusionPolicy(config).eval()
    for name, buffer in policy.named_buffers():
        if "running" in name:
            buffer.add_(0.3 * torch.rand(buffer.shape, generator=draw))
    pre, post = make_pre_post_processors(config, dataset_stats=statistics(draw, cameras))
    pre.steps[0].rename_map = renamed
    policy.save_pretrained(folder)
    pre.save_pretrained(folder)
    post.save_pretrained(folder)
    back, moments = {new: old for old, new in renamed.items()}, config.n_obs_steps
    seen = {
        back.get(key, key): torch.randint(0, 256, (CALLS, moments, HEIGHT, WIDTH, 3), dtype=torch.uint8, generator=draw)
        for key in cameras
    }
    seen["observation.state"] = torch.randn(CALLS, moments, STATE, generator=draw)
    if not cameras:
        seen["observation.environment_state"] = torch.randn(CALLS, moments, ENVIRONMENT, generator=draw)
    steps = config.num_inference_steps or config.num_train_timesteps
    seen["noise"] = torch.randn(steps + 1, CALLS, config.horizon, DIMS, generator=draw)
    save_file(seen, folder / "seen.safetensors")
    act(place, str(folder / "seen.safetensors"))


def act(folder: str, place: str) -> None:
    """Write beside `place`, a file with what is seen, what the policy in the folder does there. The first noise is that with
    which a chain begins, the others those of its steps."""
    policy = DiffusionPolicy.from_pretrained(folder).float().eval()
    pre, post = make_pre_post_processors(policy.config, pretrained_path=folder)
    seen = load_file(place)
    noise = seen.pop("noise")
    batch: dict[str, Any] = {
        key: value.movedim(-1, 2).float() / 255 if value.dtype == torch.uint8 else value for key, value in seen.items()
    }
    batch = pre(batch)
    later = iter(noise[1:])
    scheduling_ddpm.randn_tensor = lambda *shape, **how: next(later)
    actions = policy.predict_action_chunk(batch, noise=noise[0])
    model = policy.diffusion
    with torch.no_grad():
        images = {key: batch[key] for key in policy.config.image_features}
        together = {"observation.images": torch.stack(list(images.values()), -4)} if images else {}
        condition = model._prepare_global_conditioning({**batch, **together})
        times = torch.arange(len(condition)) % policy.config.num_train_timesteps
        noised = model.noise_scheduler.add_noise(noise[1], noise[0], times)
        predicted = model.unet(noised, times, global_cond=condition)
    asked = {"condition": condition, "noised": noised, "predicted": predicted, "normalised": actions, "times": times}
    asked |= {"actions": torch.stack([post(one) for one in actions.unbind(1)], 1)}
    save_file({name: value.contiguous() for name, value in asked.items()}, Path(place).with_name("computed.safetensors"))
