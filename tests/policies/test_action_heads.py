"""Heads of policies that act: bins against OpenVLA's arithmetic in numpy, likelihoods against slow references, draws by seed."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from mmrl.api.simulators import noise
from mmrl.policies.acting.action_tokens import ActionTokens
from mmrl.policies.acting.flow import Chains
from mmrl.policies.acting.heads import Flow, Laplace, Normal, Tokens, categorical
from mmrl.policies.acting.randomness import CallRandomness

SEEDS = torch.arange(100, 164)
DRAW = CallRandomness(seeds_n=SEEDS, calls_n=torch.zeros_like(SEEDS))


# -- bins -----------------------------------------------------------------------------------------------------------------


class Published:
    """OpenVLA's arithmetic: numpy's linspace and digitize, ids counted from the vocabulary's end."""

    def __init__(self, bins=256, vocabulary=32000):
        self.edges = np.linspace(-1.0, 1.0, bins)
        self.centres = (self.edges[:-1] + self.edges[1:]) / 2.0
        self.vocabulary = vocabulary

    def ids(self, action):
        return self.vocabulary - np.digitize(np.clip(action, -1.0, 1.0), self.edges)

    def actions(self, ids):
        return self.centres[np.clip(self.vocabulary - ids - 1, 0, len(self.centres) - 1)]


def test_openvla_bins_and_ids_are_the_published_ones():
    """At every edge, on both sides of it, and at random places."""
    published, ours = Published(), ActionTokens(bins=256, kind="openvla")
    edges = np.linspace(-1.0, 1.0, 256)
    actions = np.concatenate(
        [edges, np.nextafter(edges, -2), np.nextafter(edges, 2), [-7.0, 7.0], np.random.default_rng(0).uniform(-1.2, 1.2, 5000)]
    )
    bins = ours.bin_of(torch.tensor(actions))
    ids = torch.tensor(ours.ids(32000))
    assert ids[bins].tolist() == published.ids(actions).tolist()
    assert (ids.min(), ids.max()) == (31744, 31999)
    back = ours.action_of(torch.arange(256))
    np.testing.assert_allclose(back.numpy(), published.actions(ids.numpy()), atol=1e-7)
    assert back[255] == back[254], "the two highest bins stand for one number"


@given(st.integers(2, 1024), st.floats(-1, 1))
@example(256, 1.0)
def test_uniform_bins_are_near_their_numbers_and_stay_what_they_are(bins, x):
    tokens = ActionTokens(bins=bins)
    found = tokens.bin_of(torch.tensor([x], dtype=torch.float64))
    assert 0 <= int(found) < bins
    assert abs(float(tokens.action_of(found)) - x) <= 1 / bins + 1e-6
    every = torch.arange(bins)
    assert torch.equal(tokens.bin_of(tokens.action_of(every).double()), every) and len(set(tokens.ids(2000))) == bins


# -- sampling -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.6])
def test_bins_are_drawn_as_often_as_they_are_likely(temperature):
    logits = torch.tensor([0.3, -1.0, 2.0, 0.0, 1.1])
    seeds = torch.arange(200_000)
    uniform = noise.uniform(seeds, 1)
    chosen, logprob = categorical(logits.expand(len(seeds), -1), temperature, uniform)
    wanted = (logits / temperature).softmax(0)
    assert torch.allclose(torch.bincount(chosen, minlength=5) / len(seeds), wanted, atol=0.005)
    assert torch.allclose(logprob, wanted.log()[chosen], atol=1e-5)
    greedy, logprob = categorical(logits[None], 0.0, None)
    assert greedy.tolist() == [2] and torch.allclose(logprob, logits.log_softmax(0)[2:3])


def test_the_last_bin_is_reached_and_none_beyond():
    """Rounding must not lose a uniform number behind the last sum."""
    logits = torch.zeros(2, 1000)
    chosen, _ = categorical(logits, 1.0, torch.tensor([1 - 2**-24, 2**-24]))
    assert chosen.tolist() == [999, 0]


@pytest.mark.parametrize("head", [Normal(6, 3), Flow(6, 3), Tokens(ActionTokens(bins=7), 3)])
def test_a_row_is_drawn_alike_in_any_company_and_scored_as_it_was_drawn(head):
    features = torch.randn(64, 2, *([3, 7] if isinstance(head, Tokens) else [6]), generator=torch.Generator().manual_seed(1))
    for temperature in (0.7, 1.0):
        actions, choices, logprobs = head.sample(features, DRAW, temperature)
        some = torch.tensor([3, 60, 7])
        draw = CallRandomness(seeds_n=SEEDS[some], calls_n=DRAW.calls_n[some])
        alone = head.sample(features[some], draw, temperature)
        for a, b in zip(alone, (actions, choices, logprobs), strict=True):
            torch.testing.assert_close(a, b[some])
        scored, entropy = head.score(features, choices, temperature)
        torch.testing.assert_close(scored, logprobs, atol=2e-5, rtol=1e-5)
        assert actions.shape == (64, 2, 3) and scored.shape[:2] == entropy.shape[:2] == (64, 2)
    later = CallRandomness(seeds_n=SEEDS, calls_n=DRAW.calls_n + 1)
    assert not torch.equal(head.sample(features, later, 1.0)[1], choices)


