"""Tiny models whose numbers depend on the length of rows, as published ones do at thousands of tokens: at a few."""

from __future__ import annotations

from typing import Any

FEW, MORE = 24, 600
"""Tokens, beyond which frequencies change: of InternVL, and of Phi-4-multimodal, whose smallest picture has 540."""


def dynamic(config: Any) -> None:
    """InternVL3's rotary embeddings, at a small length."""
    config.text_config.max_position_embeddings = FEW
    config.text_config.rope_parameters = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}


def longrope(config: Any, most: int = MORE) -> None:
    """Phi-4-multimodal's."""
    half = config.hidden_size // config.num_attention_heads // 2
    factors = {"short_factor": [1.0] * half, "long_factor": [1.0 + i for i in range(half)]}
    config.rope_parameters = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 1.0, **factors}
    config.original_max_position_embeddings = most
    config.standardize_rope_params()


def far(config: Any) -> None:
    """Llama 4's scale of queries, at a small distance."""
    config.text_config.floor_scale, config.text_config.attn_scale = 8, 0.7


CHANGES = {"internvl": dynamic, "phi4_multimodal": longrope, "llama4": far}
