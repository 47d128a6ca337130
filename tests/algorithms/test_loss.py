"""Losses against slow references, in value and in gradient; averages that don't depend on how a batch is split."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmrl.algorithms.loss import (
    LossInputs,
    adaptive_surrogate,
    average,
    bounded_ratio,
    bounded_surrogate,
    clipped_surrogate,
    clipped_weight,
    negative_aware,
    negative_log_likelihood,
    policy_gradient,
    sequence_surrogate,
)


def inputs(logprobs, old, advantages, rollout=None, lengths=None):
    return LossInputs(
        logprobs_L=torch.as_tensor(logprobs),
        old_logprobs_L=torch.as_tensor(old),
        advantages_L=torch.as_tensor(advantages),
        rollout_L=rollout,
        lengths_N=lengths,
    )


def batches(seed):
    """logprobs, old ones, advantages, rollouts, lengths of random micro-batches, which hold some of a batch's eight rollouts."""
    rng = np.random.default_rng(seed)
    for _ in range(200):
        lengths = rng.integers(1, 9, 8)
        rollout = np.repeat(np.arange(8), lengths)
        rollout = rollout[np.isin(rollout, rng.choice(8, int(rng.integers(1, 8)), replace=False))]
        n = len(rollout)
        yield rng.normal(-2, 1, n), rng.normal(-2, 1, n), rng.normal(0, 1, n), rollout, lengths


def pessimist(ratio, credit, low, high, dual=0.0):
    """(objective, its derivative by the ratio) of one token."""
    bounded = min(max(ratio, low), high)
    if bounded * credit < ratio * credit:
        value, slope = bounded * credit, 0.0
    else:
        value, slope = ratio * credit, credit
    return (dual * credit, 0.0) if dual and credit < 0 and value < dual * credit else (value, slope)


def check(function, reference, seed, **settings):
    """Value, cut and gradient equal the reference's: (inputs) -> objective, slope by the log-probability, cut; each [L]."""
    cuts = 0
    for new, old, credit, rollout, lengths in batches(seed):
        logprobs = torch.tensor(new, requires_grad=True)
        loss, cut = function(inputs(logprobs, old, credit, torch.tensor(rollout), torch.tensor(lengths)), **settings)
        loss.sum().backward()
        objective, slope, expected_cut = reference(new, old, credit, rollout, lengths)
        np.testing.assert_allclose(loss.detach().numpy(), -np.array(objective), rtol=1e-5, atol=1e-9)
        np.testing.assert_allclose(logprobs.grad.numpy(), -np.array(slope), rtol=1e-5, atol=1e-9)
        assert cut.dtype == torch.float32 and cut.tolist() == [float(c) for c in expected_cut]
        cuts += sum(expected_cut)
    return cuts


def of_tokens(low, high, dual=0.0, limit=math.inf):
    """The reference of a surrogate of token ratios. low, high: functions of the old log-probability."""

    def reference(new, old, credit, rollout, lengths):
        found = []
        for n, o, a in zip(new, old, credit, strict=True):
            ratio = math.exp(min(max(n - o, -limit), limit))
            value, slope = pessimist(ratio, a, low(o), high(o), dual)
            slope = slope * ratio * (abs(n - o) <= limit)
            found.append((value, slope, slope == 0))
        return tuple(zip(*found, strict=True))

    return reference


@pytest.mark.parametrize("dual", [0.0, 2.0])
def test_the_clipped_surrogate(dual):
    reference = of_tokens(lambda old: 0.8, lambda old: 1.28, dual)
    assert check(clipped_surrogate, reference, 1, clip_low=0.2, clip_high=0.28, dual_clip=dual) > 500


def test_dual_clip_bounds_what_an_unlikely_mistake_weighs():
    logprobs = torch.tensor([math.log(5.0), math.log(5.0), math.log(2.0)], requires_grad=True)
    loss, cut = clipped_surrogate(inputs(logprobs, [0.0] * 3, [-1.0, 1.0, -1.0]), dual_clip=3.0)
    assert loss.tolist() == pytest.approx([3.0, -1.2, 2.0]) and cut.tolist() == [1.0, 1.0, 0.0]
    assert clipped_surrogate(inputs(logprobs, [0.0] * 3, [-1.0, 1.0, -1.0]))[0].tolist() == pytest.approx([5.0, -1.2, 2.0])


