"""Every estimator of one credit per rollout, or per token without a critic, against a slow reference on ragged batches."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms.advantage import (
    best,
    difficulty_weighted,
    exponential,
    filtered,
    greedy_baseline,
    group_relative,
    leave_one_out,
    per_reward,
    policy_distillation,
    smooth,
    spread,
    success_relative,
    taught,
    weighted,
    whitened,
    whitened_baseline,
)


def batches(seed, n=200):
    """Rewards and groups of random batches: failed scores, ragged groups, groups of one, groups without spread."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        size = int(rng.integers(1, 40))
        groups = rng.integers(0, 6, size) * 7 - 3
        rewards = np.where(rng.random(size) < 0.15, np.nan, rng.choice([0.0, 0.1, 0.25, 1.0, rng.normal()], size))
        rewards[groups == 4] = np.where(np.isnan(rewards[groups == 4]), np.nan, 0.1)
        yield rng, rewards, groups


def mates(rewards, groups, i):
    """The valid rewards of a rollout's group."""
    return np.array([r for r, g in zip(rewards, groups, strict=True) if g == groups[i] and not np.isnan(r)])


def centred(rewards, groups):
    """The definition, one rollout at a time."""
    out = np.full(len(rewards), np.nan)
    for i in np.flatnonzero(~np.isnan(rewards)):
        peers = mates(rewards, groups, i)
        out[i] = rewards[i] - peers.mean() if peers.max() > peers.min() else 0.0
    return out


def std(values, ddof):
    return np.std(values, ddof=ddof) if len(values) > ddof else 0.0


def scaled(values):
    """Values of mean 0 in units of their population standard deviation."""
    size = std(values[~np.isnan(values)], 0)
    return values / size if size > 0 else values


def agree(found, expected):
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-5, atol=1e-6)


def tensors(*arrays):
    return [torch.tensor(a) for a in arrays]


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_group_relative(scale, biased):
    for _, rewards, groups in batches(0):
        expected = centred(rewards, groups)
        for i in np.flatnonzero(~np.isnan(rewards)):
            if scale != "none":
                peers = mates(rewards, groups, i) if scale == "group" else rewards[~np.isnan(rewards)]
                expected[i] /= std(peers, 0 if biased else 1) + 1e-4
        agree(group_relative(*tensors(rewards, groups), scale=scale, biased=biased), expected)


def test_leave_one_out():
    for _, rewards, groups in batches(1):
        expected = np.full(len(rewards), np.nan)
        for i in np.flatnonzero(~np.isnan(rewards)):
            others = [rewards[j] for j in range(len(rewards)) if j != i and groups[j] == groups[i] and not np.isnan(rewards[j])]
            expected[i] = rewards[i] - np.mean(others) if others else 0.0
        agree(leave_one_out(*tensors(rewards, groups)), expected)


def test_whitened_baseline():
    for _, rewards, groups in batches(2):
        agree(whitened_baseline(*tensors(rewards, groups)), scaled(centred(rewards, groups)))


def test_filtered():
    dropped = 0
    for rng, rewards, groups in batches(3):
        rewards = np.where(rng.random(len(rewards)) < 0.05, rewards + 30, rewards)
        expected = scaled(centred(rewards, groups))
        dropped += (np.abs(expected) > 2).sum()
        expected[np.abs(expected) > 2] = 0
        agree(filtered(*tensors(rewards, groups), limit=2.0), expected)
    assert dropped > 50


def test_the_three_sigma_rule_drops_the_outlier_and_rescales_nothing():
    rewards = torch.tensor([20.0, *[0.0, 1.0] * 12, 0.5], dtype=torch.float64)
    found = filtered(rewards, torch.zeros(26, dtype=torch.long))
    mean, size = rewards.mean().item(), rewards.std(correction=0).item()
    assert found[0] == 0 and (20 - mean) / size > 3
    assert found[1].item() == pytest.approx((0 - mean) / size, rel=1e-6)


def test_filtered_by_the_mean_of_the_batch_has_the_limits_of_the_released_code():
    """The figures are those of `replay_buffer.py` in yfzhang114/r1_reward, commit 3693413, on these rewards."""
    rewards = torch.tensor([1.5, 1.5, 0.5, 0.0, math.nan, 1.5], dtype=torch.float64)
    found = filtered(rewards, torch.arange(6), baseline="batch")
    size = math.sqrt((3 * 0.5**2 + 0.5**2 + 1.0**2) / 5)
    expected = [0.5 / size, 0.5 / size, -0.5 / size, -1.0 / size, math.nan, 0.5 / size]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert not filtered(rewards, torch.arange(6)).nansum(), "a group of one has no baseline of its own"
    outlier = torch.tensor([-10.0, *[0.0, 1.0] * 12], dtype=torch.float64)
    mean, size = outlier.mean().item(), outlier.std(correction=0).item()
    assert mean == pytest.approx(0.08) and (-10 - mean) / size < mean - 3
    found = filtered(outlier, torch.arange(25), baseline="batch")
    assert found[0] == 0 and found[2].item() == pytest.approx((1 - mean) / size, rel=1e-6)
    few = torch.tensor([5.0, 5.0, 1.0], dtype=torch.float64)
    kept = filtered(few, torch.arange(3), limit=3.0, baseline="batch")
    assert kept[:2].ne(0).all() and kept[2] == 0, "limits around the raw mean of 11/3: -1.41 is below 0.67"


