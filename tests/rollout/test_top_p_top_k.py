"""top_p and top_k: what may be sampled, how often it is, and that log-probabilities don't know of it."""

import pytest
import torch

import vlm_cases as cases
from mmrl.api.types import Rollout
from mmrl.rollout.generate.draw import sample_tokens
from mmrl.rollout.generate.local import LocalGenerator, filter_top_p_top_k
from mmrl.rollout.generate.sampling import SamplingParams

P = [0.05, 0.4, 0.1, 0.25, 0.2]
"""Likeliest first: 1 (0.4), 3 (0.65 together), 4 (0.85), 2 (0.95), 0."""


def kept(probabilities, top_p=1.0, top_k=0):
    return filter_top_p_top_k(torch.tensor([probabilities]), top_p, top_k)[0].nonzero()[:, 0].tolist()


@pytest.mark.parametrize(
    ("top_p", "top_k", "expected"),
    [
        (1.0, 0, [0, 1, 2, 3, 4]),
        (1.0, 1, [1]),
        (1.0, 3, [1, 3, 4]),
        (1.0, 5, [0, 1, 2, 3, 4]),
        (1.0, 99, [0, 1, 2, 3, 4]),
        (0.01, 0, [1]),  # never none
        (0.39, 0, [1]),
        (0.41, 0, [1, 3]),  # the fewest that reach it
        (0.64, 0, [1, 3]),
        (0.66, 0, [1, 3, 4]),
        (0.94, 0, [1, 2, 3, 4]),
        (0.96, 0, [0, 1, 2, 3, 4]),
        (0.6, 3, [1, 3]),  # of 0.85: 0.51 is passed by two
        (0.6, 2, [1]),  # of 0.65: 0.39
        (0.62, 2, [1, 3]),  # of 0.65: 0.403
        (0.99, 2, [1, 3]),
    ],
)
def test_what_is_kept(top_p, top_k, expected):
    assert kept(P, top_p, top_k) == expected


def test_exactly_reaching_top_p_is_enough():
    assert kept([0.25, 0.5, 0.125, 0.125], 0.5) == [1] and kept([0.25, 0.5, 0.125, 0.125], 0.75) == [0, 1]
    assert kept([0.25, 0.25, 0.25, 0.25], 0.5) and len(kept([0.25] * 4, 0.5)) == 2


def test_of_equals_top_k_keeps_no_more_than_k():
    assert len(kept([0.25] * 4, top_k=3)) == 3 and len(kept([0.2] * 5, 0.5, 4)) == 2


def test_what_is_kept_keeps_its_probability_and_rows_are_apart():
    rows = torch.tensor([P, [0.9, 0.025, 0.025, 0.025, 0.025], [0.0, 0.0, 0.5, 0.5, 0.0]])
    before = rows.clone()
    found = filter_top_p_top_k(rows, 0.6, 0)
    expected = [[0, 0.4, 0, 0.25, 0], [0.9, 0, 0, 0, 0], [0, 0, 0.5, 0.5, 0]]
    assert torch.equal(found, torch.tensor(expected)) and torch.equal(rows, before)
    assert filter_top_p_top_k(rows, 1.0, 0) is rows, "nothing is computed where nothing is asked"
    assert kept([0.0, 0.0, 0.5, 0.5, 0.0], top_k=4) == [2, 3], "what is impossible stays so"


