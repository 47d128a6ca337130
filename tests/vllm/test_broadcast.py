"""Weights that vLLM's processes get by broadcast, over gloo, from a learner in a thread of this process; see `test_parity.py`."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: make engines")

import vlm_cases as cases
from mmrl.config.sections import ComputeConfig
from mmrl.rollout.generate.broadcast import Receiver, WeightSender
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.rollout.generate.weights import changed_weights, parameter_versions
from vllm_cases import FAMILY, GAP, differences, varied

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
ROOM = 2**19


def broadcast(learner, generator, sender, size, before, calls):
    """What `BroadcastTransfer` does, with an engine in this process; returns the names that were sent. calls: answers one call
    after the other, as an actor does: vLLM's processes can't answer two at once."""
    if sender.group is None:
        meeting = sender.meet(size)
        joining = calls.submit(generator.join, meeting, 1)
        sender.join(meeting)
        joining.result()
    now, sent = parameter_versions(learner.model), []

    def announce(load):
        sent.extend(name for name, *_ in load.places)
        return calls.submit(generator.take, load)

    with torch.no_grad():
        sender.send(changed_weights(learner.model, before, now), announce, lambda call: call.result())
    generator.took()
    return sent, now


@pytest.mark.parametrize("size", [1, pytest.param(2, marks=pytest.mark.exhaustive)])
def test_weights_in_buckets_reach_all_processes_of_vllm(clip, size):
    learner, policy = cases.policy(FAMILY, hidden=128), cases.policy(FAMILY, hidden=128)
    settings = ComputeConfig(sampler="vllm", tensor_parallel=size)
    generator = VllmGenerator(policy, settings, batch_size=64, max_context=1024)
    assert isinstance(generator, Receiver)
    generator.ready()
    sender = WeightSender("127.0.0.1", ROOM, torch.device("cpu"))
    inputs, calls = [learner.encode(p) for p in varied(clip, 12)], ThreadPoolExecutor(1)
    try:
        known = {}
        for change in ("whole", "model.language_model.layers.1.self_attn.q_proj.weight"):
            with torch.no_grad():
                for name, p in learner.model.named_parameters():
                    if change in ("whole", name):
                        p.add_(0.3 * p.std() * torch.randn_like(p))
            sent, known = broadcast(learner, generator, sender, size, known, calls)
            groups = generator.generate(inputs, 2, SamplingParams(max_tokens=6, temperature=0.7))
            assert differences(learner, inputs, groups, 0.7).abs().mean() < GAP
            assert change == "whole" or all(".layers.1.self_attn." in name for name in sent), "of the block that it is in"
        assert generator.syncs == 2
    finally:
        sender.close()
        generator.close()