def test_the_bounded_surrogate():
    reference = of_tokens(lambda old: 0.8, lambda old: 1.2, limit=math.log(3))
    assert check(bounded_surrogate, reference, 2, bound=3.0) > 500
    assert bounded_ratio(torch.tensor([-1e9, 0.0, 1e9])).tolist() == pytest.approx([1e-3, 1.0, 1e3])


def test_the_adaptive_surrogate():
    reference = of_tokens(
        lambda old: 0.5 + 0.5 * math.sqrt(max(1 - 4 * 0.16 / math.exp(old), 0)),
        lambda old: min(0.5 + 0.5 * math.sqrt(1 + 4 * 0.2 / math.exp(old)), 3.0),
        dual=3.0,
    )
    assert check(adaptive_surrogate, reference, 3, limit=3.0) > 500


def test_adaptive_bounds_are_those_of_the_papers_figure():
    """At q = 1 the lower bound is 0.8, at q = 1/1.2 the upper one 1.2; at q = 0.1 the ratio may double, never grow tenfold."""
    old = torch.tensor([0.0, -math.log(1.2), math.log(0.1), -200.0])
    up = adaptive_surrogate(inputs(old + 50, old, torch.ones(4)))[0]
    down = adaptive_surrogate(inputs(old - 50, old, -torch.ones(4)))[0]
    assert up.tolist() == pytest.approx([-(0.5 + 0.5 * 1.8**0.5), -1.2, -2.0, -10.0])
    assert down.tolist() == pytest.approx([0.8, 0.5 + 0.5 * (1 - 0.64 * 1.2) ** 0.5, 0.5, 0.5])
    assert adaptive_surrogate(inputs(old + 50, old, -torch.ones(4)))[0].tolist() == pytest.approx([10.0] * 4)


def test_the_sequence_surrogate():
    def reference(new, old, credit, rollout, lengths):
        objective, slope, cut = [], np.zeros(len(new)), []
        for i, n in enumerate(rollout):
            ratio = math.exp((new - old)[rollout == n].sum() / lengths[n])
            value, by_ratio = pessimist(ratio, credit[i], 0.7, 1.4)
            slope[rollout == n] += by_ratio * ratio / lengths[n]
            objective.append(value)
            cut.append(by_ratio == 0)
        return objective, slope, cut

    assert check(sequence_surrogate, reference, 4, clip_low=0.3, clip_high=0.4) > 500


def test_a_sequence_surrogate_averaged_by_sequence_is_gspos_objective():
    """One term a rollout, min(s A, clip(s) A), whatever its length."""
    new, old = torch.tensor([0.3, -0.1, 0.1, 0.5]), torch.zeros(4)
    rollout, lengths = torch.tensor([0, 0, 0, 1]), torch.tensor([3, 1])
    loss, _ = sequence_surrogate(inputs(new, old, torch.tensor([2.0, 2.0, 2.0, -1.0]), rollout, lengths))
    batch, micro = SimpleNamespace(num_tokens=4, num_rollouts=2, lengths_N=lengths), SimpleNamespace(rollout_L=rollout)
    assert average(loss, micro, batch, "sequence").item() == pytest.approx(-(2 * 1.0004 - math.exp(0.5)) / 2)


def test_the_clipped_weight():
    def reference(new, old, credit, rollout, lengths):
        ratio = np.exp(new - old)
        weight = np.clip(ratio, 0.5, 2.0)
        return weight * credit * new, weight * credit, weight != ratio

    assert check(clipped_weight, reference, 5, clip_low=0.5, clip_high=1.0) > 500


def test_a_bounded_weight_still_learns():
    logprobs = torch.tensor([0.0, 0.0], requires_grad=True)
    far = torch.tensor([-1.0, -1.0], requires_grad=True)
    loss, _ = clipped_weight(inputs(far, [-99.0, -99.0], [0.0, 1.0]), clip_high=math.inf)
    assert loss.tolist() == pytest.approx([0.0, math.exp(20)]), "without an upper bound the ratio is finite, too"
    loss, cut = clipped_weight(inputs(logprobs, [-4.0, 9.0], [1.0, 1.0]))
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-5.0, -math.exp(-9)]) and cut.tolist() == [1.0, 0.0]


def test_the_policy_gradient():
    assert check(policy_gradient, lambda new, old, credit, *_: (credit, credit, [False] * len(new)), 6) == 0


