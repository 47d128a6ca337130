"""Tokens are drawn by their probabilities, on a GPU's way without float64 numbers for each id too."""

import numpy as np
import pytest
import torch

import vlm_cases as cases
from mmrl.rollout.generate import draw, local
from mmrl.rollout.generate.draw import BLOCK, sample_by_blocks, sample_tokens
from mmrl.rollout.generate.local import LocalGenerator, filter_top_p_top_k
from mmrl.rollout.generate.sampling import SamplingParams

WAYS = [sample_tokens, sample_by_blocks]


def distributions(rows, vocabulary, sharpness, seed=0):
    noise = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocabulary, generator=noise) * sharpness).softmax(-1)


def uniform(rows, seed=1):
    return torch.rand(rows, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("vocabulary", [6, BLOCK, 2 * BLOCK + 7, 151_936])
def test_an_id_without_probability_is_never_drawn(way, vocabulary):
    """Also with the smallest and the largest numbers, and where whole blocks have none."""
    drawn_N = torch.tensor([0.0, 2**-53, 0.5, 1 - 2**-53], dtype=torch.float64)
    for only in ([vocabulary - 1], [2, 4], [vocabulary // 2]):
        probabilities = torch.zeros(4, vocabulary)
        probabilities[:, only] = 0.3
        assert set(way(probabilities, drawn_N).tolist()) == set(only)


def test_a_share_that_is_rounded_to_all_of_the_sum_is_the_last_ids():
    ends = torch.tensor([[0.0, 0.25, 0.75, 0.75]], dtype=torch.float64)
    assert draw._first_above(ends, torch.ones(1, dtype=torch.float64)).tolist() == [2]


@pytest.mark.parametrize("vocabulary, sharpness", [(50, 1.0), (3000, 2.0), (151_936, 1.0), (151_936, 6.0)])
def test_by_blocks_equals_float64_but_for_rounding(vocabulary, sharpness):
    """Where another id is chosen, the number lies on the bound between ids, as far as float32 can tell."""
    probabilities = distributions(16, vocabulary, sharpness)
    others, draws = 0, 20
    for seed in range(draws):
        drawn_N = uniform(16, seed)
        exact_N, found_N = sample_tokens(probabilities, drawn_N), sample_by_blocks(probabilities, drawn_N)
        ends = probabilities.double().cumsum(-1)
        for n in (exact_N != found_N).nonzero()[:, 0].tolist():
            bound = ends[n, min(int(exact_N[n]), int(found_N[n]))]
            assert abs(float(drawn_N[n] * ends[n, -1] - bound)) < 1e-7
            others += 1
    assert others <= 2


@pytest.mark.parametrize("way", WAYS)
def test_ids_occur_as_often_as_their_probabilities_say(way):
    """Pearson's chi-square over 20 groups of ids: above 43.8 for one in a thousand seeds with 19 degrees of freedom."""
    probabilities = distributions(1, 4 * BLOCK + 100, 1.0)
    count, groups = 10_000, 20
    ids = torch.cat([way(probabilities.expand(500, -1), uniform(500, seed)) for seed in range(count // 500)]).numpy()
    bounds = np.linspace(0, probabilities.shape[1], groups + 1).astype(int)
    seen = np.histogram(ids, bounds)[0]
    wanted = np.add.reduceat(probabilities[0].double().numpy(), bounds[:-1]) * count
    assert float(((seen - wanted) ** 2 / wanted).sum()) < 43.8


@pytest.mark.parametrize("way", WAYS)
def test_what_is_drawn_depends_on_the_row_alone(way):
    probabilities, drawn_N = distributions(9, 5000, 2.0), uniform(9)
    together = way(probabilities, drawn_N)
    assert torch.equal(torch.cat([way(probabilities[n : n + 1], drawn_N[n : n + 1]) for n in range(9)]), together)
    assert torch.equal(way(probabilities * 0.25, drawn_N), together), "they need not add up to 1"


@pytest.mark.parametrize("way", WAYS)
def test_what_top_p_and_top_k_leave_is_all_that_is_drawn(way):
    probabilities = filter_top_p_top_k(distributions(64, 20_000, 3.0), 0.7, 40)
    token_N = way(probabilities, uniform(64))
    assert bool((probabilities.gather(1, token_N[:, None]) > 0).all()) and len(token_N.unique()) > 10


def test_a_model_samples_the_same_tokens_both_ways(monkeypatch):
    policy = cases.policy("qwen2_5_vl")
    inputs = [policy.encode(cases.prompt(seed)) for seed in (1, 2, 3)]

    def sampled():
        groups = LocalGenerator(policy).generate(inputs, 8, SamplingParams(max_tokens=24, temperature=1.0, seed=3))
        return [s.token_ids for group in groups for s in group]

    exact = sampled()
    assert sum(map(len, exact)) > 300
    monkeypatch.setattr(local, "sample_tokens", draw.sample_by_blocks)
    assert sampled() == exact
