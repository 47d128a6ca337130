"""The sizes of GR00T N1.7's action head, as its config.json has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from mmrl.api.errors import UserError, shorten


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerConfig:
    """`diffusion_model_cfg` and `vl_self_attention_cfg` of config.json; `output_dim` belongs to the former alone."""

    num_layers: int
    num_attention_heads: int
    attention_head_dim: int
    output_dim: int = 1024

    @property
    def width(self) -> int:
        return self.num_attention_heads * self.attention_head_dim


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadConfig:
    """The fields of config.json that the head reads, with the values of nvidia/GR00T-N1.7-3B."""

    backbone_embedding_dim: int = 2048
    """F."""
    input_embedding_dim: int = 1536
    """W."""
    hidden_size: int = 1024
    """Width of the encoders' and decoders' hidden layers, and of the transformer's output."""
    max_state_dim: int = 132
    state_history_length: int = 1
    max_action_dim: int = 132
    """D."""
    action_horizon: int = 40
    """C."""
    max_num_embodiments: int = 32
    max_seq_len: int = 1024
    num_timestep_buckets: int = 1000
    num_inference_timesteps: int = 4
    attend_text_every_n_blocks: int = 2
    diffusion_model_cfg: TransformerConfig = field(
        default=TransformerConfig(num_layers=32, num_attention_heads=32, attention_head_dim=48)
    )
    vl_self_attention_cfg: TransformerConfig = field(
        default=TransformerConfig(num_layers=4, num_attention_heads=32, attention_head_dim=64)
    )


FIXED: dict[str, Any] = {"use_alternate_vl_dit": True, "add_pos_embed": True, "use_vlln": True}
"""Fields of config.json that have one value in every published N1.7; another is refused."""
FIXED_PARTS: dict[str, Any] = {
    **{"positional_embeddings": None, "norm_type": "ada_norm", "interleave_self_attention": True},
    **{"attention_bias": True, "activation_fn": "gelu-approximate", "norm_elementwise_affine": False},
}
"""The same of `diffusion_model_cfg`."""


def head_config(table: Mapping[str, Any]) -> HeadConfig:
    """The head's part of a config.json. Raises UserError for a head of another layout."""
    parts: dict[str, dict[str, Any]] = {
        name: dict(table.get(name) or {}) for name in ("diffusion_model_cfg", "vl_self_attention_cfg")
    }
    for where, given, fixed in (("", table, FIXED), ("diffusion_model_cfg.", parts["diffusion_model_cfg"], FIXED_PARTS)):
        for name, value in fixed.items():
            if given.get(name, value) != value:
                raise UserError(
                    f"config.json: {where}{name} = {given[name]!r:.60}, and only {value!r} can be read: take GR00T N1.7"
                )
    found: dict[str, Any] = {f.name: table[f.name] for f in fields(HeadConfig) if f.name in table and f.name not in parts}
    try:
        for name, part in parts.items():
            if part:
                found[name] = TransformerConfig(**{f.name: part[f.name] for f in fields(TransformerConfig) if f.name in part})
        config = HeadConfig(**found)
    except TypeError as error:
        raise UserError(f"config.json is not that of GR00T N1.7: {shorten(error, 200)}: take one with all its fields") from error
    sizes = (
        ("diffusion_model_cfg", config.diffusion_model_cfg.width, "input_embedding_dim", config.input_embedding_dim),
        ("vl_self_attention_cfg", config.vl_self_attention_cfg.width, "backbone_embedding_dim", config.backbone_embedding_dim),
        ("diffusion_model_cfg.output_dim", config.diffusion_model_cfg.output_dim, "hidden_size", config.hidden_size),
    )
    for part_name, width, name, wanted in sizes:
        if width != wanted:
            raise UserError(f"config.json: {part_name} is {width} wide, and {name} = {wanted}: make them equal")
    return config
