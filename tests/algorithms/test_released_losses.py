"""TOPR, CE-GPPO, ASPO, M2PO, BAPO, GVPO, PKPO and MaxRL against numbers worked out by hand and slow loops. What their released
code gives is in test_objectives.py."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loss_inputs import made, random_batch, whole_batch
from mmrl.algorithms.adaptive_clipping import balanced_surrogate, most_moved, second_moment_surrogate
from mmrl.algorithms.asymmetric_losses import flipped_ratio, gradient_preserving, tapered
from mmrl.algorithms.group_baselines import best_of_group, best_of_k, per_success
from mmrl.algorithms.group_variance import group_variance
from mmrl.algorithms.loss import clipped_surrogate
from mmrl.algorithms.presets import load_algorithm

NAN = math.nan


def learnt(loss, ratios, credit, **given):
    """(Gradient by the log-probability over minus the credit, whether it is clipped), token by token, each with an old
    probability of 0.01."""
    new = (torch.tensor(ratios, dtype=torch.float64) * 0.01).log().requires_grad_()
    n = len(ratios)
    old, credit = torch.full((n,), 0.01, dtype=torch.float64).log(), torch.tensor(credit, dtype=torch.float64)
    found, cut = loss(made(new, old, credit, torch.arange(n), torch.ones(n, dtype=torch.long)), **given)
    found.sum().backward()
    return (-new.grad / credit).tolist(), cut.tolist()


# -- weights by the sign of the advantage ------------------------------------------------------------------------------------


def test_topr_imitates_good_rollouts_and_tapers_bad_ones():
    """The products of the rollouts' ratios are 2, 4 and 0.25; that of the last is the weight of all its tokens."""
    new = torch.tensor([0.5, 4.0, 4.0, 0.5, 0.5, 1.0]).log().requires_grad_()
    credit = torch.tensor([1.0, 1.0, -2.0, -1.0, -1.0, -1.0])
    loss, cut = tapered(made(new, torch.zeros(6), credit))
    loss.sum().backward()
    assert new.grad.tolist() == pytest.approx([-1.0, -1.0, 2.0, 0.25, 0.25, 0.25]) and cut.tolist() == [0, 0, 1, 0, 0, 0]
    good = tapered(made(new, torch.zeros(6), credit.abs()))
    assert torch.equal(good[0], -credit.abs() * new) and not good[1].any(), "however far good rollouts have been left"
    weights, cut = learnt(tapered, [0.3, 1.0, 3.0, 0.3], [-1.0, -1.0, -1.0, 1.0], level="token")
    assert weights == pytest.approx([0.3, 1.0, 1.0, 1.0]) and cut == [0.0, 0.0, 1.0, 0.0]


def test_topr_learns_from_rewards_of_one_and_minus_one():
    """Without a baseline, so that a group of equal rewards teaches too."""
    found = load_algorithm("topr", {})
    assert found.needs == ("rewards_N",) and found.advantage(torch.tensor([1.0, 0.0, 1.0])).tolist() == [1.0, -1.0, 1.0]
    assert (found.normalise, found.constant) == ("constant", 1.0), "sums over tokens, as the log-probability of a rollout is"


def test_ce_gppo_keeps_the_gradient_at_the_bound():
    ratios, credit = [0.5, 0.5, 1.1, 3.0, 3.0, 12.0], [-1.0, 2.0, 1.0, 2.0, -1.0, -1.0]
    weights, cut = learnt(gradient_preserving, ratios, credit, clip_high=0.3, low_weight=0.5, high_weight=0.7)
    assert weights == pytest.approx([0.5 * 0.8, 0.5, 1.1, 0.7 * 1.3, 3.0, 0.0]) and cut == [1.0, 0.0, 0.0, 1.0, 0.0, 1.0]
    weights, cut = learnt(gradient_preserving, ratios, credit, dual_clip=0.0)
    assert weights[-1] == pytest.approx(12.0) and not cut[-1]


def test_ce_gppo_with_weights_of_0_is_clipping():
    for weight in (0.0, 1.0):
        ours, theirs = random_batch(3, moved=0.5), random_batch(3, moved=0.5)
        gradient_preserving(ours, low_weight=weight, high_weight=weight, dual_clip=3.0)[0].sum().backward()
        _, cut = clipped_surrogate(theirs, dual_clip=3.0)
        clipped_surrogate(theirs, dual_clip=3.0)[0].sum().backward()
        assert cut.any() and torch.allclose(ours.logprobs_L.grad, theirs.logprobs_L.grad) is (weight == 0.0)


def test_aspo_flips_the_ratio_of_positive_advantages():
    weights, cut = learnt(flipped_ratio, [0.5, 0.2, 1.1, 1.3, 0.9, 0.5, 1.5, 9.0], [1.0] * 4 + [-1.0] * 4)
    assert weights == pytest.approx([2.0, 3.0, 1 / 1.1, 0.0, 0.9, 0.0, 1.5, 3.0])
    assert cut == [0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0]
    assert learnt(flipped_ratio, [0.2, 9.0], [1.0, -1.0], limit=20.0)[0] == pytest.approx([5.0, 9.0])


