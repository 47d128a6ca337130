"""Tiny checkpoints of MiniCPM-V 4.6 and 4.7: a vision tower that merges twice, Qwen3.5's language model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import PATCH, SIDE, Checkpoint, eye, text
from mmrl.policies.vlm.tiny.qwen import language5
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template

NAMED = {
    "image_token": "<|image_pad|>",
    "video_token": "<|video_pad|>",
    "image_start_token": "<image>",
    "image_end_token": "</image>",
    "slice_start_token": "<slice>",
    "slice_end_token": "</slice>",
    "image_id_start_token": "<image_id>",
    "image_id_end_token": "</image_id>",
}


def minicpmv4_6(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    return _checkpoint("MiniCPMV4_6", hidden, layers, words)


def minicpmv4_7(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    return _checkpoint("MiniCPMV4_7", hidden, layers, words)


def _checkpoint(name: str, hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """A picture has four tokens, two merges of two by two patches; a larger one is cut into up to nine slices."""
    tokenizer = make_tokenizer(words, named=NAMED)
    marks = {}
    if name == "MiniCPMV4_7":
        starts = {k: NAMED[f"{k.removesuffix('_id')}_token"] for k in ("image_start_id", "image_end_id")}
        starts |= {k: NAMED[f"{k.removesuffix('_id')}_token"] for k in ("slice_start_id", "slice_end_id")}
        marks = ids(tokenizer, **starts) | {"newline_id": tokenizer.encode("\n", add_special_tokens=False)[0]}
    config = getattr(hf, f"{name}Config")(
        text_config=text("qwen3_5_text", tokenizer, hidden, layers, **language5(hidden, layers)),
        vision_config=eye("", hidden, layers, image_size=2 * SIDE),
        insert_layer_id=0,
        image_size=2 * SIDE,
        **ids(tokenizer, image_token_id=NAMED["image_token"], video_token_id=NAMED["video_token"]),
        **marks,
    )

    def processor() -> Any:
        sizes = {"scale_resolution": 2 * SIDE, "patch_size": PATCH}
        return getattr(hf, f"{name}Processor")(
            image_processor=hf.MiniCPMV4_6ImageProcessor(**sizes),
            video_processor=hf.MiniCPMV4_6VideoProcessor(**sizes),
            tokenizer=tokenizer,
            chat_template=template(NAMED["image_token"], NAMED["video_token"]),
        )

    return Checkpoint(config, getattr(hf, f"{name}ForConditionalGeneration"), tokenizer, processor)
