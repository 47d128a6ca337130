"""`policy.batch_invariant` on the pretended device: where its tensors are, and what the host waits for."""

from __future__ import annotations

import pytest
import torch

import flash_kernels
import vlm_cases as cases
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import ones
from mmrl.policies.vlm import sequence_attention
from mmrl.policies.vlm.varlen import VARLEN
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.decode_graphs import DecodeGraphs
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.room_rows import RoomRows
from mmrl.rollout.generate.rows import Rows
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.update.pack_conversations import pack
from pretended_device.tensor import DeviceTensor


class Kernels:
    """Stand-ins that refuse a tensor of the host, as a GPU does, and compute without waiting."""

    def __getattr__(self, name):
        def kernel(*given, seqused_k=None, **options):
            tensors = [x for x in (*given, seqused_k) if isinstance(x, torch.Tensor)]
            assert len(tensors) >= 5 and all(isinstance(x, DeviceTensor) for x in tensors)
            options |= {} if seqused_k is None else {"seqused_k": seqused_k.inner}
            found = getattr(flash_kernels, name)(*(x.inner if isinstance(x, DeviceTensor) else x for x in given), **options)
            return tuple(DeviceTensor(x) for x in found)

        return kernel


@pytest.fixture
def policy(device, monkeypatch):
    monkeypatch.setattr(sequence_attention, "KERNELS", Kernels())
    monkeypatch.setattr(VARLEN, "failure", "the pretended device has no such kernel")
    config = PolicyConfig(model="tiny:qwen2_5_vl:hidden=64,layers=2", dtype="bfloat16", batch_invariant=True)
    made = VLM(config, device="cuda")
    made.eos = frozenset()
    return made


def test_the_sampler_and_the_learner_have_the_same_bits_on_a_device(device, policy):
    prompts = [cases.prompt(1), cases.prompt(2, 2)]
    inputs = [policy.encode(p) for p in prompts]
    groups = LocalGenerator(policy).generate(inputs, 3, SamplingParams(max_tokens=9, temperature=1.0, seed=1))
    rollouts = cases.as_rollouts(prompts, inputs, groups)
    (micro,) = pack(rollouts, ones(rollouts), policy, shared_prefix=True, budget=4000).micro
    logprobs_L, _ = policy.logprobs(micro, 1.0)
    assert len(logprobs_L) == 54 and torch.equal(logprobs_L.detach().cpu(), micro.sampler_logprobs_L.cpu())
    logprobs_L.sum().backward()
    assert all(bool(p.grad.cpu().any()) for name, p in policy.parameters() if "q_proj.weight" in name or "patch_embed" in name)


@pytest.mark.parametrize("kind", [Rows, RoomRows])
def test_a_token_waits_for_nothing(device, policy, kind):
    sampler, graphs = LocalGenerator(policy), DecodeGraphs(policy, 4)
    graphs.failure = "the pretended device captures nothing"
    with torch.inference_mode():
        inputs = [policy.encode(cases.prompt(seed)) for seed in (1, 2)]
        rows = Rows(sampler, inputs, 2) if kind is Rows else RoomRows(sampler, inputs, 2, graphs, 200)
        token_N = torch.zeros(4, dtype=torch.long, device="cuda")
        rows.step(token_N, 0)
        with device.no_waits(), device.counting() as seen:
            for t in range(1, 5):
                rows.step(token_N, t)
    assert not seen.copies


def test_a_pass_waits_once_for_where_its_sequences_are(device, policy):
    rollouts = cases.rollouts(policy, [cases.prompt(1)])
    (micro,) = pack(rollouts, ones(rollouts), policy, shared_prefix=True, budget=4000).micro
    with torch.no_grad():
        policy.logprobs(micro, 1.0)
        with device.counting() as seen:
            policy.logprobs(micro, 1.0)
    waits = [str(wait) for wait in seen.waits]
    assert policy.family.capabilities.way == "varlen" and sum("sequences.py" in wait for wait in waits) == 1, waits
