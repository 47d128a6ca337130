"""Tiny checkpoints of Google's families."""

from __future__ import annotations

from collections.abc import Sequence

import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import HEADS, PATCH, SIDE, Checkpoint, eye, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template

TOKENS = (SIDE // PATCH // 2) ** 2
"""Tokens of a picture."""


def gemma3(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Pictures have one size; their tokens attend to each other in both directions. Layers slide but for the last one."""
    named = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
    tokenizer = make_tokenizer(words, named=named)
    slides = {"layer_types": ["sliding_attention"] * (layers - 1) + ["full_attention"], "sliding_window": 1024}
    width = hidden // HEADS
    config = hf.Gemma3Config(
        text_config=text("gemma3_text", tokenizer, hidden, layers, head_dim=width, query_pre_attn_scalar=width, **slides),
        vision_config=eye("siglip_vision_model", hidden, layers, vision_use_head=False),
        mm_tokens_per_image=TOKENS,
        **ids(
            tokenizer,
            boi_token_index=named["boi_token"],
            eoi_token_index=named["eoi_token"],
            image_token_index=named["image_token"],
        ),
    )

    def processor() -> hf.Gemma3Processor:
        images = hf.Gemma3ImageProcessor(size={"height": SIDE, "width": SIDE})
        return hf.Gemma3Processor(images, tokenizer, chat_template=template(named["boi_token"]), image_seq_length=TOKENS)

    return Checkpoint(config, hf.Gemma3ForConditionalGeneration, tokenizer, processor)
