"""Policies that act, by captured graphs: what they choose is what they choose without."""

import pytest
import torch

import acting_cases
from mmrl.policies.acting.call_graphs import ROUND, SIGHTS, CallGraphs
from mmrl.policies.acting.guidance import Guidance
from mmrl.testing.cases import some_of
from recorded_graph import RecordedCapture

KINDS = acting_cases.REPLAYED


def calls(number: int, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.arange(rows) + 100 * number, torch.arange(rows) + number


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Equal but for rounding: with graphs, pi0's prompts are padded to a multiple of tokens, and sums then have more zeros."""
    assert found.dtype == wanted.dtype and torch.allclose(found, wanted, atol=2e-5, rtol=1e-5)


@pytest.fixture(params=some_of(tuple(KINDS), ("vla, one by one", "pi0", "diffusion")))
def policy(request: pytest.FixtureRequest):
    return acting_cases.policy(request.param)


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_what_is_chosen_is_what_is_chosen_without(policy, temperature: float) -> None:
    """With other pictures, states, instructions and random numbers each time, and after an update of the weights."""
    plain = [policy.act(acting_cases.seen(policy, n, 3), *calls(n, 3), temperature) for n in range(SIGHTS + 3)]
    policy.graphs = CallGraphs(policy.model, policy.device, RecordedCapture)
    for n, wanted in enumerate(plain):
        found = policy.act(acting_cases.seen(policy, n, 3), *calls(n, 3), temperature)
        for name in ("actions_nKA", "choices", "logprobs_nKC"):
            same(getattr(found, name), getattr(wanted, name))
    assert policy.graphs.captured and not policy.graphs.failure
    with torch.no_grad():
        for _, weight in policy.parameters():
            weight.add_(0.02)
    found = policy.act(acting_cases.seen(policy, 0, 3), *calls(0, 3), temperature)
    policy.graphs = None
    wanted = policy.act(acting_cases.seen(policy, 0, 3), *calls(0, 3), temperature)
    same(found.logprobs_nKC, wanted.logprobs_nKC)
    before = torch.cat([plain[0].actions_nKA.flatten(), plain[0].logprobs_nKC.flatten()])
    assert not torch.allclose(torch.cat([found.actions_nKA.flatten(), found.logprobs_nKC.flatten()]), before, atol=1e-5)


def test_rows_of_several_lengths_and_other_numbers_of_them_have_graphs_of_their_own() -> None:
    policy = acting_cases.policy("vla, one by one")
    shapes = [(rows, padded) for _ in range(SIGHTS + 2) for rows in (1, 3) for padded in (False, True)]
    plain = [policy.act(acting_cases.seen(policy, n, *shape), *calls(n, shape[0]), 1.0) for n, shape in enumerate(shapes)]
    policy.graphs = CallGraphs(policy.model, policy.device, RecordedCapture)
    for n, shape in enumerate(shapes):
        found = policy.act(acting_cases.seen(policy, n, *shape), *calls(n, shape[0]), 1.0)
        assert torch.equal(found.choices, plain[n].choices) and torch.equal(found.logprobs_nKC, plain[n].logprobs_nKC)
    assert policy.graphs.captured >= 3


def test_guided_calls_and_gradients_go_without() -> None:
    policy = acting_cases.policy("vla, one by one")
    guidance = Guidance(plain=acting_cases.seen(policy, 9, 2), weights_n=torch.tensor([1.5, 0.5]))
    wanted = policy.act(acting_cases.seen(policy, 1, 2), *calls(1, 2), 1.0, None, guidance)
    policy.graphs = CallGraphs(policy.model, policy.device, RecordedCapture)
    for _ in range(SIGHTS + 2):
        assert torch.equal(
            policy.act(acting_cases.seen(policy, 1, 2), *calls(1, 2), 1.0, None, guidance).actions_nKA, wanted.actions_nKA
        )
    assert not policy.graphs.captured
    flow = acting_cases.policy("vla, flow head")
    flow.graphs = CallGraphs(flow.model, flow.device, RecordedCapture)
    features = flow.features(acting_cases.seen(flow, 1, 2))[0]
    for _ in range(SIGHTS + 2):
        assert flow.replayed(
            flow.head.seeing(features), torch.zeros(2, 1, flow.chunk, flow.dims), torch.zeros(2, 1)
        ).requires_grad


def test_a_copy_captures_its_own_weights() -> None:
    policy = acting_cases.policy("pi0")
    policy.graphs = CallGraphs(policy.model, policy.device, RecordedCapture)
    for n in range(SIGHTS + 1):
        policy.act(acting_cases.seen(policy, n, 2), *calls(n, 2), 1.0)
    other = policy.clone(frozen=True)
    with torch.no_grad():
        for _, weight in policy.parameters():
            weight.add_(0.02)
    for _ in range(SIGHTS + 2):
        one, two = (p.act(acting_cases.seen(p, 7, 2), *calls(7, 2), 1.0).actions_nKA for p in (policy, other))
        assert not torch.equal(one, two)
    assert other.graphs is not policy.graphs and other.graphs.model is other.model and other.graphs.captured == 1


def test_prompts_are_padded_for_graphs_alone() -> None:
    policy = acting_cases.policy("pi0")
    rows = [[1] * 5, [1] * 33]
    assert policy._length_of(rows) == 33
    policy.graphs = CallGraphs(policy.model, policy.device, RecordedCapture)
    assert policy._length_of(rows) == 33, "an update's passes go without"
    with torch.no_grad():
        assert policy._length_of(rows) == 2 * ROUND
