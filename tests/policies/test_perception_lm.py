"""Perception LM, whose pictures have different numbers of tiles."""

import pytest
import torch
from transformers import DynamicCache

import vlm_cases as cases
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams

pytest.importorskip("timm")


def test_pictures_with_different_numbers_of_tiles_are_read_together():
    """What follows is what follows each prompt alone, in the model's own form: a picture of several tiles."""
    policy = VLM(PolicyConfig(model="tiny:perception_lm"))
    inputs = [policy.encode(cases.prompt(seed)) for seed in (1, 2, 3)]
    assert len({one.media_rows["pixel_values"] for one in inputs}) == 3
    sampler = LocalGenerator(policy, 8)
    together = sampler.first(inputs)
    for one, found in zip(inputs, together, strict=True):
        pixels = {"pixel_values": one.media["pixel_values"].transpose(0, 1)}
        with torch.inference_mode():
            logits = policy.family.step(one.ids[None], None, one.positions[:, None], pixels, DynamicCache())
        assert torch.allclose(found, policy.distribution(logits, 1.0)[0], atol=1e-5)
    sampling = SamplingParams(max_tokens=3, temperature=1.0, seed=3)
    alone = [sampler.generate([one], 2, sampling, [i])[0] for i, one in enumerate(inputs)]
    assert [[s.token_ids for s in group] for group in sampler.generate(inputs, 2, sampling)] == [
        [s.token_ids for s in group] for group in alone
    ]
