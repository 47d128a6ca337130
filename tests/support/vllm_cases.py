"""Prompts for a vLLM sampler, and how far what it says of its tokens is from what the learner says; imported where vLLM is."""

from __future__ import annotations

import os

import vlm_cases as cases
from mmrl.api.media.clips import Clip
from mmrl.api.types import Prompt
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.testing.vllm_parity import MEAN_GAP, differences

FAMILY = os.environ.get("MMRL_TEST_FAMILY", "qwen2_5_vl")
GAP = MEAN_GAP


def varied(clip: str, count: int) -> list[Prompt]:
    """Text alone, one picture and several of many sizes, clips of several lengths, clips beside pictures."""
    made = []
    for n in range(count):
        text = {"type": "text", "text": "What is shown? " + "x" * (n % 7)}
        match n % 4:
            case 0:
                parts = [text]
            case 1:
                parts = [text, picture(n, 28 + 9 * (n % 13), 28 + 5 * (n % 17))]
            case 2:
                parts = [picture(n, 56, 30 + n), text, picture(n + 1, 84, 56), picture(n + 2, 200, 28)]
            case _:
                clips = [Clip(path=clip, count=2 + n % 5)] + ([Clip(path=clip, fps=1.5)] if n % 8 == 3 else [])
                parts = [*({"type": "video", "video": c} for c in clips), text, *([picture(n, 56, 56)] if n % 3 else [])]
        made.append(Prompt(id=f"p{n}", messages=[{"role": "user", "content": parts}], answer="7"))
    return made


def picture(seed: int, width: int, height: int) -> dict:
    return {"type": "image", "image": cases.picture(seed, width, height)}


def sampled(policy, generator, prompts, temperature=0.7, max_tokens=6, **options):
    generator.wake_up()
    inputs = [policy.encode(p) for p in prompts]
    groups = generator.generate(inputs, 2, SamplingParams(max_tokens=max_tokens, temperature=temperature, **options))
    return inputs, groups, differences(policy, inputs, groups, temperature or 1.0).abs()
