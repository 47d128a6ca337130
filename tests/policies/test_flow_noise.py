"""Learned noise of a flow: the likelihood of its path against the published code and step by step with the network alone; what is
trained; what is kept; what is refused."""

from __future__ import annotations

import json
import math
from functools import partial
from pathlib import Path

import pytest
import torch

from flow_cases import calls, gradients
from golden_flow_noise import weights
from gr00t_cases import gr00t
from mmrl.api.errors import UserError
from mmrl.config.parts import part_of
from mmrl.config.sections import LoraConfig
from mmrl.policies.acting.flow import Chains
from mmrl.policies.acting.flow_noise import NoiseNetwork
from mmrl.policies.acting.guidance import Guidance
from pi0_cases import CALLS, SEEDS, moved, pi0, seen
from smolvla_cases import smolvla

GOLDEN = Path(__file__).parents[1] / "golden" / "flow-noise.jsonl"
MADE = {"pi0": pi0, "pi05": partial(pi0, kind="pi05"), "gr00t": gr00t, "smolvla": smolvla}
LEARNED = {"noisy": "learned", "noise_range": [0.05, 0.4]}
CLOSE = {"atol": 2e-5, "rtol": 2e-5}
"""Of the published numbers, which have six decimals."""


@pytest.fixture(params=MADE)
def make(request):
    return partial(MADE[request.param], **LEARNED)