def test_greedy_baseline():
    for rng, rewards, _ in batches(4):
        baselines = np.where(rng.random(len(rewards)) < 0.1, np.nan, rng.random(len(rewards)))
        agree(greedy_baseline(*tensors(rewards, baselines)), rewards - baselines)


@pytest.mark.parametrize(("positive", "negative"), [(0.1, 1.0), (1.0, 0.0), (0.0, 1.0)])
def test_weighted(positive, negative):
    for _, rewards, _ in batches(5):
        expected = [np.nan if np.isnan(r) else positive * r if r >= 0.25 else negative * (r - 1) for r in rewards]
        agree(weighted(torch.tensor(rewards), positive=positive, negative=negative, threshold=0.25), expected)


def test_difficulty_weighted():
    for rng, rewards, groups in batches(6):
        difficulty = rng.random(len(rewards))
        agree(difficulty_weighted(*tensors(rewards, groups, difficulty)), centred(rewards, groups) * difficulty)


def test_smooth():
    """The reference keeps all rewards of each prompt; the function gets their statistics."""
    for rng, rewards, groups in batches(7):
        past = {g: rng.choice([0.0, 0.1, 1.0], size=int(rng.integers(0, 8))) for g in groups}
        visits = {g: int(rng.integers(1, 4)) if len(past[g]) else 0 for g in groups}
        before = [
            (visits[g], len(past[g]), *((past[g].mean(), past[g].var() * len(past[g])) if visits[g] else (0, 0))) for g in groups
        ]
        expected = np.full(len(rewards), np.nan)
        for i in np.flatnonzero(~np.isnan(rewards)):
            new, visit = mates(rewards, groups, i), visits[groups[i]] + 1
            a, b = (
                (rewards[i] - x.mean()) / x.std() if x.max() > x.min() else 0.0 for x in (new, np.append(new, past[groups[i]]))
            )
            expected[i] = min((a + (visit - 1) * b) / visit, ((visit - 1) * a + b) / visit, key=abs)
        agree(smooth(*tensors(rewards, groups, np.array(before, dtype=np.float64))), expected)


def test_smooth_of_a_first_visit_is_standardisation_and_of_a_second_without_spread_half_of_the_past():
    rewards, groups = torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4, dtype=torch.long)
    assert smooth(rewards, groups, torch.zeros(4, 4)).tolist() == pytest.approx([3**0.5] + [-(3**-0.5)] * 3)
    # seen: 0 0 0 0; now 1 1 1 1: mean 1/2, std 1/2, so total = 1, new = 0, and both mixtures are 1/2
    assert smooth(torch.ones(4), groups, torch.tensor([[1.0, 4.0, 0.0, 0.0]] * 4)).tolist() == [0.5] * 4
    # a third visit: i = 3, seen 0 x 8, now 1 x 4: mean 1/3, std sqrt(2)/3, total = sqrt(2), the smaller mixture is a third of it
    assert smooth(torch.ones(4), groups, torch.tensor([[2.0, 8.0, 0.0, 0.0]] * 4)).tolist() == pytest.approx([2**0.5 / 3] * 4)
    # without a past, or with one of equal rewards, there is nothing to learn
    assert smooth(torch.ones(4), groups, torch.tensor([[2.0, 8.0, 1.0, 0.0]] * 4)).tolist() == [0.0] * 4


@pytest.mark.parametrize("batch", [False, True])
def test_per_reward(batch):
    for rng, rewards, groups in batches(8):
        parts = np.stack([rewards, rng.choice([0.0, 5.0], len(rewards)), rng.normal(size=len(rewards))], 1)
        parts[np.isin(groups, [-3, 11]), 1] = np.nan  # two tasks don't have the second verifier
        parts[np.isnan(rewards)] = np.nan
        weights = np.where(np.isnan(parts), 0.0, [1.0, 0.25, -2.0])
        expected = np.zeros(len(rewards))
        for column, weight in zip(parts.T, weights.T, strict=True):
            sizes = [std(mates(column, groups, i), 1) for i in range(len(rewards))]
            expected += weight * np.nan_to_num(centred(column, groups) / (np.array(sizes) + 1e-4))
        expected[np.isnan(rewards)] = np.nan
        agree(per_reward(*tensors(parts, weights, groups), batch=batch), scaled(expected) if batch else expected)


