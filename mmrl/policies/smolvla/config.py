"""The configuration of a SmolVLA: LeRobot's config.json, and that of the vision-language model that it names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mmrl.api.errors import UserError

BACKBONE = "HuggingFaceTB/SmolVLM2-500M-Video-Instruct"
FIXED: dict[str, Any] = {"adapt_to_pi_aloha": False, "use_delta_joint_actions_aloha": False, "use_peft": False, "n_obs_steps": 1}
"""Fields that have one value in what can be read here; another is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SmolVLAConfig:
    """The fields of config.json that say what the network computes, with LeRobot's defaults (lerobot 0.6.1,
    configuration_smolvla.py)."""

    chunk_size: int = 50
    """C: actions that the network predicts."""
    n_action_steps: int = 50
    """Those of them that LeRobot carries out."""
    max_state_dim: int = 32
    max_action_dim: int = 32
    """D."""
    resize_imgs_with_padding: tuple[int, int] = (512, 512)
    """Pixels: width and height."""
    empty_cameras: int = 0
    tokenizer_max_length: int = 48
    num_steps: int = 10
    vlm_model_name: str = BACKBONE
    add_image_special_tokens: bool = False
    attention_mode: str = "cross_attn"
    num_expert_layers: int = -1
    """As many as the language model's where it isn't above 0."""
    num_vlm_layers: int = 16
    """The first ones are kept; all where it isn't above 0."""
    self_attn_every_n_layers: int = 2
    expert_width_multiplier: float = 0.75
    min_period: float = 4e-3
    max_period: float = 4.0
    input_features: Mapping[str, Any] = field(default_factory=dict)
    output_features: Mapping[str, Any] = field(default_factory=dict)

    @property
    def cameras(self) -> list[str]:
        """The keys of the pictures that it was trained with, in their order; without those that are always empty."""
        return [
            key
            for key, value in self.input_features.items()
            if value.get("type") == "VISUAL" and not key.startswith("observation.images.empty_camera_")
        ]

    def numbers(self, key: str) -> int:
        """Numbers of `observation.state` or of `action`; 0 where config.json doesn't say."""
        shape = {**self.input_features, **self.output_features}.get(key, {}).get("shape") or [0]
        return int(shape[0])


def read_config(table: Mapping[str, Any]) -> SmolVLAConfig:
    """The configuration in a config.json of LeRobot's. Raises UserError for a field that can't be meant or can't be read here."""
    for name, value in FIXED.items():
        if table.get(name, value) != value:
            raise UserError(f"config.json: {name} = {table[name]!r:.60}, and only {value!r} can be read")
    found: dict[str, Any] = {}
    for one in fields(SmolVLAConfig):
        if one.name not in table:
            continue
        value = table[one.name]
        wanted = one.type
        if wanted == "tuple[int, int]":
            value = tuple(value) if isinstance(value, list | tuple) else value
            good = isinstance(value, tuple) and len(value) == 2 and all(type(side) is int and side > 0 for side in value)
        elif wanted == "Mapping[str, Any]":
            value = value or {}
            good = isinstance(value, Mapping) and all(isinstance(part, Mapping) for part in value.values())
        else:
            kinds = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}[str(wanted)]
            good = type(value) in kinds
        if not good:
            raise UserError(f"config.json: {one.name} = {value!r:.60} is not what a SmolVLA's must be")
        found[one.name] = value
    config = SmolVLAConfig(**found)
    for name in ("chunk_size", "n_action_steps", "max_state_dim", "max_action_dim", "tokenizer_max_length", "num_steps"):
        if getattr(config, name) < 1:
            raise UserError(f"config.json: {name} = {getattr(config, name)} must be above 0")
    return config


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerKind:
    """A layer of the language model, and what the expert does there."""

    expert: int | None
    """Index of the expert's layer; None: the expert's tokens pass."""
    crosses: bool
    """Whether the expert's tokens look at the prefix alone, and not at each other."""


def layers_of(config: SmolVLAConfig, depth: int) -> list[LayerKind]:
    """One for each layer of the language model. depth: layers that the whole language model has. Raises UserError for an
    arrangement with which LeRobot can't act."""
    count = min(config.num_vlm_layers, depth) if config.num_vlm_layers > 0 else depth
    experts = config.num_expert_layers if config.num_expert_layers > 0 else count
    every = config.self_attn_every_n_layers
    crossing = "cross" in config.attention_mode

    def crosses(index: int) -> bool:
        return crossing and not (every > 0 and index % every == 0)

    if not count or count % experts:
        raise UserError(f"config.json: num_expert_layers = {experts} doesn't divide the language model's {count} layers")
    apart = count // experts
    found = [LayerKind(expert=None if i % apart else i // apart, crosses=crosses(i)) for i in range(count)]
    for i, layer in enumerate(found):
        # LeRobot makes an expert's layer by its own index, and runs it by that of the language model's
        if (layer.expert is None and not layer.crosses) or (layer.expert is not None and crosses(layer.expert) != layer.crosses):
            raise UserError(
                f"config.json: with num_expert_layers = {experts} and self_attn_every_n_layers = {every} the expert can't "
                f"attend to itself in layer {i} of {count}: take as many layers of both, or none of self-attention"
            )
    return found


def check_backbone(config: SmolVLAConfig, backbone: Any) -> None:
    """Raise UserError for a vision-language model that this SmolVLA can't have. backbone: transformers' configuration of it."""
    if backbone.model_type != "smolvlm" or backbone.text_config.model_type != "llama":
        kind = backbone.model_type if backbone.model_type != "smolvlm" else backbone.text_config.model_type
        raise UserError(f"its vision-language model is a {kind}, not a SmolVLM over a Llama")
    layers_of(config, backbone.text_config.num_hidden_layers)
    wide, high = config.resize_imgs_with_padding
    step = backbone.vision_config.patch_size * backbone.scale_factor
    if wide != high or wide % step:
        raise UserError(
            f"config.json: resize_imgs_with_padding = {[wide, high]} must be a square whose side is a multiple of {step}: "
            f"{backbone.scale_factor} x {backbone.scale_factor} patches make a token"
        )
    if expert_width(config, backbone.text_config) % 2:
        raise UserError(f"config.json: expert_width_multiplier = {config.expert_width_multiplier} gives an odd width")


def expert_width(config: SmolVLAConfig, text: Any) -> int:
    """H: the expert's width."""
    return int(text.hidden_size * config.expert_width_multiplier)


def picture_tokens(config: SmolVLAConfig, backbone: Any) -> int:
    """Tokens of a picture, without the special ones around it."""
    return int((config.resize_imgs_with_padding[0] // (backbone.vision_config.patch_size * backbone.scale_factor)) ** 2)