def test_likelihood_is_minus_the_logprob():
    assert check(negative_log_likelihood, lambda new, old, credit, *_: (credit * new, credit, [False] * len(new)), 7) == 0


@pytest.mark.parametrize(
    "function", [clipped_surrogate, sequence_surrogate, bounded_surrogate, adaptive_surrogate, clipped_weight, policy_gradient]
)
def test_the_gradient_on_policy_is_the_policy_gradient(function):
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    loss, cut = function(inputs(logprobs, logprobs.detach(), [1.0, -2.0, 0.5], torch.tensor([0, 1, 2]), torch.tensor([1, 1, 1])))
    loss.sum().backward()
    assert logprobs.grad.tolist() == pytest.approx([-1.0, 2.0, -0.5]) and cut.tolist() == [0.0] * 3


@pytest.mark.parametrize(
    ("normalise", "expected"),
    [("token", (1 + 2 + 3 + 10) / 4), ("sequence", ((1 + 2 + 3) / 3 + 10) / 2), ("constant", 16 / 2 / 5)],
)
def test_averages_do_not_depend_on_the_split(normalise, expected):
    batch = SimpleNamespace(num_tokens=4, num_rollouts=2, lengths_N=torch.tensor([3, 1]))
    values, rollout = torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.tensor([0, 0, 0, 1])
    for cut in range(5):
        parts = [(values[:cut], rollout[:cut]), (values[cut:], rollout[cut:])]
        shares = [average(v, SimpleNamespace(rollout_L=r), batch, normalise, 5.0).item() for v, r in parts]
        assert sum(shares) == pytest.approx(expected)


@pytest.mark.parametrize(("weight", "least"), [(1.0, 1.0), (0.5, 1e-3)])
def test_negative_aware_fine_tuning(weight, least):
    """As in the published code: the gradient passes through the lower bound as if it weren't there."""
    rng, cuts = np.random.default_rng(6), 0
    for _ in range(200):
        new, old = rng.normal(-2, 1, 6), rng.normal(-2, 1, 6)
        right, share = rng.random(6) < 0.5, rng.choice([0.0, 0.125, 0.5, 0.875, 1.0], 6)
        credit = np.where(right, 1 - share, -share)
        logprobs = torch.tensor(new, requires_grad=True)
        loss, cut = negative_aware(inputs(logprobs, old, credit), negative_weight=weight, least=least)
        loss.sum().backward()
        for i in range(6):
            p, ratio = min(max(share[i], 0.02), 0.98), math.exp(new[i] - old[i])
            if credit[i] == 0:
                value = slope = 0.0
            elif credit[i] > 0:
                value, slope = -(1 - p) * math.log(ratio), -(1 - p)
            else:
                bounded = max((1 - p * ratio) / (1 - p), least)
                value, slope = -(1 - p) * weight * math.log(bounded), weight * p * ratio / bounded
                assert cut[i] == ((1 - p * ratio) / (1 - p) < least)
            assert loss[i].item() == pytest.approx(value, rel=1e-6, abs=1e-9)
            assert logprobs.grad[i].item() == pytest.approx(slope, rel=1e-6, abs=1e-9)
        cuts += int(cut.sum())
    assert cuts > 100


def test_negative_aware_fine_tuning_has_a_gradient_for_the_unlikeliest_tokens():
    """The ratio of a token is 0 in float32 from a log-ratio of -104 on."""
    logprobs = torch.tensor([-110.0, -110.0], requires_grad=True)
    loss, _ = negative_aware(inputs(logprobs, torch.zeros(2), torch.tensor([0.5, -0.5])))
    loss.sum().backward()
    assert logprobs.grad.tolist() == [-0.5, 0.0]


def test_on_policy_negative_aware_fine_tuning_is_grpo_without_the_deviation():
    """Section 4.2 of NFT: at a ratio of 1 the gradient is that of the advantages 1 - p and -p."""
    credit = torch.tensor([0.75, -0.25, -0.25, -0.25, 0.5, -0.5])
    both = []
    for loss in (negative_aware, clipped_surrogate):
        logprobs = torch.full((6,), -1.0, requires_grad=True)
        loss(inputs(logprobs, torch.full((6,), -1.0), credit))[0].sum().backward()
        both.append(logprobs.grad.tolist())
    assert both[0] == pytest.approx(both[1]) and both[1] == pytest.approx((-credit).tolist())
