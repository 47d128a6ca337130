"""Policies whose expert turns noise into actions: what is sampled is what is learned, from the definition; what a critic reads;
how weights are trained and kept."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from flow_cases import calls, gradients
from gr00t_cases import gr00t
from mmrl.api.simulators.types import Observation
from mmrl.config.sections import CriticConfig, LoraConfig
from mmrl.policies.acting.guidance import Guidance
from mmrl.policies.acting.randomness import CallRandomness
from mmrl.policies.critic import Critic
from pi0_cases import CALLS, DRAW, SEEDS, moved, pi0, published, seen


def of_pi0(policy, shown, n, x, time):
    return policy.model(**published(policy, shown, n), noise=x[None], timestep=torch.tensor([time])).logits[0].detach()


@torch.no_grad()
def of_gr00t(policy, shown, n, x, time):
    """Its own time runs the other way."""
    context = policy.look(shown.rows(torch.tensor([n]))).context
    return -policy.model.action_head.velocity(context, x[None], torch.tensor([round(1 - time, 6) + 1e-6]))[0]


ALONE = {"pi0": (pi0, of_pi0), "gr00t": (gr00t, of_gr00t)}
"""How a policy is made, and the velocity of one call at one time, alone and without padding."""
MADE = {kind: make for kind, (make, _) in ALONE.items()} | {"pi05": partial(pi0, kind="pi05")}


@pytest.fixture(params=MADE)
def make(request):
    return MADE[request.param]


@pytest.mark.parametrize("noisy", ["all", "one"])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_what_is_sampled_is_what_is_learned(make, noisy, temperature):
    policy, shown = make(noisy=noisy), seen()
    found = policy.act(shown, SEEDS, CALLS, temperature)
    outputs = policy.outputs(calls(shown, found.choices), temperature, states=True)
    torch.testing.assert_close(outputs.logprobs_L, found.logprobs_nKC.flatten(), atol=1e-4, rtol=1e-5)
    assert outputs.logprobs_L.requires_grad and found.actions_nKA.shape == (4, 2, 3) and found.logprobs_nKC.shape == (4, 2, 1)
    some = torch.tensor([2, 1])
    alone = policy.act(shown.rows(some), SEEDS[some], CALLS[some], temperature)
    torch.testing.assert_close(alone.actions_nKA, found.actions_nKA[some], atol=1e-5, rtol=1e-5)
    assert not torch.equal(policy.act(shown, SEEDS, CALLS + 1, temperature).actions_nKA, found.actions_nKA)


@pytest.mark.parametrize("kind", ALONE)
def test_a_guided_flow_follows_what_it_is_told_further_than_without(kind):
    """Step by step with the network alone: each row by its own weight, of which 1 is no guidance."""
    make, velocity = ALONE[kind]
    policy, told = moved(make(steps=2)), seen()
    plain = replace(told, instructions=[text.split()[0] for text in told.instructions])
    weights = torch.tensor([2.5, 1.0, 0.0, 1.0])
    found = policy.act(told, SEEDS, CALLS, 0.0, guidance=Guidance(plain=plain, weights_n=weights))
    for n, other in ((1, told), (2, plain)):
        alone = policy.act(other, SEEDS, CALLS, 0.0).actions_nKA[n]
        torch.testing.assert_close(found.actions_nKA[n], alone, atol=1e-5, rtol=1e-4)
    x = found.choices[0, 0]
    for i in range(2):
        without = velocity(policy, plain, 0, x, 1 - i / 2)
        x = x - (without + 2.5 * (velocity(policy, told, 0, x, 1 - i / 2) - without)) / 2
        torch.testing.assert_close(found.choices[0, i + 1], x, atol=2e-5, rtol=1e-4)
    assert policy.guides and not torch.allclose(found.actions_nKA[0], policy.act(told, SEEDS, CALLS, 0.0).actions_nKA[0])


@pytest.mark.parametrize("noisy", ["all", "one"])
@pytest.mark.parametrize("kind", ALONE)
def test_a_likelihood_is_that_of_the_executed_numbers(kind, noisy):
    """Step by step with the network alone, from the definition: nothing of what is not carried out counts."""
    make, velocity = ALONE[kind]
    policy, shown = moved(make(noisy=noisy, steps=3, noise_level=0.7)), seen(2)
    found = policy.act(shown, SEEDS[:2], CALLS[:2], 0.8)
    delta = 1 / 3
    for n in range(2):
        kept = found.choices[n]
        steps = [(i, kept[i], kept[i + 1]) for i in range(3)] if noisy == "all" else [(int(kept[2, 0, 0]), kept[0], kept[1])]
        assert kept.shape[0] == (4 if noisy == "all" else 3)
        total = torch.zeros(2, dtype=torch.float64)
        for i, x, following in steps:
            t = 1 - i * delta
            v = velocity(policy, shown, n, x, t)
            x, following, v = (a[:2, :3].double() for a in (x, following, v))
            sigma = 0.7 * math.sqrt(t / max(1 - t, delta)) * 0.8
            mean = x - (v + sigma**2 / (2 * t) * (x + (1 - t) * v)) * delta
            total += torch.distributions.Normal(mean, sigma * math.sqrt(delta)).log_prob(following).sum(-1)
        torch.testing.assert_close(found.logprobs_nKC[n, :, 0].double(), total, atol=1e-4, rtol=1e-4)


def test_each_environment_has_a_noisy_step_of_its_own(make):
    policy = make(noisy="one", steps=3)
    shown = seen(1)
    many = Observation(
        images={k: v.expand(64, *v.shape[1:]) for k, v in shown.images.items()},
        state=shown.state.expand(64, -1),
        instructions=["x"] * 64,
    )
    choices = policy.act(many, torch.arange(64), torch.zeros(64, dtype=torch.int64), 1.0).choices
    counts = torch.bincount(choices[:, 2, 0, 0].long(), minlength=3)
    assert counts.min() > 8 and counts.sum() == 64
    assert (choices[:, 2] == choices[:, 2, :1, :1]).all()


def test_a_critic_reads_the_robots_state_and_no_noise(make):
    policy, shown = make(), seen()
    first = policy.choose(shown, DRAW, 1.0)[3]
    torch.testing.assert_close(
        policy.choose(shown, CallRandomness(seeds_n=SEEDS + 9, calls_n=CALLS), 1.0)[3], first, atol=1e-6, rtol=1e-5
    )
    torch.testing.assert_close(policy.states_of(shown), first, atol=1e-6, rtol=1e-5)
    assert first.shape == (4, policy.width)
    for change in (
        {"images": {k: 255 - v for k, v in shown.images.items()}},
        {"state": shown.state + 1},
        {"instructions": ["do nothing at all"] * 4},
    ):
        known = {"images": shown.images, "state": shown.state, "instructions": shown.instructions}
        assert (policy.states_of(Observation(**{**known, **change})) - first).abs().amax(1).min() > 1e-4, change


@pytest.mark.parametrize("detach", [True, False])
def test_a_critics_gradient_is_cut_where_it_says_so(make, detach):
    policy, shown = make(), seen()
    critic = Critic(policy, CriticConfig(hidden_sizes=[4], detach=detach), 0)
    with torch.no_grad():
        critic.head[-1].weight.add_(1.0)
    found = policy.act(shown, SEEDS, CALLS, 1.0, critic)
    made = calls(shown, found.choices)
    values, *_ = critic.values(made, policy.outputs(made, 1.0, states=True).states_QH)
    torch.testing.assert_close(values, found.values_nU.expand(-1, 2).flatten(), atol=1e-5, rtol=1e-4)
    values.sum().backward()
    reached = sum(float(p.grad.abs().sum()) for _, p in policy.parameters() if p.grad is not None)
    assert (reached == 0) == detach and critic.head[0].weight.grad.abs().sum() > 0


def test_in_bfloat16_likelihoods_are_float32(make):
    policy, shown = make(dtype="bfloat16"), seen()
    found = policy.act(shown, SEEDS, CALLS, 1.0)
    outputs = policy.outputs(calls(shown, found.choices), 1.0)
    assert found.choices.dtype == found.logprobs_nKC.dtype == outputs.logprobs_L.dtype == torch.float32
    assert (outputs.logprobs_L - found.logprobs_nKC.flatten()).abs().max() < 0.05


def test_adapters_train_alone_and_are_saved(make, tmp_path):
    lora = LoraConfig(rank=2, target_modules=["head", "language"])
    policy = make(lora=lora)
    names = [name for name, _ in policy.parameters()]
    assert all("lora_" in n for n in names) and any("language_model" in n for n in names)
    assert any("dit" in n or "action_head" in n for n in names)
    before = policy.act(seen(), SEEDS, CALLS, 1.0).choices
    moved(policy)
    policy.save(tmp_path / "saved")
    one = policy.act(seen(), SEEDS, CALLS, 1.0)
    assert not torch.allclose(one.choices, before, atol=1e-3)
    for again in (make(lora=lora, source=tmp_path / "saved"), make(str(tmp_path / "saved"))):
        torch.testing.assert_close(again.act(seen(), SEEDS, CALLS, 1.0).choices, one.choices, atol=1e-4, rtol=1e-4)


def test_a_clone_has_weights_of_its_own(make):
    policy = make()
    other = policy.clone(frozen=True)
    before = other.act(seen(), SEEDS, CALLS, 1.0).choices
    moved(policy, 0.3)
    assert torch.equal(other.act(seen(), SEEDS, CALLS, 1.0).choices, before)
    assert not any(p.requires_grad for _, p in other.parameters())


def test_layers_are_computed_again_for_the_same_gradients(make):
    policy, shown = make(), seen()
    made = calls(shown, policy.act(shown, SEEDS, CALLS, 1.0).choices)
    once, again = gradients(policy, made), gradients(policy, made, on=True)
    assert once.keys() == again.keys() and any("vision_tower" in name or "visual" in name for name in once)
    for name, gradient in once.items():
        torch.testing.assert_close(again[name], gradient, atol=1e-5, rtol=1e-4)
