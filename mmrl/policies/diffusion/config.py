"""The configuration of a Diffusion Policy: LeRobot's config.json."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, get_type_hints

from mmrl.api.errors import UserError
from mmrl.policies.acting.lerobot_processors import ACTION, STATE

ENVIRONMENT = "observation.environment_state"
FIXED: dict[str, Any] = {"compile_model": False, "use_peft": False}
"""Fields that have one value in what can be read here; another is refused."""
CHOICES: dict[str, tuple[Any, ...]] = {
    "vision_backbone": ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152"),
    "noise_scheduler_type": ("DDPM", "DDIM"),
    "prediction_type": ("epsilon", "sample"),
    "beta_schedule": ("squaredcos_cap_v2", "linear", "scaled_linear"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DiffusionConfig:
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
    input_features: Mapping[str, Any] = field(default_factory=dict)
    output_features: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cameras(self) -> list[str]:
        """The keys of the pictures that it was trained with, in their order."""
        return [key for key, value in self.input_features.items() if value.get("type") == "VISUAL"]

    @property
    def picture_shape(self) -> tuple[int, int]:
        """Height and width of a picture before it is resized or cropped; those of all cameras are equal."""
        return tuple(self.input_features[self.cameras[0]]["shape"][1:])

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

    def numbers(self, key: str) -> int:
        """Numbers of a state or of an action; 0 where config.json doesn't say."""
        shape = {**self.input_features, **self.output_features}.get(key, {}).get("shape") or [0]
        return int(shape[0])


def read_config(table: Mapping[str, Any]) -> DiffusionConfig:
    """The configuration in a config.json of LeRobot's. Raises UserError for a field that can't be meant or can't be read here."""
    for name, value in FIXED.items():
        if table.get(name, value) != value:
            raise UserError(f"config.json: {name} = {table[name]!r:.60}, and only {value!r} can be read")
    hints, found = get_type_hints(DiffusionConfig), dict[str, Any]()
    for name in (one.name for one in fields(DiffusionConfig) if one.name in table):
        value = tuple(table[name]) if isinstance(table[name], list) else table[name]
        if name in CHOICES and value not in CHOICES[name]:
            raise UserError(f"config.json: {name} = {value!r:.60} is not one of {', '.join(CHOICES[name])}")
        if not _fits(value, str(hints[name]) if not isinstance(hints[name], type) else hints[name].__name__):
            raise UserError(f"config.json: {name} = {value!r:.60} is not what a Diffusion Policy's must be")
        found[name] = value
    config = DiffusionConfig(**found)
    _check_sizes(config)
    _check_features(config)
    return config


def _fits(value: Any, wanted: str) -> bool:
    if value is None:
        return "None" in wanted
    if wanted.startswith("tuple"):
        sides = isinstance(value, tuple) and all(type(side) is int and side > 0 for side in value)
        return sides and (len(value) == 2 or ("..." in wanted and len(value) > 0))
    if "Mapping" in wanted:
        return isinstance(value, Mapping) and all(isinstance(part, Mapping) for part in value.values())
    if wanted == "float":
        return type(value) in (int, float)
    return type(value).__name__ == wanted.split(" ")[0]


def _check_sizes(config: DiffusionConfig) -> None:
    """Raise UserError for sizes with which the network can't be built, or LeRobot can't act."""
    named = ("n_obs_steps", "horizon", "n_action_steps", "spatial_softmax_num_keypoints", "kernel_size", "n_groups", "steps")
    for name in (*named, "num_train_timesteps"):
        if getattr(config, name) < 1:
            raise UserError(f"config.json: {name} = {getattr(config, name)} must be above 0")
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


def _check_features(config: DiffusionConfig) -> None:
    """Raise UserError for observations that LeRobot's class can't have."""
    every = {**config.input_features, **config.output_features}
    for key, value in every.items():
        shape, length = value.get("shape"), 3 if value.get("type") == "VISUAL" else 1
        if not isinstance(shape, list | tuple) or len(shape) != length or not all(type(n) is int and n > 0 for n in shape):
            raise UserError(f"config.json: the shape of {key} is {shape!r:.40}, and must have {length} numbers above 0")
    for key in (STATE, ACTION):
        if not config.numbers(key):
            raise UserError(f"config.json: it has no {key}, which a Diffusion Policy reads or makes")
    if not config.cameras and not config.numbers(ENVIRONMENT):
        raise UserError(f"config.json: it has neither a picture nor {ENVIRONMENT}")
    shapes = {tuple(config.input_features[key]["shape"]) for key in config.cameras}
    if len(shapes) > 1 or any(shape[0] != 3 for shape in shapes):
        raise UserError(f"config.json: its pictures have the shapes {sorted(shapes)}, and must all have one, of 3 colours")
    whole = config.crop_shape is None or config.resize_shape is not None or not config.cameras
    if not whole and any(want > have for want, have in zip(config.crop_shape or (), config.picture_shape, strict=True)):
        raise UserError(f"config.json: crop_shape = {config.crop_shape} is larger than a picture, {config.picture_shape}")
