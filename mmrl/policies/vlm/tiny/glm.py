"""Tiny checkpoints of GLM-V."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import HEADS, Checkpoint, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template

PATCH = 14
KINDS = ("image", "video")
NAMED = {f"{kind}_token": f"<|{kind}|>" for kind in KINDS}
ENDS = {f"{kind}_{end}_token": f"<|{verb}_of_{kind}|>" for kind in KINDS for end, verb in (("start", "begin"), ("end", "end"))}


def glm4v(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """GLM-4.1V."""
    return _checkpoint("Glm4v", "glm4v_text", "Glm4v", hidden, layers, words)


def glm46v(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """GLM-4.6V-Flash; the larger GLM-4.6V has experts, as `glm4v_moe`."""
    return _checkpoint("Glm46V", "glm4v_text", "Glm46V", hidden, layers, words)


def glm4v_moe(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """GLM-4.5V: experts in all layers but the first."""
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": hidden, "head_dim": hidden // HEADS}
    experts["use_qk_norm"] = False  # as in the published configuration; transformers has no such key for it, and vLLM asks
    return _checkpoint("Glm4vMoe", "glm4v_moe_text", "Glm4v", hidden, layers, words, **experts)


def glm_ocr(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """GLM-OCR."""
    return _checkpoint("GlmOcr", "glm_ocr_text", "Glm46V", hidden, layers, words)


def _checkpoint(name: str, language: str, reader: str, hidden: int, layers: int, words: Sequence[str], **more: Any) -> Checkpoint:
    """name, reader: those of the model's and the processors' classes in transformers, without an ending."""
    tokenizer = make_tokenizer(words, special=list(ENDS.values()), named=NAMED)
    pairs = hidden // HEADS // 2 // 2  # that turn: half of each head
    side = max(pairs * 3 // 8, 1)
    rope = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.5}
    rope["mrope_section"] = [pairs - 2 * side, side, side]
    config = getattr(hf, f"{name}Config")(
        # the bias stands in published configurations; transformers always has it for GLM-4.1V, and vLLM asks
        text_config=text(language, tokenizer, hidden, layers, rope_parameters=rope, attention_bias=True, **more),
        vision_config={
            "depth": layers,
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_heads": HEADS,
            "out_hidden_size": hidden,
            "image_size": 4 * PATCH,
            "patch_size": PATCH,
        },
        **ids(tokenizer, **{f"{k}_id": token for k, token in (NAMED | ENDS).items()}),
    )
    cell = (2 * PATCH) ** 2  # pixels behind one visual token
    limits = {"shortest_edge": 4 * cell, "longest_edge": 1024 * cell}
    pictures = {kind: f"<|begin_of_{kind}|><|{kind}|><|end_of_{kind}|>" for kind in KINDS}

    def processor() -> Any:
        images = getattr(hf, f"{reader}ImageProcessor")(size=limits)
        videos = getattr(hf, f"{reader}VideoProcessor")(size=limits)
        layout = template(pictures["image"], pictures["video"])
        return getattr(hf, f"{reader}Processor")(images, tokenizer, videos, chat_template=layout)

    return Checkpoint(config, getattr(hf, f"{name}ForConditionalGeneration"), tokenizer, processor)