@pytest.mark.parametrize("head", [Normal(6, 3), Flow(6, 3, steps=5), Tokens(ActionTokens(bins=7), 3)])
@torch.no_grad()
def test_at_temperature_0_a_head_takes_the_likeliest(head):
    """The mean, the highest logit; a flow goes from its seed's noise along the velocity, and nothing else is drawn."""
    features = torch.randn(64, 2, *([3, 7] if isinstance(head, Tokens) else [6]), generator=torch.Generator().manual_seed(1))
    calm, choices, _ = head.sample(features, DRAW, 0.0)
    other = head.sample(features, CallRandomness(seeds_n=SEEDS + 99, calls_n=DRAW.calls_n), 0.0)[0]
    if isinstance(head, Flow):
        x = DRAW.normal(0, 2, 3)
        torch.testing.assert_close(choices[:, :, 0], x)
        for i in range(5):
            times = torch.full((64, 2, 1), 1 - i / 5)
            x = x - head.velocity(torch.cat([features, x, times], -1)) / 5
        torch.testing.assert_close(calm, x, atol=1e-5, rtol=1e-5)
        assert not torch.equal(other, calm)
        return
    wanted = head.mean(features) if isinstance(head, Normal) else head.tokens.action_of(features.argmax(-1))
    assert torch.equal(calm, wanted) and torch.equal(other, calm)


# -- likelihoods ----------------------------------------------------------------------------------------------------------


def test_the_normal_heads_likelihood_and_entropy_are_torchs():
    head = Normal(6, 3, spread=0.4)
    with torch.no_grad():
        head.log_spread.add_(torch.tensor([0.0, 0.3, -0.7]))
        head.mean[0].weight.normal_()
    features = torch.randn(5, 2, 6)
    choices = torch.randn(5, 2, 3)
    for temperature in (1.0, 0.5):
        spread = head.log_spread.exp() * temperature
        wanted = torch.distributions.Independent(torch.distributions.Normal(head.mean(features), spread), 1)
        logprob, entropy = head.score(features, choices, temperature)
        torch.testing.assert_close(logprob[..., 0], wanted.log_prob(choices))
        torch.testing.assert_close(entropy[..., 0], wanted.entropy())


@pytest.mark.parametrize("network", [False, True])
def test_the_laplace_heads_likelihood_and_entropy_are_torchs(network):
    """With a scale for each number, or for each number of each action by RIPT-VLA's network."""
    head = Laplace(6, 3, 8, spread=0.4, network=network)
    features, choices = torch.randn(5, 2, 6), torch.randn(5, 2, 3)
    with torch.no_grad():
        first = head.spread(features)
        torch.testing.assert_close(first, torch.full_like(first, 0.4), atol=0.05, rtol=0.0)
        for p in head.parameters():
            p.add_(0.3 * torch.randn(p.shape))
    scales = head.scale.log_b_head(head.scale.trunk(features)).exp() if network else head.log_spread.exp().expand(5, 2, 3)
    assert (scales[0] != scales[1]).all() == network, "of each observation"
    for temperature in (1.0, 0.5):
        wanted = torch.distributions.Independent(torch.distributions.Laplace(head.model(features), scales * temperature), 1)
        logprob, entropy = head.score(features, choices, temperature)
        torch.testing.assert_close(logprob[..., 0], wanted.log_prob(choices))
        torch.testing.assert_close(entropy[..., 0], wanted.entropy())
    many = CallRandomness(seeds_n=torch.arange(20_000), calls_n=torch.zeros(20_000, dtype=torch.int64))
    with torch.no_grad():
        drawn, _, _ = head.sample(features[:1].expand(20_000, -1, -1), many, 0.5)
        error = (drawn - head.model(features[:1])).abs().mean(0)
    torch.testing.assert_close(error, scales[0] * 0.5, rtol=0.05, atol=0.0)
    score, _ = head.score(features, choices, 1.0)
    score.sum().backward()
    assert all(p.grad is not None and p.grad.any() for p in head.parameters())


