"""What vLLM hears is what the learner hears: sounds of several lengths in a batch and a prompt, beside pictures and videos."""

import os

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: make engines")

import numpy as np
import torch

import vlm_cases as cases
from mmrl.api.errors import UserError
from mmrl.api.media.clips import VideoFrames
from mmrl.api.media.sounds import Waveform
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import ComputeConfig, PolicyConfig
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.published import save_model
from mmrl.policies.vlm.tiny import audio
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.testing.vllm_parity import TEMPERATURE, differences, sharpen

pytestmark = pytest.mark.slow
HEARING = ("qwen2_audio", "qwen2_5_omni", "qwen3_omni_moe")
GREATEST = 5e-6
"""Difference of log-probabilities in float32, in nats."""


@pytest.fixture(scope="module", params=[f for f in HEARING if f in os.environ.get("MMRL_TEST_FAMILY", f)])
def pair(request, tmp_path_factory):
    """(policy, its vLLM). Qwen2-Audio takes 30 s, as vLLM asks."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(audio, "SECONDS", 30)
        model, processor = tiny.build(request.param, hidden=128, layers=2)
    save_model(model, folder)
    processor.save_pretrained(folder)
    policy = VLM(PolicyConfig(model=str(folder)))
    sharpen(policy)
    generator = VllmGenerator(policy, ComputeConfig(sampler="vllm"), batch_size=32, max_context=1024)
    generator.wake_up()
    yield policy, generator
    generator.close()


def noise(seed, seconds, rate=16_000):
    samples = np.random.default_rng(seed).uniform(-0.5, 0.5, round(seconds * rate))
    return Waveform(samples_T=samples.astype(np.float32), rate=rate)


def clip(seed, seconds):
    """Four frames so many seconds apart."""
    frames = np.random.default_rng(seed).integers(0, 255, (4, 64, 96, 3), dtype=np.uint8)
    return VideoFrames(frames_THWC=frames, times_s=tuple(n * seconds for n in range(4)), duration_s=4 * seconds)


def prompt(*media):
    return Prompt(id="p", messages=[user_message("What is it?", *media)], answer="7")


def heard(policy):
    """Sounds of less than a second beside longer ones, which aren't whole numbers of frames; other media between them."""
    found = [prompt(noise(1, 0.5)), prompt(noise(2, 2.3)), prompt(noise(3, 0.3331), noise(4, 1.7)), prompt()]
    found.append(prompt(noise(5, 2.1), noise(6, 1.00003)))
    if policy.family.sees:
        found.append(prompt(noise(7, 0.7), cases.picture(1, 56, 84)))
        found.append(prompt(cases.picture(2, 90, 64), noise(8, 1.3)))
        found.append(prompt(clip(3, 0.5), noise(9, 0.2), cases.picture(4, 64, 64), noise(10, 1.1)))
    return found


def test_it_says_what_the_learner_says(pair):
    policy, generator = pair
    inputs = [policy.encode(one) for one in heard(policy)]
    groups = generator.generate(inputs, 2, SamplingParams(max_tokens=6, temperature=TEMPERATURE, seed=1))
    assert differences(policy, inputs, groups, TEMPERATURE).abs().max() < GREATEST
    greedy = SamplingParams(max_tokens=6, temperature=0.0)
    theirs, ours = (sampler.generate(inputs, 1, greedy) for sampler in (generator, LocalGenerator(policy)))
    assert [one.token_ids for (one,) in theirs] == [one.token_ids for (one,) in ours]


def test_these_checks_see_another_sound(pair, monkeypatch):
    policy, generator = pair
    inputs, others = ([policy.encode(prompt(noise(seed, 1.2)))] for seed in (1, 2))
    monkeypatch.setattr(generator, "prompt", lambda one, handed=generator.prompt: handed(others[0]))
    groups = generator.generate(inputs, 2, SamplingParams(max_tokens=6, temperature=TEMPERATURE, seed=1))
    assert differences(policy, inputs, groups, TEMPERATURE).abs().max() > 4 * GREATEST


def test_it_hears_with_the_learners_weights(pair):
    """The encoder's go to vLLM by their published names."""
    policy, generator = pair
    tower = next(p for name, p in policy.model.named_parameters() if name.endswith("audio_tower.layers.1.fc1.weight"))
    inputs, before = [policy.encode(prompt(noise(1, 1.2)))], tower.detach().clone()
    try:
        with torch.no_grad():
            tower.add_(tower.std() * torch.randn_like(tower))
        generator.sync()
        groups = generator.generate(inputs, 2, SamplingParams(max_tokens=6, temperature=TEMPERATURE, seed=1))
        assert generator.sent > 0 and differences(policy, inputs, groups, TEMPERATURE).abs().max() < GREATEST
    finally:
        with torch.no_grad():
            tower.copy_(before)


def test_frames_between_whole_positions_are_refused_where_vllm_rounds_them(pair):
    """Qwen3-Omni's positions have fractions, which vLLM cuts off."""
    policy, generator = pair
    if not policy.family.sees:
        with pytest.raises(UserError, match="hears sounds and sees nothing"):
            policy.encode(prompt(clip(1, 0.37)))
        return
    inputs = policy.encode(prompt(clip(1, 0.37)))
    if policy.model.config.model_type == "qwen3_omni_moe_thinker":
        with pytest.raises(UserError, match="rounds positions of frames down, and here some lie between whole ones: use"):
            generator.prompt(inputs)
        return
    groups = generator.generate([inputs], 2, SamplingParams(max_tokens=6, temperature=TEMPERATURE, seed=1))
    assert differences(policy, [inputs], groups, TEMPERATURE).abs().max() < GREATEST


def test_a_model_of_other_lengths_than_vllms_is_refused():
    """vLLM's class of Qwen2-Audio would fail at the first sound."""
    if "qwen2_audio" not in os.environ.get("MMRL_TEST_FAMILY", "qwen2_audio"):
        pytest.skip("another family's turn")
    policy = VLM(PolicyConfig(model="tiny:qwen2_audio:hidden=128,layers=2"))
    with pytest.raises(UserError, match="its class in vLLM reads 30 s of sound, and this model another number: use"):
        VllmGenerator(policy, ComputeConfig(sampler="vllm"), batch_size=4, max_context=512).ready()
