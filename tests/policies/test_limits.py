"""Limits on pixels: every family's processor keeps them, or says in one line what it does instead."""

from __future__ import annotations

import functools

import pytest
import torch
from transformers import (
    AriaImageProcessor,
    Glm5NextImageProcessor,
    NemotronH_Omni_Reasoning_V3ImageProcessor,
    PerceptionLMImageProcessor,
)

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.config.policy import SMOKE_PIXELS
from mmrl.policies.names import HEARING
from mmrl.policies.names import LIMITED as SMALL
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.known_families import family_of
from mmrl.policies.vlm.limits import pixel_limits, video_factor

LIMITED = {  # pixels behind a token, limit, tokens of the small picture of the whole at that limit
    "qwen2_vl": (28**2, 20_000, 0),
    "qwen2_5_vl": (28**2, 20_000, 0),
    "qwen3_vl": (32**2, 20_000, 0),
    "qwen3_vl_moe": (32**2, 20_000, 0),
    "qwen3_5": (32**2, 20_000, 0),
    "qwen2_5_omni": (28**2, 20_000, 0),
    "qwen3_omni_moe": (32**2, 20_000, 0),
    "qwen3_5_moe": (32**2, 20_000, 0),
    "glm4v": (28**2, 20_000, 0),
    "glm4v_moe": (28**2, 20_000, 0),
    "glm46v": (28**2, 20_000, 0),
    "ernie4_5_vl_moe": (28**2, 20_000, 0),
    "glm_ocr": (28**2, 20_000, 0),
    "paddleocr_vl": (28**2, 20_000, 0),
    "exaone4_5": (28**2, 20_000, 0),
    "muse_glimmer": (28**2, 20_000, 0),
    "kimi_k25": (28**2, 20_000, 0),
    "lighton_ocr": (28**2, 20_000, 0),
    "hunyuan_vl": (28**2, 20_000, 14),  # tokens before, between and behind rows
    "video_llama_3": (14**2, 20_000, 0),
    "mistral3": (14**2, 5_000, 0),
    "pixtral": (7**2, 5_000, 0),
    "lfm2_vl": (14**2, 10_000, 16),
    "minicpmv4_6": (28**2, 20_000, 4),
    "minicpmv4_7": (28**2, 20_000, 4),
    "internvl": (14**2, 5_000, 4),
    "internvl3_5": (14**2, 5_000, 4),
    "llama4": (14**2, 2_000, 4),
    "perception_lm": (14**2, 2_500, 4),  # one tile
    "phi4_multimodal": (4**2, 9_000, 16 * 16 + 1 + 16 + 32),  # and a token at the end of each row
    "aya_vision": (14**2, 5_000, 4),
    "ovis2": (14**2, 5_000, 4),
    "cohere2_vision": (8**2, 5_000, 16),
    "idefics3": (14**2, 3_000, 0),
    "smolvlm": (14**2, 3_000, 0),
}
ONE_SIZE = ("gemma3", "paligemma", "llava", "deepseek_vl")
VIDEOS = dict.fromkeys(("qwen2_vl", "qwen2_5_vl", "glm4v", "glm4v_moe", "glm46v", "ernie4_5_vl_moe", "kimi_k25"), 28)
VIDEOS |= dict.fromkeys(("glm_ocr", "exaone4_5", "muse_glimmer", "video_llama_3"), 28) | {"gemma4_unified": 21}
VIDEOS |= dict.fromkeys(("qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"), 32) | {"gemma4": 21}
VIDEOS |= dict.fromkeys(("internvl", "internvl3_5", "smolvlm", "llava_onevision", "perception_lm"), 0)
VIDEOS |= dict.fromkeys(("minicpmv4_6", "minicpmv4_7"), 0) | {"qwen2_5_omni": 28, "qwen3_omni_moe": 32}


def encoded(processor, limits, size=(280, 224)):
    content = [{"type": "image", "image": cases.picture(0, *size)}, {"type": "text", "text": "What digit is shown?"}]
    options = {"tokenize": True, "return_dict": True, "return_tensors": "pt", "processor_kwargs": {"images_kwargs": limits}}
    return processor.apply_chat_template([[{"role": "user", "content": content}]], **options)


