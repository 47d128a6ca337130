"""Tiny checkpoints of families that cut a picture into tiles of one size and show the whole picture beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import transformers as hf

from mmrl.api.errors import UserError
from mmrl.policies.vlm.tiny.checkpoint import PATCH, SIDE, Checkpoint, eye, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template

TOKENS = (SIDE // PATCH // 2) ** 2
"""Tokens of a tile: two by two patches make one."""


def internvl(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """InternVL 3 and 3.5: up to 12 tiles, and a small picture of the whole."""
    named = {"start_image_token": "<img>", "end_image_token": "</img>", "context_image_token": "<IMG_CONTEXT>"}
    named |= {"video_token": "<video>"}
    tokenizer = make_tokenizer(words, named=named)
    config = hf.InternVLConfig(
        text_config=text("qwen2", tokenizer, hidden, layers, tie_word_embeddings=True),
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
