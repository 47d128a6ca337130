"""Tiny checkpoints of Google's families."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import HEADS, PATCH, SIDE, Checkpoint, eye, in_turn, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, rows, template

TOKENS = (SIDE // PATCH // 2) ** 2
"""Tokens of a picture."""
SAMPLES = 64
"""Of a sound, behind a token."""
BREAKS = tuple("\n" * count for count in (1, 2, 3, 4))
"""Line breaks that are one token in Gemma 3's vocabulary; vLLM looks for them around its pictures."""


def gemma3(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Pictures have one size; their tokens attend to each other in both directions. Layers slide but for the last one."""
    named = {"boi_token": "<start_of_image>", "image_token": "<image_soft_token>", "eoi_token": "<end_of_image>"}
    tokenizer = make_tokenizer(words, named=named, written=BREAKS)
    slides = {"layer_types": in_turn(layers, "sliding_attention"), "sliding_window": 1024}
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


def gemma4(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Pictures of any shape, with at most 70 tokens; small ones are enlarged to nearly as many. It has the per-layer embeddings
    and the audio tower of E2B and E4B, and pictures whose tokens attend in both directions, as in 26B and 31B."""
    named = {"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>"}
    named |= {"boa_token": "<|audio>", "audio_token": "<|audio|>", "eoa_token": "<audio|>"}
    tokenizer = make_tokenizer(words, ["<|video|>"], named)
    width, pooled = hidden // HEADS, 3
    own: dict[str, Any] = {
        "hidden_size_per_layer_input": 16,
        "vocab_size_per_layer_input": rows(tokenizer),
        "global_head_dim": 2 * width,
    }
    own |= {"layer_types": in_turn(layers, "sliding_attention"), "head_dim": width, "use_bidirectional_attention": "vision"}
    grid = {"patch_size": PATCH, "pooling_kernel_size": pooled}
    sight = {"head_dim": width, "num_key_value_heads": HEADS, "position_embedding_size": 1024}
    sight["default_output_length"] = 70  # stands in published configurations, and vLLM reads it
    config = hf.Gemma4Config(
        text_config=text("gemma4_text", tokenizer, hidden, layers, **own),
        vision_config=eye("gemma4_vision", hidden, layers, **sight, **grid),
        audio_config={
            "hidden_size": hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "subsampling_conv_channels": [16, 8],
            "output_proj_dims": hidden,
        },
        **ids(
            tokenizer,
            **{f"{name}_id": token for name, token in named.items() if name != "eoa_token"},
            eoa_token_index=named["eoa_token"],
            video_token_id="<|video|>",
        ),
    )

    def processor() -> hf.Gemma4Processor:
        return hf.Gemma4Processor(
            hf.Gemma4AudioFeatureExtractor(),
            hf.Gemma4ImageProcessor(max_soft_tokens=70, **grid),
            tokenizer,
            hf.Gemma4VideoProcessor(max_soft_tokens=70, **grid),
            chat_template=template(named["image_token"], "<|video|>"),
            image_seq_length=70,
        )

    return Checkpoint(config, hf.Gemma4ForConditionalGeneration, tokenizer, processor)


def gemma4_unified(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Gemma 4 12B: no towers; patches of pictures, and samples of sounds, are projected into the language model."""
    named = {"boi_token": "<|image>", "image_token": "<|image|>", "eoi_token": "<image|>"}
    named |= {"boa_token": "<|audio>", "audio_token": "<|audio|>", "eoa_token": "<audio|>"}
    tokenizer = make_tokenizer(words, ["<|video|>"], named)
    width = hidden // HEADS
    own = {"layer_types": in_turn(layers, "sliding_attention"), "head_dim": width, "global_head_dim": 2 * width}
    grid = {"patch_size": PATCH, "pooling_kernel_size": 3}
    config = hf.Gemma4UnifiedConfig(
        text_config=text("gemma4_unified_text", tokenizer, hidden, layers, final_logit_softcapping=30.0, **own),
        vision_config={**grid, "mm_embed_dim": hidden, "mm_posemb_size": 256, "output_proj_dims": hidden},
        audio_config={"audio_embed_dim": SAMPLES},
        **ids(
            tokenizer,
            **{f"{name}_id": token for name, token in named.items() if name != "eoa_token"},
            eoa_token_index=named["eoa_token"],
            video_token_id="<|video|>",
        ),
    )

    def processor() -> hf.Gemma4UnifiedProcessor:
        return hf.Gemma4UnifiedProcessor(
            hf.Gemma4UnifiedAudioFeatureExtractor(feature_size=SAMPLES, audio_samples_per_token=SAMPLES),
            hf.Gemma4UnifiedImageProcessor(max_soft_tokens=70, **grid),
            tokenizer,
            hf.Gemma4UnifiedVideoProcessor(max_soft_tokens=70, **grid),
            chat_template=template(named["image_token"], "<|video|>"),
            image_seq_length=70,
        )

    return Checkpoint(config, hf.Gemma4UnifiedForConditionalGeneration, tokenizer, processor)


def paligemma(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """PaliGemma 2. It writes boxes in location tokens. Its processor takes no prompt without a picture."""
    from transformers.models.paligemma.processing_paligemma import EXTRA_TOKENS

    tokenizer = make_tokenizer(words, named={"image_token": "<image>"}, written=EXTRA_TOKENS)
    tokenizer.bos_token = "<|im_start|>"
    width, tokens = hidden // HEADS, (SIDE // PATCH) ** 2
    config = hf.PaliGemmaConfig(
        text_config=text("gemma2", tokenizer, hidden, layers, head_dim=width, query_pre_attn_scalar=width),
        vision_config=eye("siglip_vision_model", hidden, layers, vision_use_head=False),
        projection_dim=hidden,
        **ids(tokenizer, image_token_index="<image>"),
    )

    def processor() -> hf.PaliGemmaProcessor:
        images = hf.SiglipImageProcessor(size={"height": SIDE, "width": SIDE}, image_seq_length=tokens)
        return hf.PaliGemmaProcessor(images, tokenizer, chat_template=template("<image>"))

    return Checkpoint(config, hf.PaliGemmaForConditionalGeneration, tokenizer, processor)
