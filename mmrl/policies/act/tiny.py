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
from mmrl.policies.names import tiny_sizes

FAMILY = "act"
SIZES = {"width": 32, "chunk": 8, "layers": 1, "latent": 8, "pictures": 1}
"""Width of the transformer; predicted actions; layers of each of its three parts; numbers of the latent, 0 for no VAE; 0 for a
policy that reads the state alone."""
SIDE = 64
"""Pixels of a picture."""


def parse(name: str, seed: int) -> dict[str, int]:
    """`tiny:act[:key=value,...]` -> its sizes and seed. Raises UserError for an unknown or invalid part."""
    if name.split(":")[1] != FAMILY:
        raise UserError(f"{name!r} is no ACT: write tiny:{FAMILY}, or a folder of one", key="policy.model")
    _, sizes = tiny_sizes(name, SIZES, seed)
    width, chunk, layers, latent, pictures = (sizes[key] for key in SIZES)
    if width % 8 or not 8 <= width <= 1024 or not 1 <= chunk <= 256 or not 1 <= layers <= 16 or latent > 256 or pictures > 1:
        raise UserError(
            f"{name!r}: width must be a multiple of 8 from 8 to 1024, chunk from 1 to 256, layers from 1 to 16, latent from 0 to "
            "256, pictures 0 or 1: change them",
            key="policy.model",
        )
    return sizes


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
