"""Settings of published checkpoints that tiny models lack, in vLLM and in the learner: two programs that read them."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make engines")

from changed_models import change
from mmrl.config.sections import ComputeConfig, PolicyConfig
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.testing.vllm_parity import gaps, sharpen, shown
from published_settings import SETTINGS, YARN, set_values

pytestmark = pytest.mark.exhaustive
BOUND = 1e-5
"""Nats a token, in float32."""
SERVED = ("Aya Vision", "Pixtral", "Mistral Small 3.2", "Qwen2.5-VL", "Qwen2.5-VL 7B", "Qwen3-VL", "InternVL3.5")
"""Models without experts and convolutions, which vLLM's CPU build serves in float32. On a CPU without AVX-512 it was wrong about
experts (Qwen3-VL MoE: 0.5 nats) and convolutions (LFM2-VL: 0.2), and everywhere it was tried about windows shorter than a prompt of
Command A Vision (0.01)."""
WIDER = {"Qwen2.5-VL: YaRN": {"text.rope_parameters": YARN | {"mrope_section": [8, 12, 12]}}}
"""Heads have 64 numbers here, and sections fill them."""


@pytest.mark.parametrize("setting", [name for name in SETTINGS if name.partition(":")[0] in SERVED])
def test_vllm_says_what_the_learner_says(setting, monkeypatch):
    family, values = SETTINGS[setting]
    change(monkeypatch, lambda config: set_values(config, WIDER.get(setting, values)))
    policy = VLM(PolicyConfig(model=f"tiny:{family}:hidden=256,layers=4"))
    sharpen(policy)
    generator = VllmGenerator(policy, ComputeConfig(sampler="vllm"), batch_size=32, max_context=1024)
    try:
        generator.ready()
        found = gaps(policy, generator, {kind: prompts for kind, prompts in shown().items() if kind in ("text", "two pictures")})
    finally:
        generator.close()
    assert all(not isinstance(gap, str) and gap.mean < BOUND for gap in found.values()), found
