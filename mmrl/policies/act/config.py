"""The configuration of an ACT: LeRobot's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrl.api.errors import UserError
from mmrl.policies.acting.lerobot_config import RESNETS, Features, check_features, check_positive, read_fields
from mmrl.policies.acting.lerobot_processors import ACTION

CALLED = "an ACT"
DILATED = "replace_final_stride_with_dilation"
CHOICES: dict[str, tuple[Any, ...]] = {
    "vision_backbone": RESNETS,
    "feedforward_activation": ("relu", "gelu"),
    "n_obs_steps": (1,),
}
"""LeRobot names `glu` too, whose network can't run: it halves a width that the next layer reads whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ACTConfig(Features):
    """The fields of config.json that say what the network computes and learns, with LeRobot's defaults (lerobot 0.6.1,
    configuration_act.py)."""

    n_obs_steps: int = 1
    chunk_size: int = 100
    """C: actions that the network predicts."""
    n_action_steps: int = 100
    """Those of them that LeRobot carries out."""
    vision_backbone: str = "resnet18"
    replace_final_stride_with_dilation: bool = False
    pre_norm: bool = False
    dim_model: int = 512
    n_heads: int = 8
    dim_feedforward: int = 3200
    feedforward_activation: str = "relu"
    n_encoder_layers: int = 4
    n_decoder_layers: int = 1
    use_vae: bool = True
    latent_dim: int = 32
    """Z."""
    n_vae_encoder_layers: int = 4
    temporal_ensemble_coeff: float | None = None
    dropout: float = 0.1
    kl_weight: float = 10.0

    def tokens(self, vae: bool) -> int:
        """Tokens of a call: those of the pictures, of the states and of the latent, and the actions; and the VAE's."""
        shrunk = 16 if self.replace_final_stride_with_dilation else 32
        seen = sum(-(-height // shrunk) * -(-width // shrunk) for height, width in map(self.shape_of, self.cameras))
        return seen + 3 + self.chunk_size + (self.chunk_size + 2 if vae and self.use_vae else 0)


def read_config(table: Mapping[str, Any]) -> ACTConfig:
    """The configuration in a config.json of LeRobot's. Raises UserError for a field that can't be meant or can't be read here."""
    if table.get(DILATED) in (0, 1):  # LeRobot declares it as a whole number
        table = {**table, DILATED: bool(table[DILATED])}
    config = read_fields(ACTConfig, table, CALLED, CHOICES)
    check_positive(config, "chunk_size", "n_action_steps", "dim_model", "n_heads", "dim_feedforward", "latent_dim")
    check_positive(config, "n_encoder_layers", "n_decoder_layers", "n_vae_encoder_layers")
    if config.n_action_steps > config.chunk_size:
        raise UserError(f"config.json: n_action_steps = {config.n_action_steps} is above chunk_size = {config.chunk_size}")
    if config.temporal_ensemble_coeff is not None and config.n_action_steps > 1:
        raise UserError(
            f"config.json: n_action_steps = {config.n_action_steps}, and temporal_ensemble_coeff needs a call at each step: 1"
        )
    if config.dim_model % config.n_heads or config.dim_model % 4:
        raise UserError(f"config.json: dim_model = {config.dim_model} must be a multiple of 4 and of n_heads = {config.n_heads}")
    if not 0 <= config.dropout < 1 or config.kl_weight < 0:
        raise UserError(
            f"config.json: dropout = {config.dropout} must be from 0 to below 1, and kl_weight = {config.kl_weight} at least 0"
        )
    if config.replace_final_stride_with_dilation and config.vision_backbone in ("resnet18", "resnet34"):
        raise UserError(f"config.json: {DILATED} is for resnet50 and larger, and vision_backbone = {config.vision_backbone!r}")
    check_features(config, CALLED, needed=(ACTION,))
    return config
