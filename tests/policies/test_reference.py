"""The reference of a KL penalty that is the policy without its adapters: it doesn't move with what is trained beside these."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import pi0_cases
import xvla_cases
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.errors import UserError
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import LoraConfig, PolicyConfig, RlStage
from mmrl.policies.acting.vla import VLA
from mmrl.policies.batches import ActionMicroBatch, Batch
from mmrl.policies.kept_reference import KeptReference
from mmrl.policies.lora import is_adapter
from mmrl.policies.reference import Reference
from mmrl.train.update.learner import Learner

LORA = LoraConfig(rank=2, target_modules=["language"])


def vla():
    """Its head isn't the model's."""
    config = PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1", kind="vla", lora=LORA)
    return VLA(config, seed=1, dims=3, chunk=2, head="normal")


def xvla():
    return xvla_cases.xvla("tiny:xvla:hidden=32,layers=1,chunk=3", lora=LORA)


def micro_of(policy):
    shown = pi0_cases.seen(2)
    shown = Observation(images={"front": shown.images["front"][:2]}, state=shown.state[:2], instructions=shown.instructions[:2])
    chosen = policy.act(shown, pi0_cases.SEEDS[:2], pi0_cases.CALLS[:2], 1.0)
    some = torch.zeros(2)
    return ActionMicroBatch(
        observation=shown,
        choices=chosen.choices,
        slots=chosen.logprobs_nKC.shape[2],
        valid_SK=torch.ones(2, policy.chunk, dtype=torch.bool),
        ratio="chunk",
        sampler_logprobs_L=some,
        advantages_L=some,
        rollout_L=some.long(),
        place_L=some.long(),
        off_policy_L=some.bool(),
    )


@pytest.mark.parametrize("make", [xvla, pytest.param(vla, marks=pytest.mark.slow)])
def test_it_stays_where_it_was_and_leaves_gradients_alone(make):
    policy = make()
    assert any(not is_adapter(name) for name, _ in policy.parameters()), "nothing is trained beside adapters"
    micro, reference = micro_of(policy), Reference(policy, adapters=True)
    before_L = reference.logprobs(micro, 1.0)
    assert torch.equal(before_L, policy.logprobs(micro, 1.0)[0]), "new adapters change nothing"
    pi0_cases.moved(policy)
    gradients = []
    for compared in (False, True):
        policy.model.zero_grad()
        out = policy.outputs(micro, 1.0)
        if compared:
            assert torch.equal(reference.logprobs(micro, 1.0), before_L)
        out.logprobs_L.sum().backward()
        gradients.append({name: p.grad.clone() for name, p in policy.parameters() if p.grad is not None})
    assert all(torch.equal(gradient, gradients[1][name]) for name, gradient in gradients[0].items())
    again = Reference(policy, adapters=True)
    assert not torch.equal(again.logprobs(micro, 1.0), before_L)
    again.load_state(reference.state())
    assert torch.equal(again.logprobs(micro, 1.0), before_L), "a resumed run has the same reference"


def counted(monkeypatch):
    """A list that grows with each exchange of weights."""
    exchanged, exchange = [], Reference._as_they_were

    def counting(self):
        exchanged.append(1)
        return exchange(self)

    monkeypatch.setattr(Reference, "_as_they_were", counting)
    return exchanged


def test_weights_are_exchanged_once_for_all_micro_batches_of_a_pass(monkeypatch):
    policy = xvla()
    other = policy.clone()
    batch = Batch(micro=(micro_of(policy),) * 2, num_tokens=4, num_rollouts=2, lengths_N=torch.tensor([1, 1]))
    config = RlStage(kind="rl", steps=1, learning_rate=1e-3, kl_coef=0.5)
    exchanged, figures = counted(monkeypatch), []
    for one in (policy, other):
        reference = Reference(one, adapters=True)
        pi0_cases.moved(one)
        if one is other:  # as it was for each micro-batch by itself
            monkeypatch.setattr(reference, "each", lambda micros, t, of=reference: (of.logprobs(m, t) for m in micros))
        learner = Learner(one, config, load_algorithm("grpo", {}), reference=reference)
        figures.append(learner.update([batch], 0, kl=0.5))
        assert len(exchanged) == (1 if one is policy else 2)
        exchanged.clear()
        found = learner.measure(batch, frozenset({"reference", "logprobs"}))
        assert len(exchanged) == (1 if one is policy else 2) and not torch.equal(found["reference"], found["logprobs"])
        exchanged.clear()
    assert figures[0] == figures[1] and figures[0]["kl"] > 0
    assert all(torch.equal(a, b) for (_, a), (_, b) in zip(policy.parameters(), other.parameters(), strict=True))


def test_an_error_leaves_the_policys_own_values(monkeypatch):
    policy = xvla()
    reference, micro = Reference(policy, adapters=True), micro_of(policy)
    pi0_cases.moved(policy)
    before = {name: p.detach().clone() for name, p in policy.parameters()}
    passes = iter([policy.logprobs])
    monkeypatch.setattr(policy, "logprobs", lambda micro, temperature: next(passes)(micro, temperature))
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(reference.each([micro, micro], 1.0))
    assert all(torch.equal(p, before[name]) for name, p in policy.parameters())


def test_weights_beside_adapters_that_are_spread_over_learners_are_refused():
    head = [("own.weight", torch.nn.Parameter(torch.ones(1)))]
    policy = SimpleNamespace(parameters=lambda: head, root=object())
    with pytest.raises(UserError, match=r'a shard of own\.weight, .* set the stage\'s reference = "frozen", or compute'):
        Reference(policy, adapters=True)


def test_a_checkpoint_without_the_reference_is_refused_and_a_kept_state_stays_its_own():
    """Versions before kept no weights that are trained beside adapters."""
    head = [("own.weight", torch.nn.Parameter(torch.ones(1)))]
    reference = KeptReference(SimpleNamespace(parameters=lambda: head, root=None), adapters=True)
    with pytest.raises(UserError, match=r"^the checkpoint has no own\.weight of the reference model, .* begin a new run from"):
        reference.load_state({})
    reference.kept[("task", 3), 1] = -2.0
    state = reference.state()
    reference.load_state({"own.weight": torch.zeros(1)})
    assert reference.state().keys() == state.keys() and not reference.state()["own.weight"], "no results among its weights"