@pytest.mark.parametrize("row", [json.loads(line) for line in GOLDEN.read_text().splitlines()])
def test_the_likelihood_of_a_path_is_that_of_the_published_code(row):
    """Its mean is over the path and its beginning, whose likelihood no weight changes."""
    network = NoiseNetwork(5, 2, tuple(row["ends"]))
    layers = [layer for layer in network.layers if isinstance(layer, torch.nn.Linear)]
    with torch.no_grad():
        for layer in layers:
            layer.weight.copy_(weights(layer.weight.shape, row["seed"]))
            layer.bias.copy_(weights(layer.bias.shape, row["seed"] + 50))
    (expert, begin), (out, end) = (map(torch.tensor, row[name]) for name in ("expert", "out"))

    def velocity(x, times):
        hidden = (torch.cat([x, times[:, :, None, None].expand(*x.shape[:3], 1)], -1) @ expert.T + begin).tanh()
        return hidden @ out.T + end, network(hidden)

    path, points = torch.tensor(row["path"]), row["steps"] + 1
    chains = Chains(steps=row["steps"], noisy="learned", noise_range=tuple(row["ends"]))
    logprob, entropy = chains.score(velocity, path, 1.0)
    first = torch.distributions.Normal(0.0, 1.0).log_prob(path[:, 0])
    torch.testing.assert_close((first + logprob) / points, torch.tensor(row["logprob"]), **CLOSE)
    always = 0.5 + 0.5 * math.log(2 * math.pi)
    torch.testing.assert_close((always + entropy) / points, torch.tensor(row["entropy"]), **CLOSE)
    logprob.sum().backward()
    torch.testing.assert_close(layers[-1].bias.grad / points, torch.tensor(row["slope"]), **CLOSE)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_what_is_sampled_is_what_is_learned(make, temperature):
    """Step by step from the points of the path, with what the network says at each alone."""
    policy, shown = moved(make(steps=3)), seen()
    found = policy.act(shown, SEEDS, CALLS, temperature)
    outputs = policy.outputs(calls(shown, found.choices), temperature)
    torch.testing.assert_close(outputs.logprobs_L, found.logprobs_nKC.flatten(), atol=2e-4, rtol=1e-4)
    total, entropy, widths = 0.0, 0.0, []
    with torch.no_grad():
        scene = policy.look(shown)
        for i in range(3):
            x, following = found.choices[:, i], found.choices[:, i + 1]
            v, std = (y[:, 0, :2, :3].double() for y in policy.velocity(scene, x[:, None], torch.full((4, 1), 1 - i / 3)))
            step = torch.distributions.Normal(x[:, :2, :3] - v / 3, std * temperature)
            total, entropy = total + step.log_prob(following[:, :2, :3]).sum(-1), entropy + step.entropy().sum(-1)
            widths.append(std)
    torch.testing.assert_close(found.logprobs_nKC[..., 0].double(), total, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(outputs.entropy_L.double(), entropy.flatten(), atol=1e-4, rtol=1e-4)
    widths = torch.stack(widths)
    assert widths.min() >= 0.05 and widths.max() <= 0.4 and (widths.std(dim=(0, 1)) > 1e-5).all(), "each number has its own"
    calm = policy.act(shown, SEEDS, CALLS, 0.0)
    assert (calm.logprobs_nKC == 0).all() and not torch.equal(calm.actions_nKA, found.actions_nKA)


def test_the_noise_is_trained_with_the_head_by_reward_and_not_by_demonstrations(make):
    policy, shown = make(), seen()
    choices = policy.act(shown, SEEDS, CALLS, 1.0).choices
    found = gradients(policy, calls(shown, choices))
    noise = {name: gradient for name, gradient in found.items() if name.startswith("noise_head.")}
    assert len(noise) == 6 and all(gradient.any() for gradient in noise.values())
    assert {part_of(name) for name in noise} == {"head"}
    policy.model.zero_grad()
    entropy = policy.outputs(calls(shown, choices), 1.0, entropy_gradient=True).entropy_L
    entropy.sum().backward()
    assert all(p.grad.any() for name, p in policy.parameters() if name.startswith("noise_head."))
    shown_alone = gradients(policy, calls(shown, choices[:, -1:]))
    assert shown_alone and not any(gradient.any() for name, gradient in shown_alone.items() if name.startswith("noise_head."))


def test_learned_noise_is_saved_beside_the_published_weights(make, tmp_path):
    policy = moved(make())
    policy.save(tmp_path / "saved")
    before = policy.act(seen(), SEEDS, CALLS, 1.0).choices
    again = make(str(tmp_path / "saved"))
    torch.testing.assert_close(again.act(seen(), SEEDS, CALLS, 1.0).choices, before, atol=1e-5, rtol=1e-5)
    other = make(str(tmp_path / "saved"), noisy="all")
    calm = other.act(seen(), SEEDS, CALLS, 0.0).actions_nKA
    torch.testing.assert_close(calm, policy.act(seen(), SEEDS, CALLS, 0.0).actions_nKA, atol=1e-5, rtol=1e-5)
    other.save(tmp_path / "plain")
    begun = make(str(tmp_path / "plain"))
    assert torch.equal(begun.model.noise_head.layers[0].weight, make().model.noise_head.layers[0].weight), "the seed's"


def test_adapters_are_trained_with_the_noise(tmp_path):
    lora = LoraConfig(rank=2, target_modules=["head"])
    policy = pi0(lora=lora, **LEARNED)
    noise = [p for name, p in policy.parameters() if "noise_head" in name]
    assert len(noise) == 6 and all(p.requires_grad for p in noise)
    before = moved(policy).act(seen(), SEEDS, CALLS, 1.0).choices
    policy.save(tmp_path / "saved")
    again = pi0(lora=lora, source=tmp_path / "saved", **LEARNED)
    torch.testing.assert_close(again.act(seen(), SEEDS, CALLS, 1.0).choices, before, atol=1e-4, rtol=1e-4)


def test_a_guided_flow_keeps_the_noise_of_what_it_is_told():
    policy, told = moved(pi0(steps=1, **LEARNED)), seen()
    plain = told.rows(torch.tensor([1, 0, 3, 2]))
    found = policy.act(told, SEEDS, CALLS, 1.0, guidance=Guidance(plain=plain, weights_n=torch.full((4,), 2.0)))
    with torch.no_grad():
        x, times = found.choices[:, :1], torch.ones(4, 1)
        (here, std), (there, _) = (policy.velocity(policy.look(each), x, times) for each in (told, plain))
    step = torch.distributions.Normal(x - (2 * here - there), std)
    expected = step.log_prob(found.choices[:, 1:])[:, 0, :2, :3].sum(-1)
    torch.testing.assert_close(found.logprobs_nKC[..., 0], expected, atol=2e-4, rtol=1e-4)


NUMBERS, TWO = "must be a list of numbers above 0 and at most 100", "must be two numbers, the smaller first"


@pytest.mark.parametrize(
    ("ends", "message"),
    [([0.2, 0.1], TWO), ([0.1], TWO), *((ends, NUMBERS) for ends in ([0.0, 0.1], 0.1, "ab", [True, 2.0], [0.1, 101.0]))],
)
def test_ends_that_are_no_deviations_are_refused(ends, message):
    with pytest.raises(UserError, match=rf"policy\.options\.noise_range = .* {message}$"):
        pi0(noisy="learned", noise_range=ends)
