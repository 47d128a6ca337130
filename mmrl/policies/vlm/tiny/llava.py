"""Tiny checkpoints of families built like LLaVA: a known vision tower, a projector, a known language model."""

from __future__ import annotations

from collections.abc import Sequence

import transformers as hf

from mmrl.policies.vlm.tiny.checkpoint import HEADS, PATCH, SIDE, Checkpoint, eye, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template

GRIDS = [[SIDE * high, SIDE * wide] for high in (1, 2) for wide in (1, 2)]
"""Heights and widths into which tiles are put."""


def llava_next(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """LLaVA-NeXT (1.6): up to four tiles, and a small picture of the whole. What is padding in them has no tokens."""
    tokenizer = make_tokenizer(words, named={"image_token": "<image>"})
    config = hf.LlavaNextConfig(
        text_config=text("llama", tokenizer, hidden, layers),
        vision_config=eye("clip_vision_model", hidden, layers),
        image_grid_pinpoints=GRIDS,
        **ids(tokenizer, image_token_index="<image>"),
    )

    def processor() -> hf.LlavaNextProcessor:
        tile = {"height": SIDE, "width": SIDE}
        return hf.LlavaNextProcessor(
            hf.LlavaNextImageProcessor(size={"shortest_edge": SIDE}, crop_size=tile, image_grid_pinpoints=GRIDS),
            tokenizer,
            patch_size=PATCH,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=template("<image>"),
        )

    return Checkpoint(config, hf.LlavaNextForConditionalGeneration, tokenizer, processor)


def granite4_vision(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Granite 4 Vision: tiles through a resampler, put into several layers of the language model; logits are divided."""
    tokenizer = make_tokenizer(words, named={"image_token": "<image>"})
    width = max(64, hidden)  # of the eye, and of the resampler, which has a head for every 64 of it
    scales = {"embedding_multiplier": 2.0, "logits_scaling": 4.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}
    config = hf.Granite4VisionConfig(
        text_config=text("granite4_vision_text", tokenizer, hidden, layers, **scales),
        vision_config=eye("siglip_vision_model", width, layers, vision_use_head=False),
        vision_feature_select_strategy="full",
        image_grid_pinpoints=GRIDS,
        downsample_rate="1/2",
        deepstack_layer_map=[[-1, 0]],
        spatial_target_layers=[min(n + 1, layers - 1) for n in range(4)],  # of several for one layer the last is read
        qformer_config={
            "num_hidden_layers": 1,
            **{"hidden_size": width, "encoder_hidden_size": width, "num_attention_heads": width // 64},  # as 5.24 makes them
            "intermediate_size": 2 * width,
            "cross_attention_frequency": 1,
            "use_qformer_text_input": False,
        },
        **ids(tokenizer, image_token_index="<image>"),
    )

    def processor() -> hf.Granite4VisionProcessor:
        tile = {"height": SIDE, "width": SIDE}
        return hf.Granite4VisionProcessor(
            hf.LlavaNextImageProcessor(size=tile, crop_size=tile, do_center_crop=False, image_grid_pinpoints=GRIDS),
            tokenizer,
            patch_size=PATCH,
            vision_feature_select_strategy="full",
            downsample_rate="1/2",
            chat_template=template("<image>"),
        )

    return Checkpoint(config, hf.Granite4VisionForConditionalGeneration, tokenizer, processor)


def llava_onevision(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """A message's only picture is cut into tiles; several are not."""
    named = {"image_token": "<image>", "video_token": "<video>"}
    tokenizer = make_tokenizer(words, named=named)
    config = hf.LlavaOnevisionConfig(
        text_config=text("qwen2", tokenizer, hidden, layers),
        vision_config=eye("siglip_vision_model", hidden, layers, vision_use_head=False),
        image_grid_pinpoints=GRIDS,
        **ids(tokenizer, image_token_index=named["image_token"], video_token_index=named["video_token"]),
    )

    def processor() -> hf.LlavaOnevisionProcessor:
        size = {"height": SIDE, "width": SIDE}
        return hf.LlavaOnevisionProcessor(
            hf.LlavaOnevisionImageProcessor(size=size, image_grid_pinpoints=GRIDS),
            tokenizer,
            hf.LlavaOnevisionVideoProcessor(size=size),
            num_image_tokens=(SIDE // PATCH) ** 2,
            vision_feature_select_strategy="full",
            chat_template=template(named["image_token"], named["video_token"]),
        )

    return Checkpoint(config, hf.LlavaOnevisionForConditionalGeneration, tokenizer, processor)


def mistral3(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Mistral Small 3.1: pictures of any shape, a token for every two by two patches and one at the end of each row."""
    tokenizer = make_tokenizer(words, ["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    config = hf.Mistral3Config(
        text_config=text("mistral", tokenizer, hidden, layers, head_dim=hidden // HEADS, sliding_window=None),
        vision_config=eye("pixtral", hidden, layers, image_size=4 * SIDE, head_dim=hidden // HEADS),
        spatial_merge_size=2,
        **ids(tokenizer, image_token_index="[IMG]"),
    )

    def processor() -> hf.PixtralProcessor:
        images = hf.PixtralImageProcessor(patch_size={"height": 2 * PATCH, "width": 2 * PATCH}, size={"longest_edge": 4 * SIDE})
        return hf.PixtralProcessor(images, tokenizer, patch_size=PATCH, spatial_merge_size=2, chat_template=template("[IMG]"))

    return Checkpoint(config, hf.Mistral3ForConditionalGeneration, tokenizer, processor)


def llava(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """LLaVA 1.5: pictures have one size; the vision tower's last layer is not read."""
    tokenizer = make_tokenizer(words, named={"image_token": "<image>"})
    config = hf.LlavaConfig(
        text_config=text("llama", tokenizer, hidden, layers),
        vision_config=eye("clip_vision_model", hidden, layers),
        **ids(tokenizer, image_token_index="<image>"),
    )

    def processor() -> hf.LlavaProcessor:
        return hf.LlavaProcessor(
            hf.CLIPImageProcessor(size={"shortest_edge": SIDE}, crop_size={"height": SIDE, "width": SIDE}),
            tokenizer,
            patch_size=PATCH,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
            chat_template=template("<image>"),
        )

    return Checkpoint(config, hf.LlavaForConditionalGeneration, tokenizer, processor)


def pixtral(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """Pixtral: a LLaVA with a vision tower for pictures of any shape, a token for every patch and one at the end of each row."""
    tokenizer = make_tokenizer(words, ["[IMG]", "[IMG_BREAK]", "[IMG_END]"])
    config = hf.LlavaConfig(
        text_config=text("mistral", tokenizer, hidden, layers, head_dim=hidden // HEADS, sliding_window=None),
        vision_config=eye("pixtral", hidden, layers, image_size=4 * SIDE, head_dim=hidden // HEADS),
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
        **ids(tokenizer, image_token_index="[IMG]"),
    )

    def processor() -> hf.PixtralProcessor:
        images = hf.PixtralImageProcessor(patch_size={"height": PATCH, "width": PATCH}, size={"longest_edge": 4 * SIDE})
        return hf.PixtralProcessor(images, tokenizer, patch_size=PATCH, chat_template=template("[IMG]"))

    return Checkpoint(config, hf.LlavaForConditionalGeneration, tokenizer, processor)


def deepseek_vl(hidden: int, layers: int, words: Sequence[str]) -> Checkpoint:
    """DeepSeek-VL 1.3B: pictures are padded to a square of one size."""
    tokenizer = make_tokenizer(words, named={"image_token": "<image_placeholder>"})
    config = hf.DeepseekVLConfig(
        text_config=text("llama", tokenizer, hidden, layers),
        vision_config=eye("siglip_vision_model", hidden, layers, vision_use_head=False),
        **ids(tokenizer, image_token_id="<image_placeholder>"),
    )

    def processor() -> hf.DeepseekVLProcessor:
        # the mean is given, because the colour of the padding is only derived from one that is
        images = hf.DeepseekVLImageProcessor(size={"height": SIDE, "width": SIDE}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
        layout = template("<image_placeholder>")
        return hf.DeepseekVLProcessor(images, tokenizer, chat_template=layout, num_image_tokens=(SIDE // PATCH) ** 2)

    return Checkpoint(config, hf.DeepseekVLForConditionalGeneration, tokenizer, processor)
