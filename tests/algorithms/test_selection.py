"""Down-sampling against slow references: every subset of rollouts, and tokens one by one."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms.advantage import group_relative
from mmrl.algorithms.selection import down_sampled, most_varied

SHARES = {"first_rollouts": 0.5, "last_rollouts": 1.0, "first_tokens": 0.25, "last_tokens": 1.0}


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=8), st.data())
@settings(max_examples=200)
def test_no_subset_of_its_size_varies_more(values, data):
    size = data.draw(st.integers(0, len(values)))
    kept = most_varied(torch.tensor(values, dtype=torch.float64), size)
    assert int(kept.sum()) == size
    if size:
        best = max(np.var(list(chosen)) for chosen in itertools.combinations(values, size))
        assert np.var(np.array(values)[kept.numpy()]) == pytest.approx(best, abs=1e-9)


def test_failed_rollouts_are_never_chosen():
    values = torch.tensor([math.nan, 1.0, -1.0, 0.0], dtype=torch.float64)
    assert most_varied(values, 2).tolist() == [False, True, True, False]
    assert most_varied(values, 9).tolist() == [False, True, True, True]
    assert not most_varied(torch.full((3,), math.nan, dtype=torch.float64), 2).any()


def cases(seed, count=60):
    """rewards, groups, entropy, mask, progress: ragged, some failed, some of no length."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        n, t = int(rng.integers(2, 9)), int(rng.integers(1, 6))
        rewards = rng.integers(0, 4, n) / 3.0
        rewards[rng.random(n) < 0.15] = math.nan
        lengths = rng.integers(0, t + 1, n)
        mask = np.arange(t)[None] < lengths[:, None]
        yield rewards, rng.integers(0, 2, n), rng.exponential(1, (n, t)) * mask, mask, float(rng.random())


def reference(rewards, groups, entropy, mask, progress):
    """The kept tokens and their advantages, found one after the other."""
    advantages = group_relative(torch.tensor(rewards), torch.tensor(groups)).double().numpy()
    there = [i for i in range(len(rewards)) if not math.isnan(rewards[i])]
    size = math.ceil(len(there) * (0.5 + 0.5 * progress) - 1e-9)
    best = max(np.var(advantages[list(c)]) for c in itertools.combinations(there, size)) if size else 0.0
    kept = most_varied(torch.tensor(advantages), size).numpy()
    assert not size or np.var(advantages[kept]) == pytest.approx(best, abs=1e-9)
    tokens = [(i, t) for i in range(len(rewards)) for t in range(mask.shape[1]) if mask[i, t] and kept[i]]
    number = math.ceil(len(tokens) * (0.25 + 0.75 * progress) - 1e-9)
    ranked = sorted(tokens, key=lambda at: -abs(advantages[at[0]]) * entropy[at])[:number]
    ranked = [at for at in ranked if advantages[at[0]] * entropy[at]]
    every = sum(int(mask[i].sum()) for i in there)
    found = np.zeros(mask.shape)
    for i, t in ranked:
        found[i, t] = advantages[i] * every / len(ranked)
    found[np.isnan(rewards)] = math.nan
    return found


def test_the_selection_is_that_of_a_slow_search():
    kept = 0
    for rewards, groups, entropy, mask, progress in cases(3):
        given = [torch.tensor(x) for x in (rewards, groups, entropy, mask, np.full(len(rewards), progress))]
        found = down_sampled(*given, **SHARES)
        np.testing.assert_allclose(found.numpy(), reference(rewards, groups, entropy, mask, progress), rtol=1e-5, atol=1e-7)
        kept += int((found.nan_to_num() != 0).sum())
    assert kept > 100


def test_at_first_few_tokens_are_kept_and_at_last_all_of_those_that_teach():
    rewards, groups = torch.tensor([1.0, 0.0, 0.5, 0.5]), torch.zeros(4, dtype=torch.long)
    entropy, mask = torch.tensor([[2.0, 1.0], [1.0, 3.0], [9.0, 9.0], [9.0, 9.0]]), torch.ones(4, 2, dtype=torch.bool)
    first = down_sampled(rewards, groups, entropy, mask, torch.zeros(4), **SHARES)
    assert (first != 0).tolist() == [[False, False], [False, True], [False, False], [False, False]]
    plain = group_relative(rewards, groups)
    assert first[1, 1].item() == pytest.approx(8 * plain[1].item())
    last = down_sampled(rewards, groups, entropy, mask, torch.ones(4), **SHARES)
    assert last.sum(1).tolist() == pytest.approx([4 * a for a in plain.tolist()]), "rollouts at the mean teach nothing"