def test_an_impossible_token_is_never_drawn():
    drawn_N = torch.tensor([0.0, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert sample_tokens(torch.tensor([[0.0, 0.5, 0.5, 0.0]] * 3), drawn_N).tolist() == [1, 2, 2]


def test_the_top_of_a_large_vocabulary():
    """Probabilities 2^-1, 2^-2, ... and a flat tail: 0.9 is passed by the fourth."""
    probabilities = [2.0**-k for k in range(1, 9)] + [2.0**-8 / 50000] * 50000
    assert kept(probabilities, 0.9) == [0, 1, 2, 3] and len(kept(probabilities, 0.999)) > 30000


# -- sampled ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scripted(monkeypatch):
    """A model whose first token has these probabilities, by id, whatever else; all others 1e-6 of the most likely."""
    vlm = cases.policy("qwen2_5_vl")
    step = vlm.family.step
    ids = {20: 0.4, 30: 0.25, 40: 0.2, 50: 0.1, 60: 0.05}

    def logits(*args):
        found = torch.full_like(step(*args), -50.0)
        for i, p in ids.items():
            found[:, i] = torch.tensor(p).log()
        return found

    monkeypatch.setattr(vlm.family, "step", logits)
    return vlm, ids


@pytest.mark.parametrize(
    ("settings", "support"),
    [
        ({}, {20, 30, 40, 50, 60}),
        ({"top_k": 2}, {20, 30}),
        ({"top_p": 0.8}, {20, 30, 40}),
        ({"top_p": 0.6, "top_k": 3}, {20, 30}),
    ],
)
def test_tokens_come_as_often_as_their_share_of_what_is_kept(scripted, settings, support):
    vlm, ids = scripted
    n = 4000
    generator = LocalGenerator(vlm, batch_size=n)
    (group,) = generator.generate(
        [vlm.encode(cases.prompt(1, 0))], n, SamplingParams(max_tokens=1, temperature=1.0, seed=2, **settings)
    )
    counts = {i: sum(s.token_ids == (i,) for s in group) for i in ids}
    assert {i for i, c in counts.items() if c} == support and sum(counts.values()) == n
    whole = sum(ids[i] for i in support)
    for i in support:
        share = ids[i] / whole
        assert abs(counts[i] / n - share) < 4 * (share * (1 - share) / n) ** 0.5
    for s in group:
        assert s.logprobs[0] == pytest.approx(torch.tensor(ids[s.token_ids[0]]).log().item(), abs=1e-5), "among all tokens"


def test_the_temperature_comes_before_the_limits(scripted):
    """At temperature 2 the probabilities go like the roots: 0.4 becomes 0.297 of the whole, so 0.35 takes two tokens."""
    vlm, ids = scripted
    inputs = [vlm.encode(cases.prompt(1, 0))]
    draw = lambda t: LocalGenerator(vlm, 512).generate(inputs, 512, SamplingParams(max_tokens=1, temperature=t, top_p=0.35))[0]  # noqa: E731
    assert {s.token_ids[0] for s in draw(1.0)} == {20} and {s.token_ids[0] for s in draw(2.0)} == {20, 30}
    roots = {i: p**0.5 for i, p in ids.items()}
    for s in draw(2.0):
        assert s.logprobs[0] == pytest.approx(torch.tensor(roots[s.token_ids[0]] / sum(roots.values())).log().item(), abs=1e-4)


def test_greedy_needs_no_limits(scripted):
    vlm, _ = scripted
    inputs = [vlm.encode(cases.prompt(1, 0))]
    (group,) = LocalGenerator(vlm).generate(inputs, 3, SamplingParams(max_tokens=1, temperature=0.0, top_p=0.01, top_k=1))
    assert [s.token_ids for s in group] == [(20,)] * 3


def test_the_logprobs_of_filtered_samples_are_those_of_a_plain_forward():
    vlm = cases.policy("qwen2_5_vl")
    prompts = [cases.prompt(1), cases.prompt(2, 0)]
    inputs = [vlm.encode(p) for p in prompts]
    filtered = SamplingParams(max_tokens=6, temperature=0.8, top_p=0.5, top_k=5, seed=4)
    groups = LocalGenerator(vlm).generate(inputs, 4, filtered)
    rollouts: list[Rollout] = cases.as_rollouts(prompts, inputs, groups)
    for rollout in rollouts:
        plain = cases.naive_logprobs(vlm, rollout, 0.8)
        assert (plain - torch.tensor(rollout.turns[0].logprobs)).abs().max() < 1e-5
    assert LocalGenerator(vlm).generate(inputs, 4, SamplingParams(max_tokens=6, temperature=0.8, seed=4)) != groups