# -- bounds of the batch -----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 20), min_size=0, max_size=9), st.integers(1, 30))
def test_the_farthest_bound_with_which_the_second_moment_fits(sizes, tenths):
    squares, budget = torch.tensor([s / 10 for s in sizes], dtype=torch.float64).sort().values, tenths / 10 + 0.05
    found = most_moved(squares, budget).item()
    if not sizes or squares.mean() <= budget:
        assert found == math.inf
        return
    fits = [s for s in squares.tolist() if sum(min(v, s) for v in squares.tolist()) / len(sizes) < budget]
    largest = max(fits, default=0.0)
    assert found == pytest.approx(math.sqrt(largest), rel=1e-5) and (found**2 < largest or not largest), "just below it"


def test_m2po_clips_what_moved_the_farthest_in_the_direction_of_its_advantage():
    """Squares 0.01, 0.04, 0.25 and 1 have a mean of 0.325; clipped at 0.25 of 0.1375, at 0.04 of 0.0325. The last two tokens have
    moved against their advantage."""
    moved, credit = [0.1, -0.2, 0.5, -1.0, 2.0, -2.0], [1.0, -1.0, 1.0, -1.0, -1.0, 1.0]

    def cut(**given):
        inputs = made(torch.tensor(moved).requires_grad_(), torch.zeros(6), torch.tensor(credit))
        return second_moment_surrogate(inputs, whole_batch(inputs)[0], **given)[1].tolist()

    assert cut(budget=0.33, least_low=0.0, least_high=0.0) == [0] * 6
    assert cut(budget=0.2, least_low=0.0, least_high=0.0) == [0, 0, 1, 1, 0, 0], "at 0.5, and what is at the bound"
    assert cut(budget=0.1, least_low=0.0, least_high=0.0) == [0, 1, 1, 1, 0, 0], "at 0.2"
    assert cut(budget=0.1) == [0, 0, 1, 1, 0, 0], "1.65 is beyond 1.5, and 0.82 isn't below 0.7"
    assert cut(budget=0.1, least_low=0.7, least_high=0.7) == [0] * 6
    assert cut(budget=0.001, least_low=0.0, least_high=0.0) == [1, 1, 1, 1, 0, 0]


def test_m2po_counts_the_tokens_of_all_micro_batches():
    """A token by itself has moved too far; among others that haven't moved it hasn't."""
    far = made(torch.tensor([0.9]).requires_grad_(), torch.zeros(1), torch.ones(1), torch.zeros(1).long(), torch.ones(1).long())
    rest = torch.tensor([[0.01, 0.0, 1.0]] * 30)
    assert second_moment_surrogate(far, torch.tensor([[0.9, 0.0, 1.0]]))[1].tolist() == [1.0]
    assert second_moment_surrogate(far, torch.cat([rest, torch.tensor([[0.9, 0.0, 1.0]])]))[1].tolist() == [0.0]


def bounds_of_bapo(inputs, share, lower, lower_max, upper, upper_max, step):
    """The bounds as its code moves them, one step after the other."""
    ratios, credit = (inputs.logprobs_L - inputs.old_logprobs_L).exp().tolist(), inputs.advantages_L.tolist()

    def positive():
        gains = sum(min(r, upper) * a for r, a in zip(ratios, credit, strict=True) if a > 0)
        return gains / (gains - sum(max(r, lower) * a for r, a in zip(ratios, credit, strict=True) if a < 0))

    while positive() < share and lower < lower_max:
        lower = min(lower + step, lower_max)
    while positive() < share and upper < upper_max:
        upper = min(upper + step, upper_max)
    return lower, upper


def test_bapo_moves_the_lower_bound_first_and_then_the_upper_one():
    seen = set()
    for seed, share in itertools.product(range(4), np.arange(0.3, 0.9, 0.02)):
        inputs = random_batch(seed, n=40, moved=0.8)
        lower, upper = bounds_of_bapo(inputs, share, 0.6, 0.9, 1.2, 1.97, 0.05)
        loss, cut = balanced_surrogate(inputs, whole_batch(inputs)[0], positive_share=share, upper_max=1.97)
        expected = clipped_surrogate(inputs, clip_low=1 - lower, clip_high=upper - 1, dual_clip=3.0)
        torch.testing.assert_close(loss, expected[0])
        assert torch.equal(cut, expected[1])
        seen.add((lower > 0.6, lower == 0.9, upper > 1.2, upper == 1.97))
    assert seen == {(False,) * 4, (True, True, True, False), (True,) * 4}, "the lower bound ends at its maximum, if it moves"


def test_bapo_keeps_its_bounds_where_nothing_is_negative_or_they_cannot_move():
    inputs = random_batch(1, n=40, moved=0.8)
    good = made(inputs.logprobs_L, inputs.old_logprobs_L, inputs.advantages_L.abs(), inputs.rollout_L, inputs.lengths_N)
    for case, still in ((good, {}), (inputs, {"lower_max": 0.5, "upper_max": 1.1})):
        loss, _ = balanced_surrogate(case, whole_batch(case)[0], positive_share=1.0, **still)
        assert torch.equal(loss, clipped_surrogate(case, clip_low=0.4, clip_high=0.2, dual_clip=3.0)[0])


