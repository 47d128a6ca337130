"""Decoding in rooms of fixed shape: the host waits for nothing in a step, as a capture on a GPU requires."""

from __future__ import annotations

import pytest
import torch

import vlm_cases as cases
from mmrl.config.sections import PolicyConfig
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.decode_graphs import DecodeGraphs
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.room_rows import RoomRows
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.testing.cases import some_of

FAMILIES = (
    *("qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe", "gemma3", "llava", "internvl", "deepseek_vl"),
    *("aya_vision", "cohere2_vision", "pixtral", "idefics3", "gemma4", "llava_onevision", "mistral3", "smolvlm", "glm4v"),
    *("glm46v", "glm4v_moe", "kimi_k25", "ovis2", "ernie4_5_vl_moe", "llama4", "internvl3_5", "openvla", "paligemma"),
    *("qwen3_5", "qwen3_5_moe", "lfm2_vl"),
)


@pytest.fixture
def made(device):
    """(policy, sampler) of a family on the pretended device."""

    def make(family):
        policy = VLM(PolicyConfig(model=f"tiny:{family}"), device="cuda")
        sampler = LocalGenerator(policy, 8)
        sampler.graphs = DecodeGraphs(policy, 8)
        return policy, sampler

    return make


@pytest.mark.parametrize("family", some_of(FAMILIES, ("qwen2_5_vl", "qwen3_vl", "gemma3", "lfm2_vl")))
def test_a_step_waits_for_nothing(device, made, family):
    """Nor does it copy anything from the host, and neither does the way into a room, or into another one."""
    policy, sampler = made(family)
    sampler.graphs.failure = "the pretended device captures nothing"
    with torch.inference_mode():
        inputs = [policy.encode(cases.prompt(seed)) for seed in (1, 2)]
        rows = RoomRows(sampler, inputs, 4, sampler.graphs, 500)
        token_N = torch.zeros(8, dtype=torch.long, device="cuda")
        rows.step(token_N, 0)  # fills the caches of kernels and of constants
        kept_N = torch.tensor([0, 5, 6], device="cuda")
        with device.no_waits(), device.counting() as seen:
            for t in range(1, 9):
                rows.step(token_N, t)
            rows.keep(kept_N)
            rows.step(token_N, 9)
    assert not seen.copies and len(sampler.graphs.rooms) == 2


def test_a_device_that_captures_nothing_samples_the_same(device, made):
    policy, sampler = made("qwen2_5_vl")
    inputs, sampling = [policy.encode(cases.prompt(seed)) for seed in (1, 2)], SamplingParams(max_tokens=9, temperature=1.0)
    wanted = LocalGenerator(policy, 8).generate(inputs, 4, sampling)
    with pytest.warns(match=r"generate\.cuda_graphs: a step can't be captured"):
        found = sampler.generate(inputs, 4, sampling)
    assert [s.token_ids for group in found for s in group] == [s.token_ids for group in wanted for s in group]