def test_per_reward_tells_apart_what_the_sum_does_not():
    """GDPO's example: two rewards of which the sums are 0, 1 and 2 in both groups, in different ways."""
    parts = torch.tensor([[0.0, 1.0], [0.0, 0.0], [1.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    groups = torch.tensor([0, 0, 1, 1])
    assert group_relative(parts.sum(1), groups).abs().std() < 1e-3
    found = per_reward(parts, torch.ones(4, 2), groups, batch=False)
    assert found[2].item() == pytest.approx(2 * found[0].item(), rel=1e-3)


def test_exponential():
    for _, rewards, groups in batches(9):
        expected = np.minimum(np.exp(centred(rewards, groups) / 0.2), 3.0)
        agree(exponential(*tensors(rewards, groups), beta=0.2, max_weight=3.0), expected)
    assert exponential(torch.tensor([0.0, 1e4]), torch.tensor([0, 0]), beta=0.01).tolist() == [0.0, 20.0]


def test_best():
    for _, rewards, _ in batches(10):
        expected = [np.nan if np.isnan(r) else float(r >= 0.25) for r in rewards]
        agree(best(torch.tensor(rewards), threshold=0.25), expected)


def test_whitened():
    for rng, _, _ in batches(11):
        n, t = int(rng.integers(1, 8)), int(rng.integers(1, 9))
        mask = np.arange(t) < rng.integers(0, t + 1, n)[:, None]
        rewards = rng.normal(size=(n, t)) * mask
        rewards[rng.random(n) < 0.2] = np.nan
        to_go = np.array([[row[k:].sum() for k in range(t)] for row in rewards])
        kept = to_go[mask & ~np.isnan(to_go)]
        size = std(kept, 0)
        expected = np.where(mask, (to_go - kept.mean()) / size if size > 1e-12 else 0 * to_go, 0) if len(kept) else 0 * rewards
        expected[np.isnan(rewards).any(1)] = np.nan
        agree(whitened(*tensors(rewards, mask)), expected)


def test_whitened_counts_tokens_and_what_comes_before_a_reward():
    rewards = torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]])
    mask = torch.tensor([[True, True, True], [True, False, False]])
    assert whitened(rewards, mask).tolist() == [[0.0] * 3, [0.0] * 3]  # all four tokens still earn 1
    found = whitened(torch.tensor([[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), mask)  # still earned: 1 0 0 and 0
    assert found.tolist() == [pytest.approx([3**0.5, -(3**-0.5), -(3**-0.5)]), pytest.approx([-(3**-0.5), 0, 0])]


def test_policy_distillation():
    for rng, _, _ in batches(12, 50):
        shape = int(rng.integers(1, 8)), int(rng.integers(1, 9))
        teacher, student, mask = rng.normal(size=shape), rng.normal(size=shape), rng.random(shape) < 0.7
        teacher[~mask] = np.nan
        agree(policy_distillation(*tensors(teacher, student, mask)), np.where(mask, teacher - student, 0))


def test_policy_distillation_is_the_gradient_of_the_reverse_kl():
    logits = torch.tensor([0.3, -1.0, 0.8], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([0.0, 0.5, -0.5], dtype=torch.float64).log_softmax(0)
    student = logits.log_softmax(0)
    (exact,) = torch.autograd.grad((student.exp() * (student - teacher)).sum(), logits, retain_graph=True)
    credit = policy_distillation(teacher[None], student.detach()[None], torch.ones(1, 3, dtype=torch.bool))[0].double()
    (found,) = torch.autograd.grad(-(student.exp().detach() * credit * student).sum(), logits)
    torch.testing.assert_close(found, exact, rtol=1e-5, atol=1e-7)


IN_GROUPS = [
    group_relative,
    leave_one_out,
    whitened_baseline,
    filtered,
    lambda r, g: difficulty_weighted(r, g, torch.full_like(r, 3.0)),
    lambda r, g: per_reward(r[:, None], torch.full((len(r), 1), 2.0), g),
    lambda r, g: smooth(r, g, torch.zeros(len(r), 4)),
]


@pytest.mark.parametrize("estimate", IN_GROUPS)
def test_a_failed_score_leaves_the_statistics_of_its_group_and_only_those(estimate):
    rewards, groups = torch.tensor([1.0, 0.0, torch.nan, 1.0, 0.0, 0.5]), torch.tensor([0, 0, 0, 1, 1, 2])
    found = estimate(rewards, groups)
    assert found[2].isnan() and found[0] > 0 and found[5] == 0
    assert found[:2].tolist() == found[3:5].tolist() and found[0] == -found[1]


@pytest.mark.parametrize("estimate", IN_GROUPS)
def test_equal_rewards_that_floats_cannot_average_have_no_spread(estimate):
    assert estimate(torch.tensor([0.1] * 7, dtype=torch.float64), torch.zeros(7, dtype=torch.long)).tolist() == [0.0] * 7
    mixed = torch.tensor([0.1] * 7 + [0.0, 1.0, 1.0], dtype=torch.float64)
    assert estimate(mixed, torch.tensor([0] * 7 + [1] * 3))[:7].tolist() == [0.0] * 7
    assert not spread(torch.tensor([0.1] * 7 + [torch.nan]), torch.zeros(8, dtype=torch.long)).any()


@pytest.mark.parametrize("estimate", IN_GROUPS)
def test_when_every_score_failed_nothing_is_left(estimate):
    assert estimate(torch.full((3,), torch.nan), torch.tensor([0, 0, 1])).isnan().all()


@pytest.mark.parametrize("scale", ["group", "batch"])
def test_without_an_epsilon_a_batch_without_spread_is_still_finite(scale):
    assert group_relative(torch.ones(4), torch.zeros(4, dtype=torch.long), scale=scale, epsilon=0.0).tolist() == [0.0] * 4


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12), st.floats(-5, 5), st.permutations(range(12)))
def test_a_shift_changes_nothing_and_the_order_does_not_matter(values, shift, order):
    rewards = torch.tensor(values, dtype=torch.float64).round(decimals=3)
    groups = torch.zeros(len(values), dtype=torch.long)
    plain = group_relative(rewards, groups, scale="none")
    assert abs(plain.sum().item()) < 1e-4
    torch.testing.assert_close(group_relative(rewards + round(shift, 3), groups, scale="none"), plain, atol=1e-5, rtol=0)
    chosen = torch.tensor([i for i in order if i < len(values)])
    torch.testing.assert_close(group_relative(rewards[chosen], groups, scale="none"), plain[chosen], atol=1e-6, rtol=0)


@pytest.mark.parametrize("masking", ["none", "response", "group"])
def test_rewards_and_a_teacher_by_hand(masking):
    """Group 0 has a right rollout, group 1 none; the last rollout's score failed. Half way beta is the mean of 0.4 and 0.2."""
    rewards, groups = torch.tensor([1.0, 0.0, 0.4, 0.0, math.nan]), torch.tensor([0, 0, 1, 1, 1])
    mask = torch.tensor([[True, True], [True, False], [True, True], [True, True], [True, True]])
    theirs, ours = torch.tensor([[-1.0, -2.0]] * 5), torch.tensor([[-2.0, -1.5]] * 5)
    found = taught(
        *(rewards, groups, theirs, ours, mask, torch.full((5,), 0.5)),
        teacher_weight=0.4,
        last_teacher_weight=0.2,
        masking=masking,
    )
    plain = group_relative(rewards, groups)
    kept = {"none": [1, 1, 1, 1], "response": [0, 1, 1, 1], "group": [0, 0, 1, 1]}[masking]
    for n, k in enumerate(kept):
        expected = [plain[n].item() + 0.3 * k * gap for gap in (1.0, -0.5)]
        assert found[n].tolist() == pytest.approx([expected[0], expected[1] if mask[n, 1] else 0.0])
    assert found[4].isnan().all() and found.dtype == torch.float32


def test_the_teachers_weight_goes_from_one_end_to_the_other():
    one = torch.ones(2, 1)
    for progress, weight in ((0.0, 5e-3), (0.25, 4e-3), (1.0, 1e-3)):
        found = taught(torch.ones(2), torch.zeros(2, dtype=torch.long), one, 0 * one, one.bool(), torch.full((2,), progress))
        assert found.flatten().tolist() == pytest.approx([weight] * 2), "a group without spread is taught all the same"


def test_success_relative_knows_only_right_and_wrong():
    rewards, groups = torch.tensor([0.9, 0.5, 0.49, 0.0, 0.2, math.nan, 1.0]), torch.tensor([0, 0, 0, 0, 1, 1, 2])
    found = success_relative(rewards, groups)
    assert found[[0, 1, 2, 3, 4, 6]].tolist() == [0.5, 0.5, -0.5, -0.5, 0.0, 0.0] and found[5].isnan()
    assert success_relative(rewards, groups, threshold=0.6)[:4].tolist() == [0.75, -0.25, -0.25, -0.25]
