"""Pictures that are scaled on the pretended device: Pillow's, as on the CPU, and nobody waits for the filter."""

from __future__ import annotations

import pytest
import torch
import transformers

from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm.vlm import VLM


@pytest.mark.parametrize("family", ["smolvlm", "idefics3"])
def test_by_lanczos_filter(device, family):
    shown = torch.randint(0, 256, (3, 40, 40), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    policies = {place: VLM(PolicyConfig(model=f"tiny:{family}:hidden=32,layers=1"), device=place) for place in ("cpu", "cuda")}
    found = {place: policy.reader.pictures([[shown.to(place)]])["pixel_values"] for place, policy in policies.items()}
    assert found["cuda"].device.type == "cuda" and torch.equal(found["cuda"].cpu(), found["cpu"])
    images, size = policies["cuda"].processor.image_processor, transformers.image_utils.SizeDict(height=56, width=56)
    with device.counting() as seen:
        images.resize(shown.to("cuda")[None], size, resample=images.resample)
    assert [wait.kind for wait in seen.waits] == ["upload"], "of the picture itself"
