"""The versions of GR00T, and the sizes of their action heads as config.json has them."""

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
    """The fields of config.json that the head reads, with the values of nvidia/GR00T-N1.7-3B. See `LEFT_OUT` for N1.6's."""

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
    vl_self_attention_cfg: TransformerConfig | None = field(
        default=TransformerConfig(num_layers=4, num_attention_heads=32, attention_head_dim=64)
    )
    """None for N1.6, whose head reads the backbone's tokens as they are."""
    state_dropout_prob: float = 0.0
    """Of N1.6 alone: above 0, there is a token that stood for left-out states in training. It isn't used here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    called: str
    kind: str
    """`model_type` of config.json."""
    processor: str
    """`processor_class` of processor_config.json."""
    model_name: str
    """That of config.json where it names none: the backbone."""
    embodiments: Mapping[str, int]
    """Those that every checkpoint has, where its embodiment_id.json leaves them out (`EMBODIMENT_TAG_TO_PROJECTOR_INDEX`)."""


N1_7 = Version(
    called="GR00T N1.7",
    kind="Gr00tN1d7",
    processor="Gr00tN1d7Processor",
    model_name="nvidia/Cosmos-Reason2-2B",
    embodiments={
        **{"simpler_env_google": 0, "simpler_env_widowx": 1, "libero_sim": 2, "new_embodiment": 10},
        **{"oxe_droid_relative_eef_relative_joint": 24, "real_g1_relative_eef_relative_joints": 25},
        **{"unitree_g1_full_body_with_waist_height_nav_cmd": 25, "real_r1_pro_sharpa_relative_eef": 26},
        **{"real_r1_pro_sharpa_relative_eef_human": 26, "real_r1_pro_sharpa_relative_eef_maxinsights": 26},
        **{"real_r1_pro_sharpa_relative_eef_mecka": 26, "xdof_relative_eef_relative_joint": 27},
        "xdof_relative_eef_relative_joint_subtask": 27,
    },
)
N1_6 = Version(
    called="GR00T N1.6",
    kind="Gr00tN1d6",
    processor="Gr00tN1d6Processor",
    model_name="nvidia/Eagle-Block2A-2B-v2",
    embodiments={
        **{"oxe_google": 0, "oxe_widowx": 1, "libero_panda": 2, "unitree_g1": 8, "new_embodiment": 10},
        **{"robocasa_panda_omron": 13, "oxe_droid": 16, "gr1": 20, "behavior_r1_pro": 24},
    },
)
VERSIONS = (N1_7, N1_6)
LEFT_OUT: dict[str, dict[str, Any]] = {
    N1_7.kind: {"state_dropout_prob": 0.0},
    N1_6.kind: {"vl_self_attention_cfg": None, "state_history_length": 1},
}
"""Fields of `HeadConfig` that a version doesn't have, whatever its config.json says."""
USUAL: dict[str, dict[str, Any]] = {N1_7.kind: {}, N1_6.kind: {"max_state_dim": 29, "max_action_dim": 29, "action_horizon": 16}}
"""Where a version's own class has other defaults."""


def version_of(table: Mapping[str, Any]) -> Version:
    """Of a config.json. Raises UserError for another model's."""
    kind = table.get("model_type")
    for version in VERSIONS:
        if kind == version.kind:
            return version
    raise UserError(f"its config.json is of {kind!r:.60}, not of {' or '.join(v.kind for v in VERSIONS)}: {TAKE}")


TAKE = "take a GR00T N1.7 or N1.6"
FIXED: dict[str, Any] = {"use_alternate_vl_dit": True, "add_pos_embed": True, "use_vlln": True}
"""Fields of config.json that have one value in every published checkpoint; another is refused."""
FIXED_PARTS: dict[str, Any] = {
    **{"positional_embeddings": None, "norm_type": "ada_norm", "interleave_self_attention": True},
    **{"attention_bias": True, "activation_fn": "gelu-approximate", "norm_elementwise_affine": False},
}
"""The same of `diffusion_model_cfg`."""


def head_config(table: Mapping[str, Any], version: Version = N1_7) -> HeadConfig:
    """The head's part of a config.json. Raises UserError for a head of another layout."""
    table = USUAL[version.kind] | {**table} | LEFT_OUT[version.kind]
    parts: dict[str, dict[str, Any]] = {
        name: dict(table.get(name) or {}) for name in ("diffusion_model_cfg", "vl_self_attention_cfg")
    }
    for where, given, fixed in (("", table, FIXED), ("diffusion_model_cfg.", parts["diffusion_model_cfg"], FIXED_PARTS)):
        for name, value in fixed.items():
            if given.get(name, value) != value:
                raise UserError(f"config.json: {where}{name} = {given[name]!r:.60}, and only {value!r} can be read: {TAKE}")
    found: dict[str, Any] = {f.name: table[f.name] for f in fields(HeadConfig) if f.name in table and f.name not in parts}
    found |= {name: None for name in parts if name in LEFT_OUT[version.kind]}
    try:
        for name, part in parts.items():
            if part:
                found[name] = TransformerConfig(**{f.name: part[f.name] for f in fields(TransformerConfig) if f.name in part})
        config = HeadConfig(**found)
    except TypeError as error:
        raise UserError(
            f"config.json is not that of {version.called}: {shorten(error, 200)}: take one with all its fields"
        ) from error
    sizes = [
        ("diffusion_model_cfg", config.diffusion_model_cfg.width, "input_embedding_dim", config.input_embedding_dim),
        ("diffusion_model_cfg.output_dim", config.diffusion_model_cfg.output_dim, "hidden_size", config.hidden_size),
    ]
    if own := config.vl_self_attention_cfg:
        sizes.append(("vl_self_attention_cfg", own.width, "backbone_embedding_dim", config.backbone_embedding_dim))
    for part_name, width, name, wanted in sizes:
        if width != wanted:
            raise UserError(f"config.json: {part_name} is {width} wide, and {name} = {wanted}: make them equal")
    if config.action_horizon > config.max_seq_len:
        raise UserError(
            f"config.json: action_horizon = {config.action_horizon} actions, and places for max_seq_len = {config.max_seq_len}: "
            f"{TAKE}"
        )
    return config
