"""Weights that vLLM's processes get by broadcast, over gloo, from a learner in a thread of this process; see `test_parity.py`."""

import threading

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


def broadcast(learner, generator, sender, size, before):
    """What `BroadcastTransfer` does, with an engine in this process; returns the names that were sent."""
    faults, sent = [], []

    def in_a_thread(work, *given):
        def run():
            try:
                work(*given)
            except RuntimeError as error:
                faults.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        return thread

    if sender.group is None:
        meeting = sender.meet(size)
        joining = in_a_thread(generator.join, meeting, 1)
        sender.join(meeting)
        joining.join()
    now = parameter_versions(learner.model)
    waiting = [threading.Thread()]

    def announce(load):
        sent.extend(name for name, *_ in load.places)
        waiting[0] = in_a_thread(generator.take, load)
        waiting[0].join(0.1)
        return waiting[0]

    with torch.no_grad():
        sender.send(changed_weights(learner.model, before, now), announce, lambda thread: thread.join())
    assert not faults, faults
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
    inputs = [learner.encode(p) for p in varied(clip, 12)]
    try:
        known = {}
        for change in ("whole", "model.language_model.layers.1.self_attn.q_proj.weight"):
            with torch.no_grad():
                for name, p in learner.model.named_parameters():
                    if change in ("whole", name):
                        p.add_(0.3 * p.std() * torch.randn_like(p))
            sent, known = broadcast(learner, generator, sender, size, known)
            groups = generator.generate(inputs, 2, SamplingParams(max_tokens=6, temperature=0.7))
            assert differences(learner, inputs, groups, 0.7).abs().mean() < GAP
            assert change == "whole" or all(".layers.1.self_attn." in name for name in sent), "of the block that it is in"
        assert generator.syncs == 2
    finally:
        sender.close()
        generator.close()
