"""Tiny checkpoints of families that cut a picture into tiles of one size and show the whole picture beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers as hf

from mmrl.api.errors import UserError
from mmrl.policies.vlm.tiny.checkpoint import HEADS, PATCH, SIDE, Checkpoint, eye, in_turn, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, rows, template

TOKENS = (SIDE // PATCH // 2) ** 2
"""Tokens of a tile: two by two patches make one."""


def internvl(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """InternVL 3: up to 12 tiles, and a small picture of the whole."""
    return _internvl("qwen2", hidden, layers, words)


def internvl3_5(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """InternVL 3.5: the same with Qwen3's language model."""
    return _internvl("qwen3", hidden, layers, words, head_dim=hidden // HEADS)


def _internvl(language: str, hidden: int, layers: int, words: Sequence[str], **more: Any) -> Checkpoint:
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    named |= {"video_token": "<video>"}
    tokenizer = make_tokenizer(words, named=named)
    config = hf.InternVLConfig(
        text_config=text(language, tokenizer, hidden, layers, tie_word_embeddings=True, **more),
        vision_config=eye("", hidden, layers),
        image_seq_length=TOKENS,
        **ids(tokenizer, image_token_id=named["context_image_token"]),
    )

    def processor() -> hf.InternVLProcessor:
        size = {"height": SIDE, "width": SIDE}
        images, videos = hf.GotOcr2ImageProcessor(size=size), hf.InternVLVideoProcessor(size=size)
        layout = template(named["context_image_token"], named["video_token"])
        return hf.InternVLProcessor(images, tokenizer, videos, image_seq_length=TOKENS, chat_template=layout)

    return Checkpoint(config, hf.InternVLForConditionalGeneration, tokenizer, processor)


def idefics3(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    config, tokenizer, sizes = _idefics(hf.Idefics3Config, hidden, layers, words)

    def processor() -> hf.Idefics3Processor:
        images = hf.Idefics3ImageProcessor(**sizes)
        return hf.Idefics3Processor(images, tokenizer, image_seq_len=TOKENS, chat_template=template("<image>"))

    return Checkpoint(config, hf.Idefics3ForConditionalGeneration, tokenizer, processor)


def smolvlm(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """SmolVLM2. Its processor needs num2words, for videos alone."""
    config, tokenizer, sizes = _idefics(hf.SmolVLMConfig, hidden, layers, words)

    def processor() -> hf.SmolVLMProcessor:
        images, videos = hf.SmolVLMImageProcessor(**sizes), hf.SmolVLMVideoProcessor(**sizes, num_frames=4, fps=1)
        try:
            return hf.SmolVLMProcessor(
                images, tokenizer, videos, image_seq_len=TOKENS, chat_template=template("<image>", "<video>")
            )
        except ImportError as error:
            raise UserError(
                "a smolvlm model needs the Python package num2words: install num2words", key="policy.model"
            ) from error

    return Checkpoint(config, hf.SmolVLMForConditionalGeneration, tokenizer, processor)


def _idefics(kind: Any, hidden: int, layers: int, words: Sequence[str]) -> tuple[Any, Any, dict[str, Any]]:
    """(configuration, tokenizer, options of the image processor)."""
    rows = [f"<row_{i}_col_{j}>" for i in range(1, 7) for j in range(1, 7)]
    own = ["<fake_token_around_image>", "<end_of_utterance>", "<global-img>", "<video>", *rows]
    tokenizer = make_tokenizer(words, own, {"image_token": "<image>"})
    config = kind(
        text_config=text("llama", tokenizer, hidden, layers),
        vision_config=eye("", hidden, layers),
        scale_factor=2,
        pad_token_id=tokenizer.pad_token_id,
        **ids(tokenizer, image_token_id="<image>"),
    )
    return config, tokenizer, {"size": {"longest_edge": 2 * SIDE}, "max_image_size": {"longest_edge": SIDE}}


def aya_vision(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Aya Vision: up to 12 tiles, and a small picture of the whole."""
    own = ["<|START_OF_IMG|>", "<|END_OF_IMG|>", "<|IMG_PATCH|>", "<|IMG_LINE_BREAK|>", "<image>"]
    tokenizer = make_tokenizer(words, [*own, "TILE_GLOBAL", *(f"TILE_{n}" for n in range(1, 13)), "TILE"])
    config = hf.AyaVisionConfig(
        text_config=text("cohere2", tokenizer, hidden, layers, sliding_window=1024),
        vision_config=eye("siglip_vision_model", hidden, layers, vision_use_head=False),
        **ids(tokenizer, image_token_index="<|IMG_PATCH|>"),
    )

    def processor() -> hf.AyaVisionProcessor:
        images = hf.GotOcr2ImageProcessor(size={"height": SIDE, "width": SIDE})
        sizes = {"patch_size": PATCH, "img_size": SIDE, "downsample_factor": 2}
        return hf.AyaVisionProcessor(images, tokenizer, chat_template=template("<image>"), **sizes)

    return Checkpoint(config, hf.AyaVisionForConditionalGeneration, tokenizer, processor)


def cohere2_vision(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Command A Vision. Its processor counts as many tokens in a tile as a patch has pixels, which fixes the size of tiles."""
    patch = 4
    side = 2 * patch**2  # two by two patches make a token
    named = {"boi_token": "<|START_OF_IMG|>", "image_token": "<|IMG_PATCH|>", "eoi_token": "<|END_OF_IMG|>"}
    named |= {"img_line_break_token": "<|IMG_LINE_BREAK|>"}
    tokenizer = make_tokenizer(words, named=named)
    config = hf.Cohere2VisionConfig(
        text_config=text("cohere2", tokenizer, hidden, layers, sliding_window=1024),
        vision_config=eye("siglip_vision_model", hidden, layers, vision_use_head=False, image_size=side, patch_size=patch),
        alignment_intermediate_size=4 * hidden,
        **ids(tokenizer, image_token_id=named["image_token"]),
    )

    def processor() -> hf.Cohere2VisionProcessor:
        images = hf.Cohere2VisionImageProcessor(size={"height": side, "width": side}, patch_size=patch)
        return hf.Cohere2VisionProcessor(images, tokenizer, chat_template=template(named["image_token"]))

    return Checkpoint(config, hf.Cohere2VisionForConditionalGeneration, tokenizer, processor)


def ovis2(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Ovis2: a patch becomes a mixture of the rows of a visual vocabulary."""
    marks = ["<IMG_START>", "<IMG_GRID>", "<IMG_COL>", "<IMG_ROW>", "<IMG_END>"]
    tokenizer = make_tokenizer(words, ["<image>", "<IMG_ATOM>", *marks])
    config = hf.Ovis2Config(
        text_config=text("qwen2", tokenizer, hidden, layers),
        vision_config=eye("", hidden, layers, vocab_size=64, hidden_stride=2, num_visual_indicator_tokens=len(marks)),
        visual_indicator_token_ids=tokenizer.convert_tokens_to_ids(marks),
        vocab_size=rows(tokenizer),
        hidden_size=hidden,
        **ids(tokenizer, image_token_id="<IMG_ATOM>"),
    )

    def processor() -> hf.Ovis2Processor:
        images = hf.Ovis2ImageProcessor(size={"height": SIDE, "width": SIDE}, crop_to_patches=True)
        return hf.Ovis2Processor(images, tokenizer, chat_template=template("<image>"), image_seq_length=TOKENS)

    return Checkpoint(config, hf.Ovis2ForConditionalGeneration, tokenizer, processor)


def lfm2_vl(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """LFM2-VL: pictures of any shape up to a size, then tiles and a small picture of the whole. Its layers are convolutions, the
    last one attention."""
    marks = ["<|image_start|>", "<|image_end|>", "<|img_thumbnail|>"]
    tokenizer = make_tokenizer(words, marks, {"image_token": "<image>"})
    own: dict[str, Any] = {"layer_types": in_turn(layers, "conv"), "block_auto_adjust_ff_dim": False}
    own |= {"conv_dim": hidden, "block_dim": hidden}  # stand in published configurations, and vLLM reads them
    config = hf.Lfm2VlConfig(
        text_config=text("lfm2", tokenizer, hidden, layers, **own),
        vision_config=eye("siglip2_vision_model", hidden, layers, num_patches=(SIDE // PATCH) ** 2, vision_use_head=False),
        projector_hidden_size=2 * hidden,
        **ids(tokenizer, image_token_id="<image>"),
    )

    def processor() -> hf.Lfm2VlProcessor:
        sizes = {"encoder_patch_size": PATCH, "tile_size": 2 * SIDE, "min_image_tokens": TOKENS, "max_image_tokens": 4 * TOKENS}
        return hf.Lfm2VlProcessor(hf.Lfm2VlImageProcessor(**sizes), tokenizer, chat_template=template("<image>"))

    return Checkpoint(config, hf.Lfm2VlForConditionalGeneration, tokenizer, processor)
