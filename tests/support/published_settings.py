"""Settings of published checkpoints that tiny models lack. The values are those of the checkpoints' `config.json`, with lengths
and counts made small.
"""

from __future__ import annotations

from typing import Any

WINDOW = 6
"""Tokens: less than a prompt has."""
LINEAR = {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 50000.0,
    "factor": 64.0,
    "original_max_position_embeddings": 64,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "mscale": 1.0,
    "mscale_all_dim": 1.0,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma 3: windows": ("gemma3", {"text.sliding_window": WINDOW}),
    "Gemma 3 4B: rotary angles of an eighth in full layers": ("gemma3", {"text.rope_parameters/full_attention": LINEAR}),
    "Gemma 3n: windows, fewer layers with keys of their own": (
        "gemma3n",
        {
            "text.sliding_window": WINDOW,
            "text.num_kv_shared_layers": 1,
            "text.activation_sparsity_pattern": [0.95, 0.95, 0.0, 0.0],
        },
    ),
    "Gemma 4: windows, capped logits": ("gemma4", {"text.sliding_window": WINDOW, "text.final_logit_softcapping": 30.0}),
    "Gemma 4 E2B: layers that read others' keys": ("gemma4", {"text.num_kv_shared_layers": 2, "text.use_double_wide_mlp": True}),
    "Gemma 4 26B-A4B: experts, keys that are values": (
        "gemma4",
        {
            "text.enable_moe_block": True,
            "text.num_experts": 4,
            "text.top_k_experts": 2,
            "text.moe_intermediate_size": 64,
            "text.attention_k_eq_v": True,
        },
    ),
    "PaliGemma 2: windows": ("paligemma", {"text.sliding_window": WINDOW}),
    "Aya Vision: windows": ("aya_vision", {"text.sliding_window": WINDOW}),
    "Command A Vision: windows": ("cohere2_vision", {"text.sliding_window": WINDOW}),
    "Pixtral: windows": ("pixtral", {"text.sliding_window": WINDOW}),
    "Mistral Small 3.2: heads wider than the model": ("mistral3", {"text.head_dim": 32}),
    "Llama 4: chunks": ("llama4", {"text.attention_chunk_size": WINDOW, "text.floor_scale": 4}),
    "Perception LM: Llama 3's rotary angles": ("perception_lm", {"text.rope_parameters": LLAMA3}),
    "Qwen2.5-VL 7B: a head of its own": ("qwen2_5_vl", {"text.tie_word_embeddings": False, "tie_word_embeddings": False}),
    "Qwen2.5-VL: YaRN": ("qwen2_5_vl", {"text.rope_parameters": YARN | {"mrope_section": [2, 3, 3]}}),
    "Qwen2.5-VL: a tower whose windows are one patch": (
        "qwen2_5_vl",
        {"vision.window_size": 28, "vision.fullatt_block_indexes": [1, 3]},
    ),
    "Qwen3-VL: pictures in several layers": ("qwen3_vl", {"vision.deepstack_visual_indexes": [0, 1, 2]}),
    "Qwen3-VL MoE: dense layers between": ("qwen3_vl_moe", {"text.decoder_sparse_step": 2, "text.mlp_only_layers": [1]}),
    "Qwen3.5: more heads of values than of keys": ("qwen3_5", {"text.linear_num_value_heads": 8}),
    "Qwen3.5 MoE: more heads of values than of keys": ("qwen3_5_moe", {"text.linear_num_value_heads": 8}),
    "LFM2-VL: a longer convolution": ("lfm2_vl", {"text.conv_L_cache": 4}),
    "GLM-4.5V: groups of experts": ("glm4v_moe", {"text.n_group": 2, "text.topk_group": 1, "text.routed_scaling_factor": 2.5}),
    "Kimi K2.5: groups of experts, YaRN": ("kimi_k25", {"text.n_group": 2, "text.topk_group": 1, "text.rope_parameters": YARN}),
    "ERNIE 4.5 VL: more experts for each token": ("ernie4_5_vl_moe", {"text.moe_k": 3, "text.moe_num_shared_experts": 2}),
    "InternVL3.5: a tower with normed keys": ("internvl3_5", {"vision.use_qk_norm": True, "vision.norm_type": "rms_norm"}),
}


def set_values(config: Any, values: dict[str, Any]) -> None:
    """Set what `text.key`, `vision.key` and `key` name; after a slash comes a key of a dictionary."""
    for name, value in values.items():
        part, _, key = name.rpartition(".")
        of = {"text": config.get_text_config(), "vision": getattr(config, "vision_config", None), "": config}[part]
        key, _, inner = key.partition("/")
        assert hasattr(of, key), f"{name} is no setting"
        setattr(of, key, getattr(of, key) | {inner: value} if inner else value)
