"""A small but real Diffusion Policy with random weights.

`tiny:diffusion` in a run file builds the default size, `tiny:diffusion:width=32,horizon=16,moments=2,times=10,pictures=1` says it
in full. Its encoder of pictures is a whole ResNet-18, the smallest one that LeRobot loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmrl.api.errors import UserError
from mmrl.policies.acting.lerobot_config import ENVIRONMENT
from mmrl.policies.acting.lerobot_processors import ACTION, STATE
from mmrl.policies.diffusion.config import DiffusionConfig, read_config
from mmrl.policies.names import tiny_sizes

FAMILY = "diffusion"
SIZES = {"width": 32, "horizon": 16, "moments": 2, "times": 10, "pictures": 1}
"""Width of the U-Net's first stage; predicted actions; moments that are seen; times of the noise; 0 for a policy that reads the
state alone."""
SIDE = 64
"""Pixels of a picture: of 32 a ResNet leaves a single place, which says nothing."""


def parse(name: str, seed: int) -> dict[str, int]:
    """`tiny:diffusion[:key=value,...]` -> its sizes and seed. Raises UserError for an unknown or invalid part."""
    if name.split(":")[1] != FAMILY:
        raise UserError(f"{name!r} is no Diffusion Policy: write tiny:{FAMILY}, or a folder of one", key="policy.model")
    _, sizes = tiny_sizes(name, SIZES, seed)
    width, horizon, moments, times, pictures = (sizes[key] for key in SIZES)
    if width % 8 or not 8 <= width <= 1024 or horizon % 4 or not 4 <= horizon <= 256 or pictures > 1:
        raise UserError(
            f"{name!r}: width must be a multiple of 8 from 8 to 1024, horizon one of 4 from 4 to 256, pictures 0 or 1: change "
            "them",
            key="policy.model",
        )
    if not 1 <= moments <= min(horizon, 16) or not 1 <= times <= 1000:
        raise UserError(
            f"{name!r}: moments must be from 1 to 16 and to horizon, times from 1 to 1000: change them", key="policy.model"
        )
    return sizes


def config(name: str, cameras: Sequence[str], state: int, dims: int) -> tuple[DiffusionConfig, dict[str, Any]]:
    """(its configuration, the same as a table). cameras: LeRobot's keys. state: numbers of the simulator's state; without
    pictures the second half of them is the environment's, as LeRobot's class reads pictures or these. Raises UserError for a
    state that has too few."""
    sizes = parse(name, 0)
    if state < (1 if sizes["pictures"] else 2):
        raise UserError(
            f"policy.options.state = {state}: a Diffusion Policy reads the state: set it to the size of the simulator's"
        )
    inputs: dict[str, Any] = {}
    if sizes["pictures"]:
        inputs = {key: {"type": "VISUAL", "shape": [3, SIDE, SIDE]} for key in cameras}
        inputs[STATE] = {"type": "STATE", "shape": [state]}
    else:
        inputs[STATE] = {"type": "STATE", "shape": [state - state // 2]}
        inputs[ENVIRONMENT] = {"type": "ENV", "shape": [state // 2]}
    width = sizes["width"]
    table = {
        "type": FAMILY,
        "n_obs_steps": sizes["moments"],
        "horizon": sizes["horizon"],
        "n_action_steps": min(8, sizes["horizon"] - sizes["moments"] + 1),
        "input_features": inputs,
        "output_features": {ACTION: {"type": "ACTION", "shape": [dims]}},
        "resize_shape": [SIDE, SIDE],
        "pretrained_backbone_weights": None,
        "use_group_norm": True,
        "spatial_softmax_num_keypoints": 8,
        "down_dims": [width, 2 * width],
        "diffusion_step_embed_dim": 16,
        "num_train_timesteps": sizes["times"],
    }
    return read_config(table), table
