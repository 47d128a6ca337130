"""Processors that scale by Lanczos' filter give Pillow's pictures, also where torchvision has no such filter."""

from __future__ import annotations

import copy
import json
from unittest import mock

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import image_processing_backends

from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import lanczos, tiny
from mmrl.policies.vlm.lanczos import PillowLanczos, _by_pillow, _by_torch, use_pillows_lanczos
from mmrl.policies.vlm.vlm import VLM

PILLOWS = {"idefics3": transformers.Idefics3ImageProcessorPil, "smolvlm": transformers.SmolVLMImageProcessorPil}
"""Family -> the published processor, which scales with Pillow."""
SIDES = (40, 56, 200)


def noise(side: int) -> Image.Image:
    return Image.fromarray(np.random.RandomState(side).randint(0, 256, (side, side, 3), dtype=np.uint8))


@pytest.fixture(params=["with the filter", "without it"])
def torchvision(request, monkeypatch):
    """From version 0.27 on torchvision has the filter on a CPU; without it transformers takes another."""
    if request.param == "without it":
        monkeypatch.setattr(image_processing_backends, "is_torchvision_greater_or_equal", lambda version: False)


@pytest.mark.parametrize("family", PILLOWS)
def test_a_prompt_s_pictures_are_those_of_the_published_processor(family, torchvision):
    policy = VLM(PolicyConfig(model=f"tiny:{family}:hidden=32,layers=1"))
    settings = {name: getattr(policy.processor.image_processor, name) for name in ("size", "max_image_size")}
    published = PILLOWS[family](**settings)
    for side in SIDES:
        wanted = published(images=[[noise(side)]], return_tensors="pt")["pixel_values"]
        for found in (
            policy.encode(Prompt(messages=[user_message("x", noise(side))])).media["pixel_values"],
            policy.reader.pictures([[torch.from_numpy(np.array(noise(side))).permute(2, 0, 1)]])["pixel_values"],
        ):
            torch.testing.assert_close(found, wanted, atol=1e-6, rtol=0)


@given(sides=st.tuples(*[st.integers(1, 60)] * 4), seed=st.integers(0, 9))
@settings(max_examples=25, deadline=None)
def test_a_gpu_s_way_is_a_cpu_s_bit_for_bit(sides, seed):
    """Also of some pictures at a time."""
    height, width, high, wide = sides
    shown = torch.randint(0, 256, (2, 3, height, width), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
    with mock.patch.object(lanczos, "AT_ONCE", (0, 2**26)[seed % 2]):
        assert torch.equal(_by_torch(shown, high, wide), _by_pillow(shown, high, wide))


def test_videos_are_scaled_so_too():
    _, processor = tiny.build("smolvlm")
    use_pillows_lanczos(processor)
    frames = torch.from_numpy(np.stack([np.array(noise(40))] * 2)).permute(0, 3, 1, 2)[None]
    size = transformers.image_utils.SizeDict(height=112, width=112)
    found = super(type(processor.video_processor).__bases__[0], processor.video_processor).resize(
        frames, size, resample=Image.Resampling.LANCZOS
    )
    wanted = np.array(noise(40).resize((112, 112), Image.Resampling.LANCZOS))
    assert found.shape == (1, 2, 3, 112, 112) and np.array_equal(found[0, 1].permute(1, 2, 0).numpy(), wanted)


def test_it_is_saved_and_copied_under_its_own_name_and_others_stay_as_they_are(tmp_path):
    _, processor = tiny.build("smolvlm")
    use_pillows_lanczos(processor)
    processor.image_processor.save_pretrained(tmp_path)
    (written,) = tmp_path.glob("*.json")
    assert json.loads(written.read_text())["image_processor_type"] == "SmolVLMImageProcessor"
    assert isinstance(copy.deepcopy(processor).image_processor, PillowLanczos)
    _, other = tiny.build("qwen2_5_vl")
    use_pillows_lanczos(other)
    assert not isinstance(other.image_processor, PillowLanczos)
    scaled = processor.image_processor
    numbers, size = torch.rand(1, 3, 8, 8), transformers.image_utils.SizeDict(height=4, width=4)
    assert scaled.resize(numbers, size, resample=Image.Resampling.LANCZOS).dtype == torch.float32
