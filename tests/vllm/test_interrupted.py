"""Completions of vLLM that are interrupted by new weights, in vLLM's environment; see `test_parity.py`."""

import threading
import time

import pytest
import torch

pytest.importorskip("vllm", reason="vLLM is not installed: make engines")

import vlm_cases as cases
from mmrl.config.sections import ComputeConfig
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.testing.vllm_parity import differences
from vllm_cases import FAMILY, GAP

PLAN = {4: -2.0, 9: 0.5}
"""Number of vLLM's steps -> factor of the learner's head from then on."""


@pytest.fixture(scope="module")
def policy():
    return cases.policy(FAMILY, hidden=128)


@pytest.fixture(scope="module")
def generator(policy):
    made = VllmGenerator(policy, ComputeConfig(sampler="vllm", staleness=1, interrupt=True), batch_size=64, max_context=1024)
    made.ready()
    yield made
    made.close()


@pytest.fixture
def head(policy):
    """Sets the learner's head to so many times what it was."""
    weight = policy.model.get_output_embeddings().weight
    kept = weight.detach().clone()

    def to(factor):
        with torch.no_grad():
            weight.copy_(kept * factor)

    yield to
    to(1.0)


def interrupted(monkeypatch, generator, inputs, sampling, plan, change):
    """Groups that the learner's thread interrupts after so many steps of the engine."""
    step, calls, learner = generator.engine.step, [], []

    def counted():
        calls.append(1)
        if len(calls) in plan:
            asked = threading.Event()

            def renew():
                change(plan[len(calls)])
                asked.set()
                generator.renew(100 + len(learner))

            learner.append(threading.Thread(target=renew))
            learner[-1].start()
            asked.wait()
            while not generator.exchange.wanted:
                time.sleep(0.001)
        return step()

    monkeypatch.setattr(generator.engine, "step", counted)
    groups = generator.generate(inputs, 2, sampling)
    for thread in learner:
        thread.join()
    return groups


def inputs_of(policy):
    return [policy.encode(p) for p in (cases.prompt(1), cases.prompt(4, 2), cases.prompt(2, 0))]


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_with_the_same_weights_an_interrupted_answer_is_the_uninterrupted_one(monkeypatch, policy, generator, head, temperature):
    sampling, inputs = SamplingParams(max_tokens=16, temperature=temperature, seed=3), inputs_of(policy)
    head(1.0)
    generator.renew(100)
    plain = generator.generate(inputs, 2, sampling)
    found = interrupted(monkeypatch, generator, inputs, sampling, PLAN, lambda factor: head(1.0))
    assert [s.token_ids for g in plain for s in g] == [s.token_ids for g in found for s in g]
    assert all(len(s.versions) == 1 for g in plain for s in g) and any(len(s.versions) == 3 for g in found for s in g)


def test_each_token_has_the_log_probability_of_the_weights_that_sampled_it(monkeypatch, policy, generator, head):
    sampling, inputs = SamplingParams(max_tokens=16, temperature=1.0, seed=3), inputs_of(policy)
    head(1.0)
    generator.renew(100)
    groups = interrupted(monkeypatch, generator, inputs, sampling, PLAN, head)
    by_version = {}
    for version, factor in zip((100, 101, 102), (1.0, *PLAN.values()), strict=True):
        head(factor)
        by_version[version] = differences(policy, inputs, groups, 1.0).abs()
    chosen = [version for g in groups for s in g for version, count in s.versions for _ in range(count)]
    assert set(chosen) == {100, 101, 102}
    gap = torch.stack([by_version[version][n] for n, version in enumerate(chosen)])
    assert gap.mean() < GAP and gap.max() < 10 * GAP
    assert by_version[100].mean() > 10 * GAP, "other weights say something else"
