"""The configuration of an X-VLA: config.json as LeRobot writes it, or as X-VLA's authors do, and Florence-2's within it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mmrl.api.errors import UserError
from mmrl.policies.acting.lerobot_config import Features, check_positive, read_fields
from mmrl.policies.xvla.spaces import MODES

CALLED = "an X-VLA"
FIXED: dict[str, Any] = {"n_obs_steps": 1, "pad_language_to": "max_length", "tokenizer_padding_side": "right"}
"""Fields that have one value in what can be read here; another is refused. The network sees the padding of a text, so that its
length must not depend on a batch."""
EMPTY = "observation.images.empty_camera_"
SIDE, VIEWS, WORDS = 224, 3, 50
"""Of the authors' processor: pixels of a picture's sides, pictures, and tokens of a text (2toINF/X-VLA,
models/processing_xvla.py)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class XVLAConfig(Features):
    """The fields of config.json that say what the network computes, with LeRobot's defaults (lerobot 0.6.1,
    configuration_xvla.py)."""

    chunk_size: int = 32
    """C: actions that the network predicts."""
    n_action_steps: int = 32
    """Those of them that LeRobot carries out."""
    tokenizer_name: str = "facebook/bart-large"
    tokenizer_max_length: int = 64
    hidden_size: int = 1024
    depth: int = 24
    num_heads: int = 16
    mlp_ratio: float = 4.0
    num_domains: int = 30
    len_soft_prompts: int = 32
    dim_time: int = 32
    max_len_seq: int = 512
    """Most tokens of a pass without the soft prompts."""
    use_hetero_proj: bool = False
    """The projections of what Florence-2 says are a domain's own, too."""
    action_mode: str = "ee6d"
    num_denoising_steps: int = 10
    use_proprio: bool = True
    max_state_dim: int = 32
    max_action_dim: int = 20
    domain_feature_key: str | None = None
    resize_imgs_with_padding: tuple[int, int] | None = None
    """Pixels: height and width."""
    num_image_views: int | None = None
    empty_cameras: int = 0

    @property
    def cameras(self) -> list[str]:
        """The keys of the pictures that it was trained with, in their order; without those that are always empty."""
        return [key for key, value in self.input_features.items() if value.get("type") == "VISUAL" and not key.startswith(EMPTY)]

    @property
    def views(self) -> int:
        """Pictures that it has room for; what isn't there is zeros."""
        there = sum(value.get("type") == "VISUAL" for value in self.input_features.values())
        named = sum(key.startswith(EMPTY) for key in self.input_features)
        return max(self.num_image_views or 0, there + max(0, self.empty_cameras - named), 1)

    @property
    def proprio(self) -> int:
        """Numbers of a state as the network has it."""
        return self.max_state_dim if self.use_proprio else 0


def of_authors(table: Mapping[str, Any]) -> bool:
    """Whether a config.json is in the layout of X-VLA's authors, that of a model of transformers."""
    return "type" not in table and table.get("model_type") == "xvla"


def read_config(table: Mapping[str, Any]) -> XVLAConfig:
    """The configuration in a config.json of either layout. Raises UserError for a field that can't be meant or can't be read
    here."""
    for name, value in FIXED.items():
        if table.get(name, value) != value:
            raise UserError(f"config.json: {name} = {table[name]!r:.60}, and only {value!r} can be read")
    told = dict(table)
    if isinstance(told.get("action_mode"), str):
        told["action_mode"] = told["action_mode"].lower()
    if of_authors(table):
        numbers = 14 if told.get("action_mode") == "joint" else table.get("max_action_dim", 20)
        told |= {"chunk_size": table.get("num_actions", 30), "n_action_steps": table.get("num_actions", 30)}
        told |= {"max_state_dim": numbers, "num_image_views": VIEWS, "tokenizer_max_length": WORDS}
        told.pop("real_action_dim", None)
    config = read_fields(XVLAConfig, told, CALLED, {"action_mode": MODES})
    check_positive(config, "chunk_size", "n_action_steps", "max_state_dim", "max_action_dim", "tokenizer_max_length")
    check_positive(config, "num_denoising_steps", "num_domains", "hidden_size", "depth", "num_heads", "dim_time", "max_len_seq")
    if config.hidden_size % config.num_heads:
        raise UserError(f"config.json: num_heads = {config.num_heads} doesn't divide hidden_size = {config.hidden_size}")
    return config


