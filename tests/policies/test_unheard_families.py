"""Classes of transformers that nothing in mmrl names get full speed from the probe, without a line of code."""

from __future__ import annotations

import pytest
import transformers as hf

from mmrl.policies.vlm import tiny
from mmrl.policies.vlm import vlm as vlm_module
from mmrl.policies.vlm.coordinate_formats import known_format
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.tiny.checkpoint import eye, text
from mmrl.policies.vlm.tiny.tokens import ids, make_tokenizer, template
from mmrl.testing import check_policy


def exaone4_5():
    """Windows in the language model and in the vision tower, grouped queries in both."""
    tokenizer = make_tokenizer()
    config = hf.Exaone4_5_Config(
        text_config=text("exaone4", tokenizer, 32, 4, sliding_window=8, sliding_window_pattern=4),
        vision_config={
            "depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 4, "num_key_value_heads": 2, "patch_size": 14,
            "out_hidden_size": 32, "fullatt_block_indexes": [1],
        },
        **ids(tokenizer, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>"),
    )  # fmt: skip
    size = {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 256}
    processor = hf.Exaone4_5_Processor(
        hf.Qwen2VLImageProcessor(size=size), tokenizer, hf.Qwen2VLVideoProcessor(size=size), chat_template=tokenizer.chat_template
    )
    return hf.Exaone4_5_ForConditionalGeneration(config), processor


def idefics2():
    """Pictures of any shape go through a resampler of learned queries."""
    named = {"image_token": "<image>", "image_boundary_token": "<fake_token_around_image>", "end_of_utterance_token": "<eou>"}
    tokenizer = make_tokenizer(named=named)
    config = hf.Idefics2Config(
        text_config=text("mistral", tokenizer, 32, 2, head_dim=8, sliding_window=None),
        vision_config=eye("", 32, 2),
        perceiver_config={
            "hidden_size": 32, "resampler_n_latents": 6, "resampler_depth": 1, "resampler_n_heads": 4, "resampler_head_dim": 8,
            "num_key_value_heads": 2,
        },
        **ids(tokenizer, image_token_id="<image>"),
    )  # fmt: skip
    images = hf.Idefics2ImageProcessor(size={"shortest_edge": 21, "longest_edge": 28}, do_image_splitting=False)
    processor = hf.Idefics2Processor(images, tokenizer, image_seq_len=6, chat_template=template("<image>"))
    return hf.Idefics2ForConditionalGeneration(config), processor


def vipllava():
    """Several layers of the vision tower, side by side."""
    tokenizer = make_tokenizer(named={"image_token": "<image>"})
    config = hf.VipLlavaConfig(
        text_config=text("llama", tokenizer, 32, 2),
        vision_config=eye("clip_vision_model", 32, 3),
        vision_feature_layers=[-1, -2],
        image_seq_length=16,
        **ids(tokenizer, image_token_index="<image>"),
    )
    processor = hf.LlavaProcessor(
        hf.CLIPImageProcessor(size={"shortest_edge": 28}, crop_size=28),
        tokenizer,
        patch_size=7,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=template("<image>"),
    )
    return hf.VipLlavaForConditionalGeneration(config), processor


def granite4_vision():
    """Pictures of tiles through a resampler, put into several layers of the language model; logits are divided."""
    tokenizer = make_tokenizer(named={"image_token": "<image>"})
    scales = {"embedding_multiplier": 2.0, "logits_scaling": 4.0, "residual_multiplier": 0.5, "attention_multiplier": 0.2}
    shapes, tile = [[28, 56], [56, 28]], {"height": 28, "width": 28}
    config = hf.Granite4VisionConfig(
        text_config=text("granite4_vision_text", tokenizer, 32, 4, **scales),
        vision_config=eye("siglip_vision_model", 64, 3, vision_use_head=False),
        vision_feature_select_strategy="full",
        image_grid_pinpoints=shapes,
        downsample_rate="1/2",
        deepstack_layer_map=[[-1, 0], [-2, 1]],
        spatial_target_layers=[2, 3, 2, 3],
        qformer_config={
            "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64,
            "encoder_hidden_size": 64, "cross_attention_frequency": 1, "use_qformer_text_input": False,
        },
        **ids(tokenizer, image_token_index="<image>"),
    )  # fmt: skip
    images = hf.LlavaNextImageProcessor(size=tile, crop_size=tile, do_center_crop=False, image_grid_pinpoints=shapes)
    processor = hf.Granite4VisionProcessor(
        images,
        tokenizer,
        patch_size=7,
        vision_feature_select_strategy="full",
        downsample_rate="1/2",
        chat_template=template("<image>"),
    )
    return hf.Granite4VisionForConditionalGeneration(config), processor


def hunyuan_vl():
    """Positions of four axes, one of which is the number of the picture."""
    named = {"image_token": "<img_ctx>", "image_start_token": "<img_on>", "image_end_token": "<img_off>"}
    tokenizer = make_tokenizer(named=named, special=["<img_newline>"])
    rope = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 2, 2, 2]}
    config = hf.HunYuanVLConfig(
        text_config=text("hunyuan_vl_text", tokenizer, 32, 2, head_dim=16, rope_parameters=rope),
        vision_config={
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "patch_size": 7,
            "out_hidden_size": 32, "text_hidden_size": 32, "max_image_size": 112, "min_image_size": 28,
        },
        **ids(tokenizer, image_token_id="<img_ctx>", im_start_id="<img_on>", im_end_id="<img_off>"),
        **ids(tokenizer, im_newline_id="<img_newline>"),
    )  # fmt: skip
    images = hf.HunYuanVLImageProcessor(size={"shortest_edge": 28 * 28, "longest_edge": 112 * 112}, patch_size=7)
    processor = hf.HunYuanVLProcessor(images, tokenizer, chat_template=template("<img_on><img_ctx><img_off>"))
    return hf.HunYuanVLForConditionalGeneration(config), processor


