"""A small but real ACT with random weights.

`tiny:act` in a run file builds the default size, `tiny:act:width=32,chunk=8,layers=1,latent=8,pictures=1` says it in full. Its
encoder of pictures is a whole ResNet-18, the smallest one that LeRobot loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmrl.api.errors import UserError
from mmrl.policies.act.config import ACTConfig, read_config
from mmrl.policies.acting.lerobot_config import ENVIRONMENT
from mmrl.policies.acting.lerobot_processors import ACTION, STATE
from mmrl.policies.names import Size, TinyNames

FAMILY = "act"
SIZES = {
    "width": Size(32, 8, 1024, step=8),
    "chunk": Size(8, 1, 256),
    "layers": Size(1, 1, 16),
    "latent": Size(8, 0, 256),
    "pictures": Size(1, 0, 1),
}
"""Width of the transformer; predicted actions; layers of each of its three parts; numbers of the latent, 0 for no VAE; 0 for a
policy that reads the state alone."""
NAMES = TinyNames(family=FAMILY, called="ACT", sizes=SIZES, others="a folder of one")
parse = NAMES.parse
SIDE = 64
"""Pixels of a picture."""


def config(name: str, cameras: Sequence[str], state: int, dims: int) -> tuple[ACTConfig, dict[str, Any]]:
    """(its configuration, the same as a table). cameras: LeRobot's keys. state: numbers of the simulator's state; without
    pictures the second half of them is the environment's, as LeRobot's class reads pictures or these. Raises UserError for a
    state that has too few."""
    sizes = parse(name, 0)
    if not sizes["pictures"] and state < 1:
        raise UserError(f"policy.options.state = {state}: {name} reads the state alone: set it to the size of the simulator's")
    inputs: dict[str, Any] = {}
    if sizes["pictures"]:
        inputs = {key: {"type": "VISUAL", "shape": [3, SIDE, SIDE]} for key in cameras}
    robot = state if sizes["pictures"] else state // 2
    if robot:
        inputs[STATE] = {"type": "STATE", "shape": [robot]}
    if state > robot:
        inputs[ENVIRONMENT] = {"type": "ENV", "shape": [state - robot]}
    table = {
        "type": FAMILY,
        "chunk_size": sizes["chunk"],
        "n_action_steps": min(8, sizes["chunk"]),
        "input_features": inputs,
        "output_features": {ACTION: {"type": "ACTION", "shape": [dims]}},
        "pretrained_backbone_weights": None,
        "dim_model": sizes["width"],
        "n_heads": 4,
        "dim_feedforward": 4 * sizes["width"],
        "n_encoder_layers": sizes["layers"],
        "n_decoder_layers": sizes["layers"],
        "n_vae_encoder_layers": sizes["layers"],
        "use_vae": sizes["latent"] > 0,
        "latent_dim": sizes["latent"] or 8,
    }
    return read_config(table), table
