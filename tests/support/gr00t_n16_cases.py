"""A small GR00T N1.6 whose weights and inputs follow from their names, so that golden values need no file of weights. It imports
nothing of mmrl: `golden_gr00t_n16.py` runs it beside the published code."""

from __future__ import annotations

import zlib
from typing import Any

import torch

CALLS, AHEAD, NUMBERS = 2, 7, 6
IMAGE = 60
"""The token of a picture in the small vocabulary."""
TEXTS = ("Pick up the RED cube, please!", "push it")
EMBODIMENT, NUMBER = "libero_panda", 2
HEAD: dict[str, Any] = {
    **{"backbone_embedding_dim": 16, "input_embedding_dim": 24, "hidden_size": 20, "max_state_dim": 9, "max_action_dim": NUMBERS},
    **{"action_horizon": AHEAD, "max_num_embodiments": 3, "max_seq_len": 32, "select_layer": 3, "state_dropout_prob": 0.1},
    "diffusion_model_cfg": {
        **{"positional_embeddings": None, "num_layers": 6, "num_attention_heads": 3, "attention_head_dim": 8},
        **{"norm_type": "ada_norm", "dropout": 0.2, "final_dropout": True, "output_dim": 20, "interleave_self_attention": True},
    },
}
TEXT_SIZES = {
    **{"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 5, "num_attention_heads": 2, "num_key_value_heads": 1},
    **{"head_dim": 8, "vocab_size": 64},
}
VISION_SIZES = {
    **{"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 3, "num_patches": 16}
}
SETTINGS: dict[str, dict[str, Any]] = {
    "area": {"use_albumentations": True, "shortest_image_edge": 96, "crop_fraction": 0.95},
    "bilinear": {"use_albumentations": False, "image_target_size": [96, 96], "image_crop_size": [89, 89]},
}
"""Of a processor_config.json: its two ways with pictures."""
SIZES = {"area": (100, 131), "bilinear": (120, 90)}
CAMERAS = ("image", "wrist_image")


def filled(name: str, *shape: int) -> torch.Tensor:
    """float32, evenly spread over -1 to 1, by a hash of the name and the place."""
    places = torch.arange(torch.Size(shape).numel(), dtype=torch.float64)
    noise = torch.sin(places * 12.9898 + zlib.crc32(name.encode()) % 4096) * 43758.5453
    return ((noise - noise.floor()) * 2 - 1).float().view(shape)


def weight(name: str, shape: torch.Size) -> torch.Tensor:
    """The weight of this published name."""
    found = filled(name, *shape) * 0.5
    return 1 + 0.4 * found if "norm" in name and name.endswith("weight") and len(shape) == 1 else found


def pictures(way: str, camera: str) -> torch.Tensor:
    """uint8 [calls, H, W, 3]: smooth, with some noise."""
    height, width = SIZES[way]
    noise = filled(f"{way}.{camera}", CALLS, height, width, 3)
    y, x = torch.arange(height)[:, None, None], torch.arange(width)[None, :, None]
    wave = torch.sin(y * 0.11 + x * 0.07 + torch.arange(3) + CAMERAS.index(camera))
    return ((wave + 0.5 * noise) * 70 + 128).clamp(0, 255).to(torch.uint8)


def states() -> torch.Tensor:
    """float32 [calls, 4]: three joints and a gripper."""
    return filled("states", CALLS, 4)


def tables() -> tuple[dict[str, Any], dict[str, Any]]:
    """(modality configuration, statistics) of the robot: joints are shown by sines and cosines and moved relative to where they
    are; the gripper's last ends are equal."""

    def ends(name: str, *shape: int) -> dict[str, Any]:
        middle, half = filled(name, *shape), filled(f"{name}.half", *shape).abs() + 0.5
        found = {"min": middle - half, "max": middle + half, "mean": middle, "std": half / 2}
        return {key: one.tolist() for key, one in (found | {"q01": middle - 0.9 * half, "q99": middle + 0.8 * half}).items()}

    forms = [
        {"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT", "state_key": "joints"},
        {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None},
    ]
    config: dict[str, Any] = {
        "video": {"delta_indices": [0], "modality_keys": list(CAMERAS)},
        "state": {"delta_indices": [0], "modality_keys": ["joints", "gripper"], "sin_cos_embedding_keys": ["joints"]},
        "action": {"delta_indices": [0, 1, 2, 3, 4], "modality_keys": ["joints", "gripper"], "action_configs": forms},
        "language": {"delta_indices": [0], "modality_keys": ["annotation.human.action.task_description"]},
    }
    statistics = {
        "state": {"joints": ends("state.joints", 3), "gripper": ends("state.gripper", 1)},
        "action": {"joints": ends("action.joints", 3), "gripper": ends("action.gripper", 1)},
        "relative_action": {"joints": ends("relative", 5, 3)},
    }
    return config, statistics


KWARGS: dict[str, Any] = {
    **{"clip_outliers": True, "formalize_language": True, "use_percentiles": True, "apply_sincos_state_encoding": True},
    **{"use_relative_action": True, "max_state_dim": 9, "max_action_dim": NUMBERS, "max_action_horizon": AHEAD},
    **{"image_crop_size": None, "image_target_size": None, "shortest_image_edge": None, "crop_fraction": None},
}
