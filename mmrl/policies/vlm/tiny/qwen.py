"""Tiny checkpoints of Qwen-VL: Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5, dense and with experts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import HEADS, Checkpoint, in_turn
from mmrl.policies.vlm.tiny.tokens import CHAT_TEMPLATE, SPECIAL, make_tokenizer

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2}


def qwen2_vl(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    text, vision = sizes(hidden, layers)
    vision |= {"embed_dim": hidden, "mlp_ratio": 2}
    return _checkpoint("Qwen2VL", text, vision, words)


def qwen2_5_vl(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    text, vision = sizes(hidden, layers)
    vision |= {"window_size": 112, "fullatt_block_indexes": [layers - 1]}
    return _checkpoint("Qwen2_5_VL", text, vision, words)


def qwen3_vl(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    return _checkpoint("Qwen3VL", *sizes3(hidden, layers), words)


def qwen3_vl_moe(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    text, vision = sizes3(hidden, layers)
    text |= {**EXPERTS, "moe_intermediate_size": hidden}
    text["norm_topk_prob"] = True  # stands in published configurations; transformers always does it, and vLLM asks
    return _checkpoint("Qwen3VLMoe", text, vision, words)


def qwen3_5(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Its layers are linear attention, the last one full attention."""
    text, vision = _sizes5(hidden, layers)
    return _checkpoint("Qwen3_5", text, vision, words)


def qwen3_5_moe(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """As `qwen3_5`, with experts in every layer, one of them shared by all tokens."""
    text, vision = _sizes5(hidden, layers)
    text |= {**EXPERTS, "moe_intermediate_size": hidden, "shared_expert_intermediate_size": hidden}
    return _checkpoint("Qwen3_5Moe", text, vision, words)


def sizes(hidden: int, layers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Sizes of the language model and of the vision tower."""
    half = hidden // HEADS // 2  # rotary pairs per head, split into time, height and width
    side = half * 3 // 8
    text: dict[str, Any] = dict(
        vocab_size=512,
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        bos_token_id=None,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [half - 2 * side, side, side]},
    )
    vision: dict[str, Any] = dict(
        depth=layers,
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_heads=HEADS,
        out_hidden_size=hidden,
        patch_size=14,
        spatial_merge_size=2,
        temporal_patch_size=2,
    )
    return text, vision


def sizes3(hidden: int, layers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """As `sizes`, of Qwen3-VL."""
    text, vision = sizes(hidden, layers)
    text["head_dim"] = hidden // HEADS
    text["rope_parameters"]["mrope_interleaved"] = True
    vision |= {"patch_size": 16, "num_position_embeddings": 256, "deepstack_visual_indexes": [0]}
    return text, vision


def _sizes5(hidden: int, layers: int) -> tuple[dict[str, Any], dict[str, Any]]:
    text, vision = sizes3(hidden, layers)
    del vision["deepstack_visual_indexes"]
    return text | language5(hidden, layers), vision


def language5(hidden: int, layers: int) -> dict[str, Any]:
    """What Qwen3.5's language model has of its own; MiniCPM-V builds on it."""
    width = 2 * hidden // HEADS
    pairs = width // 4 // 2  # rotary pairs per head, of which a quarter turns, split into time, height and width
    side = max(pairs // 4, 1)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_interleaved": True, "partial_rotary_factor": 0.25}
    linear = {f"linear_{name}_head_dim": hidden // HEADS for name in ("key", "value")}
    linear |= {f"linear_num_{name}_heads": HEADS for name in ("key", "value")}
    return {
        "head_dim": width,
        "rope_parameters": {**rope, "mrope_section": [pairs - 2 * side, side, side]},
        "layer_types": in_turn(layers, "linear_attention"),
        **linear,
    }


def _checkpoint(name: str, text: dict[str, Any], vision: dict[str, Any], words: Sequence[str]) -> Checkpoint:
    """name: that of the family's classes in transformers, without an ending."""
    tokenizer = make_tokenizer(words)
    number = {t: tokenizer.convert_tokens_to_ids(t) for t in SPECIAL}
    text |= {"pad_token_id": number["<|endoftext|>"], "eos_token_id": number["<|im_end|>"]}
    config = getattr(hf, f"{name}Config")(
        text_config=text,
        vision_config=vision,
        image_token_id=number["<|image_pad|>"],
        video_token_id=number["<|video_pad|>"],
        vision_start_token_id=number["<|vision_start|>"],
        vision_end_token_id=number["<|vision_end|>"],
        tie_word_embeddings=True,
    )
    kind = getattr(hf, f"{name}ForConditionalGeneration")
    return Checkpoint(config, kind, tokenizer, lambda: _processor(name, tokenizer, vision["patch_size"]))


def _processor(name: str, tokenizer: Any, patch: int) -> Any:
    cell = (2 * patch) ** 2  # pixels behind one visual token
    limits = {"shortest_edge": 4 * cell, "longest_edge": 1024 * cell}
    images = hf.Qwen2VLImageProcessor(patch_size=patch, size=limits)
    videos: Any = hf.Qwen2VLVideoProcessor
    if name not in ("Qwen2VL", "Qwen2_5_VL"):
        name, videos = "Qwen3VL", hf.Qwen3VLVideoProcessor
    return getattr(hf, f"{name}Processor")(
        image_processor=images,
        tokenizer=tokenizer,
        video_processor=videos(patch_size=patch, size=limits),
        chat_template=CHAT_TEMPLATE,
    )