def tokens(model, inputs):
    config = model.config
    seen = next(
        found
        for part in (config, config.vision_config)
        for name in ("image_token_id", "image_token_index")
        if (found := getattr(part, name, None))
    )
    return int((inputs["input_ids"] == seen).sum())


@functools.cache
def processor_of(family: str):
    """Which no test changes."""
    return tiny.build(family, hidden=32)[1]


def test_every_family_is_in_one_table():
    others = ("llava_onevision", "llava_next", "granite4_vision", "gemma3n", "gemma4", "gemma4_unified", "step3p7", "openvla")
    assert sorted([*LIMITED, *ONE_SIZE, *others, *HEARING]) == sorted(tiny.FAMILIES)


@pytest.mark.parametrize("family", LIMITED)
def test_a_limit_leaves_fewer_tokens_and_the_model_reads_them(family):
    cell, high, whole = LIMITED[family]
    model, processor = tiny.build(family, hidden=32)
    family_of(model, processor)  # which mends Llama 4's forward pass in transformers 5.24
    limits = pixel_limits(processor, None, high)
    before, inputs = tokens(model, encoded(processor, {})), encoded(processor, limits)
    after = tokens(model, inputs)
    assert whole < after < before
    assert high / 4 < (after - whole) * cell <= high < (before - whole) * cell
    with torch.no_grad():
        pictures = {k: v.float() for k, v in inputs.items() if "pixel_values" in k}  # Llama 4's are in bfloat16
        assert model(**{**inputs, **pictures}).logits.isfinite().all()
    for size in ((300, 60), (60, 300), (61, 39), (500, 400)):
        assert (tokens(model, encoded(processor, limits, size)) - whole) * cell <= high, size
    assert pixel_limits(processor, None, None) == {}


@pytest.mark.parametrize("family", SMALL)
def test_a_smoke_run_sets_limits_that_can_be_kept(family):
    assert pixel_limits(processor_of(family), 3136, SMOKE_PIXELS)


@pytest.mark.parametrize("family", LIMITED)
def test_a_limit_below_one_token_or_tile_is_refused(family):
    with pytest.raises(UserError, match=r"^policy\.max_pixels: (a picture|its pictures).*: give at least \d+, or leave it out$"):
        pixel_limits(processor_of(family), None, 40)


@pytest.mark.parametrize("family", ["qwen3_5", "glm4v", "lfm2_vl"])
def test_small_pictures_are_enlarged(family):
    model, processor = tiny.build(family, hidden=32)
    found = [tokens(model, encoded(processor, pixel_limits(processor, low, 60_000), (60, 40))) for low in (None, 30_000)]
    assert LIMITED[family][0] * found[0] < 30_000 <= LIMITED[family][0] * found[1] <= 60_000


def test_where_small_pictures_stay_small_a_least_size_is_refused():
    for family, least in (("mistral3", 14**2), ("kimi_k25", 28**2), ("internvl", 28**2), ("minicpmv4_6", 56**2)):
        _, processor = tiny.build(family, hidden=32)
        assert pixel_limits(processor, least, None) == {}
        with pytest.raises(UserError, match=rf"^policy\.min_pixels: .*: give at most {least}, or leave it out$"):
            pixel_limits(processor, least + 1, None)


def test_numbers_of_tokens_that_a_model_was_trained_with():
    """Gemma 4 has 3 x 3 patches of 7 pixels behind a token, and 70, 140, 280, 560 or 1120 tokens."""
    model, processor = tiny.build("gemma4", hidden=32)
    cell = 21**2
    assert pixel_limits(processor, None, 140 * cell) == {"max_soft_tokens": 140}
    assert pixel_limits(processor, None, 140 * cell - 1) == {"max_soft_tokens": 70}
    assert pixel_limits(processor, 140 * cell, None) == {"max_soft_tokens": 140}
    assert pixel_limits(processor, 1, None) == {"max_soft_tokens": 70}, "the processor's own"
    found = [tokens(model, encoded(processor, pixel_limits(processor, None, n * cell))) for n in (70, 140, 280)]
    assert all(most / 2 < n <= most for n, most in zip(found, (70, 140, 280), strict=True))
    for limits in ((None, 70 * cell - 1), (71 * cell, 139 * cell), (1121 * cell, None)):
        with pytest.raises(UserError, match=r"its pictures can have 30870, 61740, 123480, 246960, 493920 pixels: allow one"):
            pixel_limits(processor, *limits)


