"""Settings of published checkpoints that tiny models lack, in vLLM and in the learner: two programs that read them."""

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make engines")

from changed_models import change
from mmrl.api.errors import UserError
from mmrl.config.sections import ComputeConfig, PolicyConfig
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.testing.vllm_parity import gaps, sharpen, shown
from published_settings import SETTINGS, set_values

pytestmark = pytest.mark.exhaustive
BOUND = 1e-5
"""Nats a token, in float32."""
SERVED = ("Aya Vision", "Pixtral", "Mistral Small 3.2", "Qwen2.5-VL", "Qwen2.5-VL 7B", "Qwen3-VL", "InternVL3.5")
"""Those that vLLM's CPU build serves in float32, without Command A Vision, whose windows it computes otherwise if a prompt is
longer (by 0.01 nats)."""


@pytest.mark.parametrize("setting", [n for n in SETTINGS if n.partition(":")[0] in SERVED and "YaRN" not in n])
def test_vllm_says_what_the_learner_says(setting, monkeypatch):
    family, values = SETTINGS[setting]
    change(monkeypatch, lambda config: set_values(config, values))
    policy = VLM(PolicyConfig(model=f"tiny:{family}:hidden=256,layers=4"))
    sharpen(policy)
    generator = VllmGenerator(policy, ComputeConfig(sampler="vllm"), batch_size=32, max_context=1024)
    try:
        generator.ready()
        found = gaps(policy, generator, {kind: prompts for kind, prompts in shown().items() if kind in ("text", "two pictures")})
    finally:
        generator.close()
    assert all(not isinstance(gap, str) and gap.mean < BOUND for gap in found.values()), found


def test_yarn_with_several_axes_is_refused(monkeypatch):
    """Without the refusal: 0.03 nats."""
    family, values = SETTINGS["Qwen2.5-VL: YaRN"]
    change(monkeypatch, lambda config: set_values(config, values))
    generator = VllmGenerator(VLM(PolicyConfig(model=f"tiny:{family}")), ComputeConfig(sampler="vllm"), 4, 64)
    with pytest.raises(UserError, match=r"YaRN's frequencies .* from four times .*: use \"local\""):
        generator.ready()
