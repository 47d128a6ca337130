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
from mmrl.policies.names import Size, TinyNames

FAMILY = "diffusion"
SIZES = {
    "width": Size(32, 8, 1024, step=8),
    "horizon": Size(16, 4, 256, step=4),
    "moments": Size(2, 1, 16),
    "times": Size(10, 1, 1000),
    "pictures": Size(1, 0, 1),
}
"""Width of the U-Net's first stage; predicted actions; moments that are seen; times of the noise; 0 for a policy that reads the
state alone."""
NAMES = TinyNames(family=FAMILY, called="Diffusion Policy", sizes=SIZES, others="a folder of one")
SIDE = 64
"""Pixels of a picture: of 32 a ResNet leaves a single place, which says nothing."""


def parse(name: str, seed: int) -> dict[str, int]:
    """See `TinyNames.parse`."""
    sizes = NAMES.parse(name, seed)
    if sizes["moments"] > sizes["horizon"]:
        raise UserError(f"{name!r}: moments must be from 1 to horizon: change them", key="policy.model")
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
