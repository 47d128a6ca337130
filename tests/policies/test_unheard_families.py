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


@pytest.mark.parametrize("build", [exaone4_5, idefics2, vipllava])
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
