"""The shapes of published models, so that a plan needs no network: the config.json of each from the hub, shortened to what
its class doesn't have by default.

Sources: Qwen2-VL: the config.json of each size; Qwen2.5-VL, Bai et al. 2025, Qwen2.5-VL Technical Report, table 1, with the
config.json of each size; Qwen3-VL: the config.json of each size, as pytorch/torchtitan (experiments/qwen3_vl) and InternLM/xtuner
(model/compose/qwen3_vl) repeat them; Qwen3.5 with experts: the config.json of each size, as THUDM/slime (scripts/models) repeats
those of 35B-A3B and 397B-A17B, and their tower's from transformers' defaults, which are 35B-A3B's.
tests/train/test_plan_shapes.py compares them with parameter counts of the checkpoints.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def _qwen2(hidden: int, inner: int, layers: int, heads: int, kv: int, vocabulary: int, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "qwen2_vl",
        "tie_word_embeddings": tied,
        "text_config": {
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv,
            "vocab_size": vocabulary,
            "max_position_embeddings": 32768,
        },
        "vision_config": {
            "depth": 32,
            "embed_dim": 1280,
            "hidden_size": hidden,
            "mlp_ratio": 4,
            "num_heads": 16,
            "patch_size": 14,
        },
    }


def _qwen25(hidden: int, inner: int, layers: int, heads: int, kv: int, vocabulary: int, tied: bool, tower: int) -> dict[str, Any]:
    return {
        "model_type": "qwen2_5_vl",
        "tie_word_embeddings": tied,
        "text_config": {
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv,
            "vocab_size": vocabulary,
            "max_position_embeddings": 128000,
        },
        "vision_config": {
            "depth": 32,
            "hidden_size": 1280,
            "intermediate_size": tower,
            "num_heads": 16,
            "out_hidden_size": hidden,
            "patch_size": 14,
            "window_size": 112,
            "fullatt_block_indexes": [7, 15, 23, 31],
        },
    }


def _qwen3(hidden: int, inner: int, layers: int, heads: int, tied: bool, large: bool) -> dict[str, Any]:
    tower = (27, 1152, 4304, [8, 16, 24]) if large else (24, 1024, 4096, [5, 11, 17])
    return {
        "model_type": "qwen3_vl",
        "tie_word_embeddings": tied,
        "text_config": {
            "hidden_size": hidden,
            "intermediate_size": inner,
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": 8,
            "head_dim": 128,
            "vocab_size": 151936,
            "max_position_embeddings": 262144,
        },
        "vision_config": {
            "depth": tower[0],
            "hidden_size": tower[1],
            "intermediate_size": tower[2],
            "num_heads": 16,
            "out_hidden_size": hidden,
            "patch_size": 16,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": tower[3],
        },
    }


def _experts(hidden: int, inner: int, layers: int, heads: int) -> dict[str, Any]:
    """Those of Qwen3-VL with experts. inner: of an expert."""
    found = _qwen3(hidden, 3 * hidden, layers, heads, False, True)
    experts = {"num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": inner, "num_key_value_heads": 4}
    return found | {"model_type": "qwen3_vl_moe", "text_config": found["text_config"] | experts}


def _delta(hidden: int, layers: int, heads: int, values: int, experts: int, chosen: int, inner: int) -> dict[str, Any]:
    """Qwen3.5 with experts; what all sizes share are its classes' defaults. values: heads of values of a gated delta net. inner:
    of an expert, and of the shared one."""
    text = {
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 2,
        "linear_num_value_heads": values,
        "num_experts": experts,
        "num_experts_per_tok": chosen,
        "moe_intermediate_size": inner,
        "shared_expert_intermediate_size": inner,
        "vocab_size": 248320,
        "max_position_embeddings": 262144,
    }
    vision = {"out_hidden_size": hidden}
    return {"model_type": "qwen3_5_moe", "tie_word_embeddings": False, "text_config": text, "vision_config": vision}


PUBLISHED: Mapping[str, Mapping[str, Any]] = {
    "Qwen/Qwen2-VL-2B": _qwen2(1536, 8960, 28, 12, 2, 151936, True),
    "Qwen/Qwen2-VL-7B": _qwen2(3584, 18944, 28, 28, 4, 152064, False),
    "Qwen/Qwen2-VL-72B": _qwen2(8192, 29568, 80, 64, 8, 152064, False),
    "Qwen/Qwen2.5-VL-3B": _qwen25(2048, 11008, 36, 16, 2, 151936, True, 3420),
    "Qwen/Qwen2.5-VL-7B": _qwen25(3584, 18944, 28, 28, 4, 152064, False, 3420),
    "Qwen/Qwen2.5-VL-32B": _qwen25(5120, 27648, 64, 40, 8, 152064, False, 3456),
    "Qwen/Qwen2.5-VL-72B": _qwen25(8192, 29568, 80, 64, 8, 152064, False, 3456),
    "Qwen/Qwen3-VL-2B": _qwen3(2048, 6144, 28, 16, True, False),
    "Qwen/Qwen3-VL-4B": _qwen3(2560, 9728, 36, 32, True, False),
    "Qwen/Qwen3-VL-8B": _qwen3(4096, 12288, 36, 32, False, True),
    "Qwen/Qwen3-VL-32B": _qwen3(5120, 25600, 64, 64, False, True),
    "Qwen/Qwen3-VL-30B-A3B": _experts(2048, 768, 48, 32),
    "Qwen/Qwen3-VL-235B-A22B": _experts(4096, 1536, 94, 64),
    "Qwen/Qwen3.5-35B-A3B": _delta(2048, 40, 16, 32, 256, 8, 512),
    "Qwen/Qwen3.5-122B-A10B": _delta(3072, 48, 32, 64, 256, 8, 1024),
    "Qwen/Qwen3.5-397B-A17B": _delta(4096, 60, 32, 64, 512, 10, 1024),
}
"""Hub name without -Instruct or -Thinking -> the config."""
OPENVLA = ("openvla-7b", "openvla-oft-sft")
"""How the names of OpenVLA's checkpoints begin, in lower case: its own, OpenVLA-OFT's and SimpleVLA-RL's are of one shape."""
OPENVLA_7B: Mapping[str, Any] = {"model_type": "openvla", "text_config": {"vocab_size": 32064}}
"""Kim et al., OpenVLA, section 3.1: Llama 2 7B (LlamaConfig's defaults) with DINOv2 and SigLIP; its config.json."""
LIMITS = {"openvla": 224**2, "glm4v_moe": 15000 * 28**2}
LIMITS |= dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "qwen2_5_omni_thinker"), 16384 * 28**2)
LIMITS |= dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe", "qwen3_omni_moe_thinker"), 16384 * 32**2)
"""Family -> pixels above which the processor of a published checkpoint shrinks an image."""


def published(name: str) -> Mapping[str, Any] | None:
    """The config of a hub name such as `Qwen/Qwen2.5-VL-7B-Instruct`; None if it isn't in the table."""
    if name.lower().partition("/")[2].startswith(OPENVLA):
        return OPENVLA_7B
    base = name.removesuffix("-Instruct").removesuffix("-Thinking")
    return PUBLISHED.get(base)