def qwen4_exp():
    """Gated DeltaNet, attention to blocks that an index chooses, experts, and two copies of the hidden states."""
    tokenizer = make_tokenizer()
    config = tiny.build("qwen3_5_moe", hidden=32, layers=4)[0].config
    language = {k: v for k, v in config.text_config.to_dict().items() if k not in ("model_type", "intermediate_size")}
    language |= {"hc_count": 2, "hc_lowrank": 8, "indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 16}
    language |= {"indexer_budget": 1024, "indexer_compress_ratio": 4}
    vision = {k: v for k, v in config.vision_config.to_dict().items() if k not in ("model_type", "deepstack_visual_indexes")}
    marks = {"image_token_id": "<|image_pad|>", "video_token_id": "<|video_pad|>"}
    marks |= {"vision_start_token_id": "<|vision_start|>", "vision_end_token_id": "<|vision_end|>"}
    config = hf.Qwen4ExpConfig(text_config=language, vision_config=vision, tie_word_embeddings=True, **ids(tokenizer, **marks))
    return hf.Qwen4ExpForConditionalGeneration(config), tiny.build("qwen3_5_moe", hidden=32)[1]


def video_llama_3():
    """Pictures and videos of any shape, a token for each patch, without positions in three axes."""
    tokenizer = make_tokenizer()
    config = hf.VideoLlama3Config(
        text_config=text("qwen2", tokenizer, 32, 2),
        vision_config={k: v for k, v in eye("", 32, 2).items() if k != "image_size"},
        **ids(tokenizer, image_token_id="<|image_pad|>", video_token_id="<|video_pad|>"),
    )
    sizes = {"size": {"shortest_edge": 28 * 28, "longest_edge": 28 * 28 * 64}, "patch_size": 7}
    images, videos = hf.VideoLlama3ImageProcessor(**sizes), hf.VideoLlama3VideoProcessor(**sizes)
    processor = hf.VideoLlama3Processor(images, tokenizer, videos, chat_template=tokenizer.chat_template)
    return hf.VideoLlama3ForConditionalGeneration(config), processor


LATER = [pytest.param(build, marks=pytest.mark.slow) for build in (granite4_vision, hunyuan_vl, qwen4_exp, video_llama_3)]


@pytest.mark.parametrize("build", [exaone4_5, idefics2, vipllava, *LATER])
def test_a_class_that_nobody_looked_at_shares_its_prompt(build, tmp_path):
    model, processor = build()
    kind = model.config.model_type
    assert (
        kind not in tiny.FAMILIES
        and known_format(kind) == (None, "")
        and vlm_module.family_of(model, processor).__class__ is Family
    )
    model.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    report = check_policy(str(tmp_path))
    assert report.ok, report
    assert "a group shares its prompt" in {r.name: r.note for r in report.results}["a_group_shares_its_prompt"]