# -- groups ------------------------------------------------------------------------------------------------------------------


def test_gvpo_is_the_variance_within_each_group():
    """Its gradient is that of the whole objective, by autograd; a failed rollout counts nowhere, and a single one teaches
    nothing."""
    rng, lengths = np.random.default_rng(5), torch.tensor([2, 1, 3, 2, 1, 4, 1])
    rollout, groups = torch.arange(7).repeat_interleave(lengths), torch.tensor([0, 1, 0, 1, 0, 1, 2])
    credits = torch.tensor([0.5, -0.2, -0.3, 0.4, NAN, -0.1, 7.0], dtype=torch.float64)
    new, old = (torch.tensor(rng.normal(-1, 0.5, len(rollout))) for _ in range(2))
    new.requires_grad_()
    sums = torch.zeros(7, dtype=torch.float64).index_add(0, rollout, new - old)
    whole = 0.0
    for mine in ([0, 2], [1, 3, 5]):
        whole = whole + len(mine) * (0.3 * sums - credits)[mine].var() / 2
    (expected,) = torch.autograd.grad(whole, new)
    inputs = made(new, old, credits[rollout].nan_to_num(0.0), rollout, lengths)
    loss, cut = group_variance(inputs, sums.detach(), groups, credits, beta=0.3)
    loss.sum().backward()
    assert loss.sum().item() == pytest.approx(whole.item()) and not cut.any()
    assert new.grad.tolist() == pytest.approx(expected.tolist()) and not new.grad[rollout == 6].any()


def test_gvpo_is_least_for_the_policy_that_a_kl_penalty_makes_best():
    """Whose log-ratio is the reward over beta, less what is the same for all."""
    rewards, lengths, rollout = torch.tensor([1.0, 0.0, 0.4]), torch.ones(3, dtype=torch.long), torch.arange(3)
    log_ratios = rewards / 0.1 - 5.0
    inputs = made(log_ratios.clone().requires_grad_(), torch.zeros(3), rewards - rewards.mean(), rollout, lengths)
    loss, _ = group_variance(inputs, log_ratios, torch.zeros(3, dtype=torch.long), inputs.advantages_L)
    loss.sum().backward()
    assert loss.sum().item() == pytest.approx(0.0, abs=1e-10) and inputs.logprobs_L.grad.abs().max() < 1e-6


def test_pkpo_is_the_mean_over_all_choices_of_k():
    rng = np.random.default_rng(2)
    for _ in range(60):
        k, n = int(rng.integers(2, 6)), int(rng.integers(1, 9))
        rewards, groups = rng.integers(-2, 4, n) / 4, rng.integers(0, 2, n)
        rewards[rng.random(n) < 0.1] = NAN
        found = best_of_k(torch.tensor(rewards), torch.tensor(groups), k=k).tolist()
        for i in range(n):
            mine = [j for j in range(n) if groups[j] == groups[i] and not np.isnan(rewards[j])]
            choices = list(itertools.combinations(mine, min(k, len(mine))))
            gains = [max(rewards[[*c]]) - max(rewards[[j for j in c if j != i]]) for c in choices if i in c and len(c) > 1]
            expected = NAN if np.isnan(rewards[i]) else sum(gains) / len(choices)
            assert found[i] == pytest.approx(expected, abs=1e-7, nan_ok=True)


def test_pkpo_of_the_whole_group_is_the_best_of_the_group():
    rewards = torch.tensor([0.3, 0.9, 0.4, 0.9, NAN, 0.2, 0.7, 0.0])
    groups = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2])
    for k in (4, 100):
        found, whole = best_of_k(rewards, groups, k=k), best_of_group(rewards, groups, scale="none")
        assert found.tolist() == pytest.approx(whole.tolist(), nan_ok=True)
    assert not best_of_k(torch.full((512,), 0.1), torch.zeros(512).long(), k=64).any(), "no spread"


def test_maxrl_divides_by_the_share_of_successes():
    rewards, groups = torch.tensor([1.0, 0.6, 0.0, NAN, 0.0, 0.0, 1.0, 1.0]), torch.tensor([0, 0, 0, 0, 1, 1, 2, 2])
    assert per_success(rewards, groups).tolist() == pytest.approx([0.5, 0.5, -1.0, NAN, 0.0, 0.0, 0.0, 0.0], nan_ok=True)
    assert per_success(rewards, groups, threshold=0.7).tolist()[:3] == pytest.approx([2.0, -1.0, -1.0])
    scores = torch.tensor([3.0, 5.0, -1.0])  # of the first group; the failed one counts nowhere
    assert (per_success(rewards, groups)[:3] * scores).mean().item() == pytest.approx(4.0 - 7 / 3), "of the correct less of all"
