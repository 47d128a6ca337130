"""Tiny checkpoints of Phi-4-multimodal."""

from __future__ import annotations

from collections.abc import Sequence

import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import Checkpoint, eye, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template

PATCH = 2
TILE = 32 * PATCH
"""Its processor counts 16 x 16 tokens for the small picture of the whole, two by two patches each, which fixes a tile's size."""


def phi4_multimodal(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Up to 36 tiles, of which padding is cut off, and a small picture of the whole. transformers has its class among those of
    language models."""
    named = {"image_token": "<|image|>", "audio_token": "<|audio|>"}
    tokenizer = make_tokenizer(words, named=named)
    marks = ids(tokenizer, **{f"{name}_id": token for name, token in named.items()})
    sizes = text("", tokenizer, hidden, layers)
    del sizes["model_type"]
    config = hf.Phi4MultimodalConfig(
        **sizes,
        vision_config=eye("", hidden, layers, image_size=TILE, patch_size=PATCH, crop_size=TILE)
        | {"image_token_id": marks["image_token_id"]},
        audio_config={
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_blocks": 2,
            "num_attention_heads": 2,
            "ext_pw_out_channel": 16,
            "depthwise_separable_out_channel": 16,
            "nemo_conv_channels": 16,
            "audio_token_id": marks["audio_token_id"],
        },
    )

    def processor() -> hf.Phi4MultimodalProcessor:
        images = hf.Phi4MultimodalImageProcessor(size={"height": TILE, "width": TILE}, patch_size=PATCH, dynamic_hd=4)
        sounds = hf.Phi4MultimodalFeatureExtractor()
        return hf.Phi4MultimodalProcessor(images, sounds, tokenizer, chat_template=template(named["image_token"]))

    return Checkpoint(config, hf.Phi4MultimodalForCausalLM, tokenizer, processor)