def slow_flow(head, feature, chain, temperature):
    """One episode's action, step by step in double precision, from the definition."""
    total, delta = 0.0, 1.0 / head.steps
    net = head.velocity
    for i in range(head.steps):
        t = 1.0 - i * delta
        x = chain[i]
        v = net(torch.cat([feature, x, torch.tensor([t])]).float()).detach().double().numpy()
        x = x.double().numpy()
        sigma = head.noise_level * math.sqrt(t / max(1 - t, delta)) * temperature
        score = -(x + (1 - t) * v) / t
        mean = x - (v - sigma**2 / 2 * score) * delta
        std = sigma * math.sqrt(delta)
        z = (chain[i + 1].detach().double().numpy() - mean) / std
        total += float((-0.5 * z**2 - math.log(std) - 0.5 * math.log(2 * math.pi)).sum())
    return total


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_flows_likelihood_is_that_of_its_steps(temperature):
    head = Flow(6, 3, steps=5)
    features = torch.randn(64, 2, 6, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        _, choices, logprobs = head.sample(features, DRAW, temperature)
    for n, k in ((0, 0), (3, 1), (63, 0)):
        assert float(logprobs[n, k]) == pytest.approx(slow_flow(head, features[n, k], choices[n, k], temperature), abs=2e-4)


def test_the_noisy_flow_ends_in_the_distribution_of_the_calm_one():
    """With the exact velocity of data N(0.3, 0.2^2), both must give it: a wrong drift would widen or shift it."""
    mean, std = 0.3, 0.2

    class Exact(torch.nn.Module):
        def forward(self, x):
            x, t = x[..., 1:2], x[..., 2:3]
            variance = (1 - t) ** 2 * std**2 + t**2
            expected_data = mean + (1 - t) * std**2 * (x - (1 - t) * mean) / variance
            expected_noise = t * (x - (1 - t) * mean) / variance
            return expected_noise - expected_data

    head = Flow(1, 1, steps=200, noise_level=0.7)
    head.velocity = Exact()
    seeds = torch.arange(40_000)
    draw = CallRandomness(seeds_n=seeds, calls_n=torch.zeros_like(seeds))
    features = torch.zeros(len(seeds), 1, 1)
    for temperature in (0.0, 1.0):
        found = head.sample(features, draw, temperature)[0]
        assert float(found.mean()) == pytest.approx(mean, abs=0.01) and float(found.std()) == pytest.approx(std, rel=0.05)


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_one_noisy_step_a_call_is_scored_as_it_was_drawn_and_keeps_the_distribution(temperature):
    """Each call's own step; with data that is N(0.3, 0.2^2) at temperature 1 the end must be that."""
    mean, std = 0.3, 0.2

    def exact(x, times):
        t = times[..., None]
        variance = (1 - t) ** 2 * std**2 + t**2
        return (t * (x - (1 - t) * mean) - (1 - t) * std**2 * (x - (1 - t) * mean)) / variance - mean

    chains = Chains(steps=50, noise_level=0.7, noisy="one")
    seeds = torch.arange(40_000)
    draw = CallRandomness(seeds_n=seeds, calls_n=torch.zeros_like(seeds))
    end, choices, logprob = chains.sample(exact, draw, (1,), temperature)
    assert choices.shape == (40_000, 3, 1)
    scored, entropy = chains.score(exact, choices, temperature)
    torch.testing.assert_close(scored, logprob, atol=2e-5, rtol=1e-4)
    assert float(-scored.mean()) == pytest.approx(float(entropy.mean()), abs=0.02), "the likelihood is that of what was drawn"
    steps = choices[:, 2, 0].long()
    assert torch.bincount(steps, minlength=50).min() > 600
    if temperature == 1:
        assert float(end.mean()) == pytest.approx(mean, abs=0.01) and float(end.std()) == pytest.approx(std, rel=0.05)
    calm = chains.sample(exact, draw, (1,), 0.0)
    assert (calm[2] == 0).all() and not torch.equal(calm[0], end)


def test_demonstrations_are_looked_at_all_along_the_way():
    """One moment in each quarter of the distribution, everywhere within it; the target is noise less action."""
    seen = []

    def ask(x, times):
        seen.append((x, times))
        return torch.zeros_like(x)

    actions = torch.randn(5000, 2, 1, generator=torch.Generator().manual_seed(0)) * 0.3
    error = Chains(steps=4, emphasis=1.5).matching(ask, actions)
    ((x, times),) = seen
    quantiles = times**1.5
    for quarter in range(4):
        inside = quantiles[:, quarter] * 4 - quarter
        assert 0 <= inside.min() < 0.01 and 0.99 < inside.max() <= 1.0001
    t = times[:, :, None, None]
    noise_less_action = (x - actions[:, None]) / t
    torch.testing.assert_close(error, (noise_less_action**2).mean(1), atol=1e-2, rtol=1e-2)


def test_flow_matching_learns_what_it_is_shown():
    torch.manual_seed(0)
    head = Flow(2, 1, steps=8, hidden=64)
    optimizer = torch.optim.Adam(head.parameters(), 3e-3)
    features = torch.randn(256, 1, 2)
    wanted = features[..., :1].tanh() * 0.8
    for _ in range(400):
        loss = -head.score(features, head.choices_of(wanted), 1.0)[0].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    draw = CallRandomness(seeds_n=torch.arange(256), calls_n=torch.zeros(256, dtype=torch.int64))
    error = (head.sample(features, draw, 0.0)[0] - wanted).abs().mean()
    assert error < 0.15, "and noise alone is off by about 0.8"
