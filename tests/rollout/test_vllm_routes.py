"""The experts that vLLM tells, as the embedded sampler tells them; `tests/vllm/test_runner_v2.py` has them from a real engine."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

import vlm_cases as cases
from mmrl.policies.vlm.experts import layers_with_experts
from mmrl.rollout.generate.vllm_routes import expert_routes


def told(tokens, read):
    """A completion of so many tokens; rows of two layers with two experts each, all different."""
    return SimpleNamespace(token_ids=[7] * tokens, routed_experts=np.arange(read * 4, dtype=np.uint8).reshape(read, 2, 2))


def test_layers_without_experts_are_left_out_and_siblings_share_the_prompts_routes():
    model = cases.policy("glm4v_moe").model
    assert layers_with_experts(model) == [1], "the first layer has none"
    prompt = SimpleNamespace(ids=torch.arange(3))
    first, second = expert_routes([told(2, 4), told(1, 3)], prompt, model)
    assert first.prompt_PMK.tolist() == [[[2, 3]], [[6, 7]], [[10, 11]]] and first.prompt_PMK.dtype == torch.int16
    assert first.after_AMK.tolist() == [[[14, 15]]] and second.after_AMK.shape == (0, 1, 2)
    assert second.prompt_PMK is first.prompt_PMK


def test_another_number_of_tokens_is_a_fault():
    with pytest.raises(AssertionError, match="another number of tokens"):
        expert_routes([told(2, 5)], SimpleNamespace(ids=torch.arange(3)), cases.policy("glm4v_moe").model)
