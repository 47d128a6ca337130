"""A small ACT as LeRobot saves it, and what LeRobot computes with it. `peer_pythons` calls `make`, `act` and `ensemble` by a
Python with lerobot 0.6.1, which imports nothing of mmrl."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from lerobot.configs import FeatureType, NormalizationMode, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy, ACTTemporalEnsembler
from lerobot.policies.factory import make_pre_post_processors
from safetensors.torch import load_file, save_file

from diffusion_of_lerobot import statistics

CALLS, CHUNK, DIMS, STATE, ENVIRONMENT, LATENT = 3, 5, 3, 4, 2, 4
SMALL = {"chunk_size": CHUNK, "n_action_steps": 2, "dim_model": 16, "n_heads": 2, "dim_feedforward": 24, "latent_dim": LATENT}
SMALL |= {"n_encoder_layers": 2, "n_vae_encoder_layers": 2, "kl_weight": 3.0, "pretrained_backbone_weights": None}
SMALL |= {"device": "cpu", "push_to_hub": False}
SHAPES = {"front": (48, 56), "wrist": (40, 72)}
"""Height and width of a camera's pictures."""


def make(place: str, text: str) -> None:
    """Save a policy, and what it sees, does and learns from. text: its configuration in JSON; "statistics" is the normalisation,
    "cameras" the keys of its pictures, "states" those of its states, "rename" LeRobot's map of renamed keys."""
    folder, options = Path(place), json.loads(text)
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(1)
    norms, renamed = options.pop("statistics", {}), options.pop("rename", {})
    cameras = options.pop("cameras", ["observation.images.front", "observation.images.wrist"])
    states = options.pop("states", ["observation.state"])
    config = ACTConfig(**{**SMALL, **options})
    shapes = {key: SHAPES[key.rpartition(".")[2]] for key in cameras}
    kinds = {"observation.state": (FeatureType.STATE, STATE), "observation.environment_state": (FeatureType.ENV, ENVIRONMENT)}
    config.input_features = {key: PolicyFeature(type=FeatureType.VISUAL, shape=(3, *shape)) for key, shape in shapes.items()}
    config.input_features |= {key: PolicyFeature(type=kinds[key][0], shape=(kinds[key][1],)) for key in states}
    config.output_features = {"action": PolicyFeature(type=FeatureType.ACTION, shape=(DIMS,))}
    config.normalization_mapping |= {kind: NormalizationMode(norm) for kind, norm in norms.items()}
    policy = ACTPolicy(config).eval()
    for name, buffer in policy.named_buffers():
        if "bn" in name or "downsample" in name:
            buffer.add_(0.3 * torch.rand(buffer.shape, generator=draw))
    pre, post = make_pre_post_processors(config, dataset_stats=statistics(draw, cameras))
    pre.steps[0].rename_map = renamed
    policy.save_pretrained(folder)
    pre.save_pretrained(folder)
    post.save_pretrained(folder)
    back = {new: old for old, new in renamed.items()}
    seen = {
        back.get(key, key): torch.randint(0, 256, (CALLS, *shape, 3), dtype=torch.uint8, generator=draw)
        for key, shape in shapes.items()
    }
    seen |= {key: torch.randn(CALLS, kinds[key][1], generator=draw) for key in states}
    seen["action"] = torch.randn(CALLS, CHUNK, DIMS, generator=draw)
    seen["action_is_pad"] = torch.arange(CHUNK) >= torch.tensor([[CHUNK], [2], [4]])
    seen["noise"] = torch.randn(CALLS, LATENT, generator=draw)
    save_file(seen, folder / "seen.safetensors")
    act(place, str(folder / "seen.safetensors"))


def act(folder: str, place: str) -> None:
    """Write beside `place`, a file with what is seen and demonstrated, what the policy in the folder does there, its losses
    without dropout, given the noise of the latents, and their gradients."""
    policy = ACTPolicy.from_pretrained(folder).float().eval()
    pre, post = make_pre_post_processors(policy.config, pretrained_path=folder)
    seen = load_file(place)
    noise = seen.pop("noise")
    batch: dict[str, Any] = {
        key: value.movedim(-1, 1).float() / 255 if value.dtype == torch.uint8 else value for key, value in seen.items()
    }
    batch = pre(batch)
    batch.setdefault("observation.state", torch.zeros(len(noise), 1))  # LeRobot asks for its device
    actions = policy.predict_action_chunk(batch)
    found = {"normalised": actions, "actions": torch.stack([post(one) for one in actions.unbind(1)], 1)}
    policy.train()
    for module in policy.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        elif isinstance(module, torch.nn.MultiheadAttention):
            module.dropout = 0.0
    plain, torch.randn_like = torch.randn_like, lambda mean: noise
    try:
        loss, parts = policy(batch)
    finally:
        torch.randn_like = plain
    loss.backward()
    found |= {"loss": loss.detach(), **{name: torch.tensor(value) for name, value in parts.items()}}
    found |= {
        f"gradient of {name}": weight.grad
        for name, weight in policy.named_parameters()
        if weight.grad is not None and ("backbone" not in name or "conv1" in name)
    }
    save_file({name: value.contiguous() for name, value in found.items()}, Path(place).with_name("computed.safetensors"))


def ensemble(place: str, coefficient: str) -> None:
    """Write into the file `place`, which has what was predicted at each step [T, n, C, D], the actions [T, n, D]."""
    predicted = load_file(place)["predicted"]
    mean = ACTTemporalEnsembler(float(coefficient), predicted.shape[2])
    save_file({"predicted": predicted, "actions": torch.stack([mean.update(one) for one in predicted])}, place)