def florence_of(table: Mapping[str, Any]) -> Any:
    """transformers' configuration of the Florence-2 in a config.json, whose fields are transformers' or those of Microsoft's own
    code. Raises UserError for one that transformers' classes don't compute."""
    from transformers import Florence2Config

    said = table.get("florence_config")
    parts = [said.get(name) if isinstance(said, Mapping) else None for name in ("vision_config", "text_config")]
    if not all(isinstance(part, Mapping) and part for part in parts):
        raise UserError("config.json: florence_config has no vision_config and text_config, which say the network's sizes")
    vision, text = _vision(dict(parts[0])), {**dict(parts[1]), "model_type": "bart"}  # type: ignore[arg-type]
    try:
        found = Florence2Config(vision_config=vision, text_config=text)
    except Exception as error:
        first = str(error).strip().splitlines()[0][:200]
        raise UserError(f"config.json: florence_config is not understood: {first}") from error
    if found.vision_config.projection_dim != found.text_config.d_model:
        raise UserError(
            f"config.json: florence_config: projection_dim = {found.vision_config.projection_dim} must be the language model's "
            f"d_model = {found.text_config.d_model}"
        )
    return found


def _vision(told: dict[str, Any]) -> dict[str, Any]:
    """The fields of Microsoft's code under transformers' names."""
    if (kind := told.pop("model_type", None)) not in (None, "", "davit", "florence_vision"):
        raise UserError(f"config.json: florence_config: the vision tower is a {kind!s:.40}, not a DaViT")
    told.pop("enable_checkpoint", None)
    named = (
        ("image_pos_embed", "learned_abs_2d", "max_pos_embeddings", "max_position_embeddings"),
        ("visual_temporal_embedding", "COSINE", "max_temporal_embeddings", "max_temporal_embeddings"),
    )
    for name, only, theirs, ours in named:
        if (part := told.pop(name, None)) is not None:
            if not isinstance(part, Mapping) or part.get("type") != only or theirs not in part:
                raise UserError(f"config.json: florence_config: {name} = {part!r:.80} must be of the type {only}")
            told[ours] = part[theirs]
    source = told.pop("image_feature_source", None)
    if source is not None and list(source) != ["spatial_avg_pool", "temporal_avg_pool"]:
        raise UserError(f"config.json: florence_config: image_feature_source = {source!r:.80} can't be computed here")
    if "dim_embed" in told:
        told["embed_dim"] = told.pop("dim_embed")
    return told


def picture_tokens(florence: Any, height: int, width: int) -> int:
    """T: tokens of a picture of so many pixels. Raises UserError for pictures that the tower can't see."""
    vision = florence.vision_config
    sides = []
    for side in (height, width):
        for size, stride, around in zip(vision.patch_size, vision.patch_stride, vision.patch_padding, strict=True):
            side = (side + 2 * around - size) // stride + 1
        sides.append(side)
    if not 0 < min(sides) <= max(sides) <= vision.max_position_embeddings:
        raise UserError(
            f"the vision tower can't see pictures of {width} x {height} pixels: it has {vision.max_position_embeddings} places "
            "for patches along each side"
        )
    return 1 + sides[0] * sides[1]


def check_length(config: XVLAConfig, words: int, tokens: int, views: int) -> None:
    """Raise UserError for more tokens than the network has places for. words: tokens of the text. tokens: of a picture."""
    count = config.chunk_size + words + views * tokens
    if count > config.max_len_seq:
        raise UserError(
            f"{views} pictures of {tokens} tokens, {words} of the text and {config.chunk_size} actions are "
            f"{count} tokens, and this X-VLA has places for {config.max_len_seq}: name fewer cameras"
        )
