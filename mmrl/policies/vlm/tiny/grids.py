"""Tiny checkpoints of families that read pictures of any shape as grids of patches, beside those of Qwen and GLM."""

from __future__ import annotations

from collections.abc import Sequence

import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import HEADS, Checkpoint, eye, in_turn, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template

PATCH = 14
CELL = (2 * PATCH) ** 2
"""Pixels behind one token."""
LIMITS = {"shortest_edge": 4 * CELL, "longest_edge": 1024 * CELL}


def exaone4_5(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """EXAONE 4.5: windows in the language model and in the vision tower, grouped queries in both."""
    tokenizer = make_tokenizer(words)
    slides = {"layer_types": in_turn(layers, "sliding_attention"), "sliding_window": 1024}
    config = hf.Exaone4_5_Config(
        text_config=text("exaone4", tokenizer, hidden, layers, **slides),
        vision_config={
            "depth": layers,
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_heads": HEADS,
            "num_key_value_heads": 2,
            "patch_size": PATCH,
            "out_hidden_size": hidden,
            "fullatt_block_indexes": [layers - 1],
        },
        **ids(tokenizer, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>"),
    )

    def processor() -> hf.Exaone4_5_Processor:
        images, videos = hf.Qwen2VLImageProcessor(size=LIMITS), hf.Qwen2VLVideoProcessor(size=LIMITS)
        return hf.Exaone4_5_Processor(images, tokenizer, videos, chat_template=tokenizer.chat_template)

    return Checkpoint(config, hf.Exaone4_5_ForConditionalGeneration, tokenizer, processor)


def paddleocr_vl(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """PaddleOCR-VL: positions in three axes; it shows no videos."""
    marks = {"vision_start_token_id": "<|IMAGE_START|>", "vision_end_token_id": "<|IMAGE_END|>"}
    marks |= {"image_token_id": "<|IMAGE_PLACEHOLDER|>", "video_token_id": "<|video_pad|>"}
    tokenizer = make_tokenizer(words, list(marks.values())[:2], {"image_token": marks["image_token_id"]})
    width = hidden // HEADS
    side = max(width // 2 * 3 // 8, 1)
    rope = {"rope_type": "default", "rope_theta": 500000.0, "mrope_section": [width // 2 - 2 * side, side, side]}
    config = hf.PaddleOCRVLConfig(
        text_config=text("paddleocr_vl_text", tokenizer, hidden, layers, head_dim=width, rope_parameters=rope),
        vision_config=eye("", hidden, layers, image_size=4 * PATCH, patch_size=PATCH),
        **ids(tokenizer, **marks),
    )

    def processor() -> hf.PaddleOCRVLProcessor:
        shown = "<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>"
        return hf.PaddleOCRVLProcessor(hf.PaddleOCRVLImageProcessor(size=LIMITS), tokenizer, chat_template=template(shown))

    return Checkpoint(config, hf.PaddleOCRVLForConditionalGeneration, tokenizer, processor)


def muse_glimmer(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Muse Glimmer: windows in the language model, full attention without rotary embeddings in each fourth layer from the last,
    and logits that are scaled and capped."""
    marks = {"image_token_id": "<|patch|>", "video_token_id": "<|video|>"}
    ends = ["<|image_start|>", "<|image_end|>", "<|vid_frame_separator|>", "<|vid_start|>", "<|vid_end|>"]
    tokenizer = make_tokenizer(words, [*marks.values(), *ends], {})
    config = hf.MuseGlimmerConfig(
        text_config=text("muse_glimmer_text", tokenizer, hidden, layers, head_dim=hidden // HEADS, sliding_window=1024),
        vision_config={
            "patch_size": PATCH,
            "pos_emb_height": 4,
            "pos_emb_width": 4,
            "num_attention_heads": HEADS,
            "num_hidden_layers": layers,
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
        },
        out_hidden_size=4 * hidden,
        projector_hidden_size=2 * hidden,
        **ids(tokenizer, **marks),
    )

    def processor() -> hf.MuseGlimmerProcessor:
        images, videos = hf.MuseGlimmerImageProcessor(), hf.MuseGlimmerVideoProcessor()
        layout = template(marks["image_token_id"], marks["video_token_id"])
        return hf.MuseGlimmerProcessor(images, videos, tokenizer, chat_template=layout)

    return Checkpoint(config, hf.MuseGlimmerForConditionalGeneration, tokenizer, processor)


def lighton_ocr(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """LightOnOCR: Pixtral's tower with two by two patches to a token, and Qwen3's language model."""
    named = {"image_token": "<|image_pad|>", "image_break_token": "<|vision_pad|>", "image_end_token": "<|vision_end|>"}
    tokenizer = make_tokenizer(words, named=named)
    config = hf.LightOnOcrConfig(
        text_config=text("qwen3", tokenizer, hidden, layers, head_dim=hidden // HEADS),
        vision_config=eye("pixtral", hidden, layers, image_size=16 * PATCH, patch_size=PATCH, head_dim=hidden // HEADS),
        **ids(tokenizer, image_token_id=named["image_token"]),
    )

    def processor() -> hf.LightOnOcrProcessor:
        cell = {"height": 2 * PATCH, "width": 2 * PATCH}
        images = hf.PixtralImageProcessor(patch_size=cell, size={"longest_edge": 16 * PATCH})
        return hf.LightOnOcrProcessor(images, tokenizer, patch_size=PATCH, chat_template=template(named["image_token"]))

    return Checkpoint(config, hf.LightOnOcrForConditionalGeneration, tokenizer, processor)


def hunyuan_vl(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """HunyuanOCR: positions of four axes, one of which is the number of the picture, and a token behind each row of patches."""
    named = {"image_token": "<img_ctx>", "image_start_token": "<img_on>", "image_end_token": "<img_off>"}
    tokenizer = make_tokenizer(words, ["<img_newline>"], named)
    pairs = hidden // HEADS // 2
    axes = [pairs - 3 * (pairs // 4), *[pairs // 4] * 3]
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": axes}
    config = hf.HunYuanVLConfig(
        text_config=text("hunyuan_vl_text", tokenizer, hidden, layers, head_dim=hidden // HEADS, rope_parameters=rope),
        vision_config={
            "hidden_size": hidden,
            "intermediate_size": 2 * hidden,
            "num_hidden_layers": layers,
            "num_attention_heads": HEADS,
            "patch_size": PATCH,
            "out_hidden_size": hidden,
            "text_hidden_size": hidden,
            "max_image_size": 32 * PATCH,
            "min_image_size": 2 * PATCH,
        },
        **ids(tokenizer, image_token_id="<img_ctx>", im_start_id="<img_on>", im_end_id="<img_off>"),
        **ids(tokenizer, im_newline_id="<img_newline>"),
    )

    def processor() -> hf.HunYuanVLProcessor:
        images = hf.HunYuanVLImageProcessor(size=LIMITS, patch_size=PATCH)
        return hf.HunYuanVLProcessor(images, tokenizer, chat_template=template("<img_on><img_ctx><img_off>"))

    return Checkpoint(config, hf.HunYuanVLForConditionalGeneration, tokenizer, processor)


def video_llama_3(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """VideoLLaMA 3: pictures and videos of any shape, without positions in three axes."""
    tokenizer = make_tokenizer(words)
    tower = eye("", hidden, layers, patch_size=PATCH)
    del tower["image_size"]
    config = hf.VideoLlama3Config(
        text_config=text("qwen2", tokenizer, hidden, layers),
        vision_config=tower,
        **ids(tokenizer, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>"),
    )

    def processor() -> hf.VideoLlama3Processor:
        images = hf.VideoLlama3ImageProcessor(size=LIMITS, patch_size=PATCH)
        videos = hf.VideoLlama3VideoProcessor(size=LIMITS, patch_size=PATCH)
        return hf.VideoLlama3Processor(images, tokenizer, videos, chat_template=tokenizer.chat_template)

    return Checkpoint(config, hf.VideoLlama3ForConditionalGeneration, tokenizer, processor)
