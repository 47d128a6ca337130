"""Tiny models of families that mmrl has no adapter for: each family's own configuration, model and processor, random weights."""

from __future__ import annotations

import functools

import pytest

from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm import vlm as vlm_module
from mmrl.policies.vlm.vlm import VLM

BUILDERS = ("gemma3", "glm4v", "qwen3_5", "idefics3", "smolvlm", "llava_onevision", "mistral3")


@functools.cache
def policy(family: str) -> VLM:
    """A policy whose weights are larger than an initialisation's, so that what a token sees shows in the probabilities."""
    model, processor = tiny.build(family, hidden=64, spread=0.1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vlm_module, "load", lambda *_: (model, processor))
        return VLM(PolicyConfig(model=f"tiny/{family}"))
