"""The configuration of a Diffusion Policy: LeRobot's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrl.api.errors import UserError
from mmrl.policies.acting.lerobot_config import RESNETS, Features, check_features, check_positive, read_fields

CALLED = "a Diffusion Policy"
CHOICES: dict[str, tuple[Any, ...]] = {
    "vision_backbone": RESNETS,
    "noise_scheduler_type": ("DDPM", "DDIM"),
    "prediction_type": ("epsilon", "sample"),
    "beta_schedule": ("squaredcos_cap_v2", "linear", "scaled_linear"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionConfig(Features):
    """The fields of config.json that say what the network computes, with LeRobot's defaults (lerobot 0.6.1,
    configuration_diffusion.py)."""

    n_obs_steps: int = 2
    """O: moments of an episode that are seen, the present one last."""
    horizon: int = 64
    """C: actions that the network predicts, from that of the first moment that is seen."""
    n_action_steps: int = 32
    """Those of them that LeRobot carries out, from the present one."""
    vision_backbone: str = "resnet18"
    resize_shape: tuple[int, int] | None = None
    """Pixels: height and width, as of `crop_shape`."""
    crop_ratio: float = 1.0
    crop_shape: tuple[int, int] | None = None
    use_group_norm: bool = False
    spatial_softmax_num_keypoints: int = 32
    use_separate_rgb_encoder_per_camera: bool = True
    down_dims: tuple[int, ...] = (512, 1024, 2048)
    kernel_size: int = 5
    n_groups: int = 8
    diffusion_step_embed_dim: int = 128
    use_film_scale_modulation: bool = True
    noise_scheduler_type: str = "DDPM"
    num_train_timesteps: int = 100
    """T."""
    beta_schedule: str = "squaredcos_cap_v2"
    beta_start: float = 0.0001
    beta_end: float = 0.02
    prediction_type: str = "epsilon"
    clip_sample: bool = True
    clip_sample_range: float = 1.0
    num_inference_steps: int | None = None

    @property
    def picture_shape(self) -> tuple[int, int]:
        """Height and width of a picture before it is resized or cropped; those of all cameras are equal."""
        return self.shape_of(self.cameras[0])

    @property
    def crop(self) -> tuple[int, int] | None:
        """Height and width of a picture's middle that is kept."""
        if self.resize_shape is None:
            return self.crop_shape
        height, width = (int(side * self.crop_ratio) for side in self.resize_shape)
        return (height, width) if self.crop_ratio < 1 else None

    @property
    def steps(self) -> int:
        """Steps from noise to actions."""
        return self.num_inference_steps or self.num_train_timesteps


def read_config(table: Mapping[str, Any]) -> DiffusionConfig:
    """The configuration in a config.json of LeRobot's. Raises UserError for a field that can't be meant or can't be read here."""
    config = read_fields(DiffusionConfig, table, CALLED, CHOICES)
    _check_sizes(config)
    check_features(config, CALLED)
    _check_pictures(config)
    return config


def _check_sizes(config: DiffusionConfig) -> None:
    """Raise UserError for sizes with which the network can't be built, or LeRobot can't act."""
    named = ("n_obs_steps", "horizon", "n_action_steps", "spatial_softmax_num_keypoints", "kernel_size", "n_groups", "steps")
    check_positive(config, *named, "num_train_timesteps")
    if config.steps > config.num_train_timesteps:
        raise UserError(
            f"config.json: num_inference_steps = {config.steps} is above num_train_timesteps = {config.num_train_timesteps}"
        )
    if config.horizon % 2 ** len(config.down_dims):
        raise UserError(
            f"config.json: horizon = {config.horizon} must be a multiple of {2 ** len(config.down_dims)}, as there are "
            f"{len(config.down_dims)} down_dims"
        )
    if (most := config.horizon - config.n_obs_steps + 1) < config.n_action_steps:
        raise UserError(f"config.json: n_action_steps = {config.n_action_steps} is above horizon - n_obs_steps + 1 = {most}")
    if any(width % config.n_groups for width in config.down_dims) or not config.kernel_size % 2:
        raise UserError("config.json: down_dims must be multiples of n_groups, and kernel_size must be odd")
    if config.diffusion_step_embed_dim < 4 or config.diffusion_step_embed_dim % 2:
        raise UserError(f"config.json: diffusion_step_embed_dim = {config.diffusion_step_embed_dim} must be even, from 4")


def _check_pictures(config: DiffusionConfig) -> None:
    """Raise UserError for pictures of several shapes, or smaller than what is kept of them."""
    shapes = {config.shape_of(key) for key in config.cameras}
    if len(shapes) > 1:
        raise UserError(f"config.json: its pictures have the shapes {sorted(shapes)}, and must all have one")
    for shape in shapes if config.crop_shape is not None and config.resize_shape is None else ():
        if any(want > have for want, have in zip(config.crop_shape or (), shape, strict=True)):
            raise UserError(f"config.json: crop_shape = {config.crop_shape} is larger than a picture, {shape}")
