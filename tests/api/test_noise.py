"""Numbers from seeds: against a slow reference, alike in every batch, uniform and independent."""

import pytest
import torch

from mmrl.api.simulators import noise

MASK = 2**64 - 1


def slow(x: int) -> int:
    """SplitMix64 as it is published, in whole numbers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def test_it_mixes_as_published():
    seeds = [0, 1, -1, 7, -(2**63), 2**63 - 1, 123456789012345]
    assert [int(v) & MASK for v in noise._mixed(torch.tensor(seeds))] == [slow(s & MASK) for s in seeds]
    state = slow(slow(5) ^ 3)
    place = (state + 2 * 0x9E3779B97F4A7C15) & MASK
    assert float(noise.uniform(torch.tensor([5]), 3, shape=(4,))[0, 2]) == ((slow(place) >> 41) + 0.5) / 2**23


def test_a_row_has_the_numbers_of_its_seed_wherever_it_stands():
    seeds = torch.arange(100, 150)
    whole = noise.uniform(seeds, 7, seeds, shape=(3, 2))
    some = torch.tensor([4, 0, 31])
    assert torch.equal(noise.uniform(seeds[some], 7, seeds[some], shape=(3, 2)), whole[some])
    assert not torch.equal(noise.uniform(seeds, 8, seeds, shape=(3, 2)), whole)
    before = torch.random.get_rng_state()
    noise.normal(seeds, 1)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_it_is_uniform_and_never_0_or_1():
    found = noise.uniform(torch.arange(2000), 1, shape=(1000,))
    assert found.min() > 0 and found.max() < 1
    counts = torch.histc(found, 64, 0, 1)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 110  # chi-squared, 63 degrees, 0.9998
    assert float((noise._shifted(torch.tensor([-1]), 41).float() + 0.5) / 2**23) < 1


@pytest.mark.parametrize("other", [lambda s: noise.uniform(s + 1, 1), lambda s: noise.uniform(s, 2), lambda s: noise.uniform(s)])
def test_uses_and_neighbours_are_independent(other):
    seeds = torch.arange(100_000)
    assert abs(torch.corrcoef(torch.stack([noise.uniform(seeds, 1), other(seeds)]))[0, 1]) < 0.013  # 4 standard errors


def test_the_normal_one_has_its_moments():
    found = noise.normal(torch.arange(1000), 9, shape=(500,)).double()
    assert found.shape == (1000, 500)
    moments = [float((found**k).mean()) for k in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.03)