@pytest.mark.parametrize("family", ONE_SIZE)
def test_pictures_of_one_size(family):
    _, processor = tiny.build(family, hidden=32)
    assert pixel_limits(processor, 28**2, 28**2) == {}
    with pytest.raises(UserError, match=r"^policy\.max_pixels: its pictures are always 28 x 28: leave it out$"):
        pixel_limits(processor, None, 28**2 - 1)
    with pytest.raises(UserError, match=r"^policy\.min_pixels: its pictures are always 28 x 28: leave it out$"):
        pixel_limits(processor, 28**2 + 1, None)


def test_tiles_that_the_model_puts_together_by_its_config():
    _, processor = tiny.build("llava_onevision", hidden=32)
    assert pixel_limits(processor, None, 56 * 56) == {}
    with pytest.raises(UserError, match=r"cut into tiles of 784 pixels, up to 3136 in all, as the model's config says: give at"):
        pixel_limits(processor, None, 56 * 56 - 1)


def test_a_processor_that_cuts_nothing_has_one_size():
    """GOT-OCR2's image processor, which InternVL uses, cuts only if it is told so."""
    _, processor = tiny.build("internvl", hidden=32)
    uncut = type("Uncut", (), {"image_processor": processor.image_processor})()
    with pytest.raises(UserError, match="its pictures are always 28 x 28"):
        pixel_limits(uncut, None, 100)


def test_numbered_tiles():
    images = PerceptionLMImageProcessor(tile_size=28, max_num_tiles=9)
    processor = type("Reader", (), {"image_processor": images})()
    assert pixel_limits(processor, None, 5000) == {"max_num_tiles": 1}
    assert pixel_limits(processor, None, 10**6) == {"max_num_tiles": 9}


@pytest.mark.parametrize(
    ("images", "grid"),
    [
        (Glm5NextImageProcessor(min_image_tokens=4, max_image_tokens=64), "image_grid_thw"),
        (NemotronH_Omni_Reasoning_V3ImageProcessor(patch_size=14, min_num_patches=4, max_num_patches=256), "image_grid_hw"),
    ],
)
def test_limits_that_are_numbers_of_tokens_or_patches(images, grid):
    """Of families without a tiny checkpoint."""
    processor = type("Reader", (), {"image_processor": images})()

    def pixels(size, low=None, high=None):
        limits = pixel_limits(processor, low, high)
        return int(images(images=[cases.picture(0, *size)], return_tensors="pt", **limits)[grid].prod()) * images.patch_size**2

    assert pixels((280, 224), high=20_000) <= 20_000 < pixels((280, 224))
    assert pixels((50, 40)) < 30_000 <= pixels((50, 40), 30_000)
    with pytest.raises(UserError, match=r"^policy\.max_pixels: a picture's token has 784 pixels: give at least 784, or leave it"):
        pixel_limits(processor, None, 783)


def test_a_square_for_all_pictures():
    processor = type("Reader", (), {"image_processor": AriaImageProcessor(max_image_size=490)})()
    assert pixel_limits(processor, 1000, 490**2) == {}
    with pytest.raises(UserError, match=r"^policy\.max_pixels: its pictures are always 490 x 490: leave it out$"):
        pixel_limits(processor, None, 490**2 - 1)


def test_a_processor_without_any_such_attribute():
    processor = type("Reader", (), {"image_processor": object()})()
    with pytest.raises(UserError, match=r"^policy\.min_pixels, max_pixels: a object has no such limits: leave them out$"):
        pixel_limits(processor, None, 5000)


@pytest.mark.parametrize("family", [f for f in tiny.FAMILIES if f != "openvla"])
def test_frames_of_videos(family):
    processor = processor_of(family)
    if family in VIDEOS:
        assert video_factor(processor) == VIDEOS[family]
        return
    with pytest.raises(UserError, match=r"takes no videos: show pictures"):
        video_factor(processor)
