"""Every algorithm at the ends of what rewards, ratios and lengths can be."""

import functools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms.advantage import group_relative, smooth, standardised, whitened
from mmrl.algorithms.gae import gae
from mmrl.algorithms.loss import LossInputs, adaptive_surrogate, negative_aware
from mmrl.algorithms.presets import load_algorithm
from mmrl.registry import plugins

ALL = sorted(plugins.registry().specs("algorithms"))
OLD = (-1e-6, -0.5, -3.0, -23.0, -105.0, -320.0)
MOVED = (0.0, 0.05, -0.3, 0.3, 5.0, -9.0, 9.5, 20.0, -20.0, 300.0, -300.0)
load = functools.cache(lambda algorithm: load_algorithm(algorithm, {}))


# -- losses ------------------------------------------------------------------------------------------------------------------


def measured(inputs, groups):
    moved, lengths = (inputs.logprobs_L - inputs.old_logprobs_L).detach(), inputs.lengths_N
    ratios, credits = (
        torch.zeros(len(lengths), dtype=x.dtype).index_add(0, inputs.rollout_L, x) for x in (moved, inputs.advantages_L)
    )
    return {
        "mean_log_ratio_L": moved / 8,
        "log_ratios_N": ratios,
        "groups_N": groups,
        "credits_N": credits / lengths,  # NaN for an empty one
        "batch_M3": torch.stack([inputs.logprobs_L.detach(), inputs.old_logprobs_L, inputs.advantages_L], 1),
        "places_L": torch.arange(len(moved)),
        "through_call_L": torch.linspace(0, 1, len(moved), dtype=moved.dtype),
    }


def learnt(algorithm, logprobs, old, advantages, lengths):
    new, lengths = logprobs.clone().requires_grad_(), torch.tensor(lengths)
    rollout = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    inputs = LossInputs(
        logprobs_L=new, old_logprobs_L=old, advantages_L=advantages[rollout], rollout_L=rollout, lengths_N=lengths
    )
    known, chosen = measured(inputs, torch.arange(len(lengths)) // 4), load(algorithm)
    loss, cut, *_ = chosen.loss(inputs, *[known[name] for name in chosen.loss_needs])
    assert loss.shape == cut.shape == new.shape and loss.requires_grad
    weight = torch.linspace(0.5, 1.5, len(loss), dtype=loss.dtype)
    return loss.detach(), torch.autograd.grad((loss * weight).sum(), new)[0]


def of_every_ratio(dtype):
    """Tokens of every old log-probability with every log-ratio, in rollouts of none to seven tokens with credit of both signs."""
    pairs = [(old, min(old + moved, 0.0)) for old in OLD for moved in MOVED]
    old, new = torch.tensor(pairs, dtype=torch.float32).repeat(2, 1).to(dtype).unbind(1)
    lengths = [0, 1, 2, 7, 4, 1, 1, 6] * 6
    advantages = torch.tensor([1.0, -0.75, 0.5, -0.98, 0.0, 0.98] * 8, dtype=dtype)
    return new, old, advantages, lengths


@pytest.mark.parametrize("algorithm", ALL)
def test_losses_and_gradients_of_every_ratio_are_those_of_float64(algorithm):
    found, exact = learnt(algorithm, *of_every_ratio(torch.float32)), learnt(algorithm, *of_every_ratio(torch.float64))
    for ours, theirs in zip(found, exact, strict=True):
        assert ours.isfinite().all() and ours.dtype == torch.float32
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("algorithm", ALL)
def test_a_micro_batch_without_a_token(algorithm):
    nothing = torch.zeros(0)
    if "batch_M3" not in load(algorithm).loss_needs:
        assert learnt(algorithm, nothing, nothing, torch.ones(2), [0, 0])[0].shape == (0,)


def one(logprobs, old, credit):
    tokens = torch.zeros(len(credit), dtype=torch.long)
    return LossInputs(
        logprobs_L=logprobs, old_logprobs_L=old, advantages_L=credit, rollout_L=tokens, lengths_N=torch.tensor([len(credit)])
    )


def test_no_lower_bound_where_the_old_probability_is_0_in_float32():
    old, new = torch.tensor([-200.0, -1.0]), torch.tensor([-201.0, -2.0], requires_grad=True)
    loss, _ = adaptive_surrogate(one(new, old, -torch.ones(2)), clip_low=0.0)
    assert loss.tolist() == [1.0, 1.0], "no ratio below 1 counts"


@pytest.mark.parametrize("least", [1.0, 1e-3])
def test_an_implicit_ratio_far_below_its_bound_is_the_bound(least):
    """(1 - 0.98 e^10) / 0.02 is minus a million, from which float32 doesn't lead back to the bound by a difference."""
    new = torch.tensor([-1.0], requires_grad=True)
    loss, cut = negative_aware(one(new, torch.tensor([-10.9]), torch.tensor([-0.98])), least=least)
    (slope,) = torch.autograd.grad(loss.sum(), new)
    assert loss.item() == pytest.approx(-0.02 * math.log(least), abs=1e-6) and cut.item() == 1.0
    assert slope.item() == pytest.approx(0.98 * math.exp(9.9) / least, rel=1e-4)


# -- advantages --------------------------------------------------------------------------------------------------------------


def signals(rewards, lengths, groups, t):
    """A table of every signal; numbers differ by rollout and token, and are 0 after the end."""
    n, rewards, lengths, groups = len(rewards), torch.tensor(rewards).double(), torch.tensor(lengths), torch.tensor(groups)
    mask, failed = torch.arange(t) < lengths[:, None], rewards.isnan()[:, None]

    def numbers(seed):
        return torch.rand(n, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)[:, :t].where(mask, 0.0)

    units, ones = (torch.arange(t).expand(n, t) // 2).where(mask, -1), torch.ones(n, dtype=torch.float64)
    last = (torch.arange(t) == lengths[:, None] - 1).double()
    names = ("values", "answer_values", "logprobs", "entropy", "slopes", "teacher_logprobs")
    names += ("told_logprobs", "shown_logprobs", "perception")
    return {
        **{f"{name}_NT": numbers(seed) * (-3 if "logprobs" in name else 1) for seed, name in enumerate(names)},
        **{"rewards_N": rewards, "groups_N": groups, "lengths_N": lengths, "mask_NT": mask, "units_NT": units, "turns_NT": units},
        "rewards_NT": (last * rewards.nan_to_num()[:, None]).masked_fill(failed, math.nan),
        "parts_NR": torch.stack([rewards, rewards / 2], 1),
        **{"weights_NR": torch.ones(n, 2, dtype=torch.float64), "past_N4": torch.tensor([[2.0, 4.0, 0.5, 0.1]] * n)},
        **{"baselines_N": ones / 2, "difficulty_N": ones, "progress_N": ones / 2, "bootstrap_N": 0 * ones},
        "states_NT": (groups[:, None] * 100 + units).where(mask, -1),
    }


def credit(algorithm, table):
    chosen = load(algorithm)
    found = chosen.advantage(*[table[name] for name in chosen.needs])
    return found[0] if isinstance(found, tuple) else found


@pytest.mark.parametrize("algorithm", ALL)
@pytest.mark.parametrize(
    ("rewards", "lengths", "groups"),
    [
        ([1.0, 0.0], [0, 0], [0, 0]),
        ([1.0], [1], [0]),
        ([1.0, 0.0, 1.0], [0, 4, 1], [0, 0, 1]),
        ([math.nan, 1.0, 0.0, math.nan], [3, 2, 4, 1], [0, 0, 0, 1]),
        ([1e8, -1e8, 0.0], [3, 2, 4], [0, 0, 0]),
        ([1e-8, -1e-8, 0.0], [3, 2, 4], [0, 0, 0]),
    ],
    ids=["all-empty", "one-token", "one-empty", "failed", "large", "tiny"],
)
def test_advantages_are_numbers_and_nan_only_where_a_score_failed(algorithm, rewards, lengths, groups):
    table = signals(rewards, lengths, groups, max(lengths))
    found, failed = credit(algorithm, table), table["rewards_N"].isnan()
    assert found.dtype == torch.float32 and found[~failed].isfinite().all()
    if {"rewards_N", "rewards_NT", "parts_NR"} & {*load(algorithm).needs} and found.numel():
        assert found[failed].isnan().flatten(1).any(1).all() if found.ndim > 1 else found[failed].isnan().all()


@settings(max_examples=3, deadline=None, derandomize=True)
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.3, 1.0, math.nan]), st.integers(1, 5)), min_size=2, max_size=6),
    st.randoms(use_true_random=False),
)
@pytest.mark.parametrize("algorithm", ALL)
def test_neither_padding_nor_order_matters(algorithm, rollouts, random):
    rewards, lengths = map(list, zip(*rollouts, strict=True))
    groups, t = [n // 3 for n in range(len(rewards))], max(lengths)
    table = signals(rewards, lengths, groups, t)
    plain = credit(algorithm, table)
    padded = credit(algorithm, signals(rewards, lengths, groups, t + 2))
    torch.testing.assert_close(padded if plain.ndim == 1 else padded[:, :t], plain, equal_nan=True)
    if load(algorithm).advantage.func.__name__ == "down_sampled":
        return  # among equals the first is kept
    order = torch.tensor(random.sample(range(len(rewards)), len(rewards)))
    moved = credit(algorithm, {name: values[order] for name, values in table.items()})
    torch.testing.assert_close(moved, plain[order], equal_nan=True, rtol=1e-4, atol=1e-5)


def test_many_equal_rewards_have_no_spread_however_large():
    """The mean of seven equal numbers of this size isn't one of them, and by their standard deviation all would be -1 or 1. So
    would be five, whose mean a history has that was rounded once more."""
    for n, reward in ((7, 0.1), (7, 1e8 / 3), (7, -7e7 / 3), (7, 1e9 / 7), (5, 1e9 / 7)):
        rewards = torch.full((n,), reward, dtype=torch.float64)
        groups, mask = torch.zeros(n, dtype=torch.long), torch.ones(n, 1, dtype=torch.bool)
        units, nothing = torch.zeros(n, 1, dtype=torch.long), torch.zeros(n, 1)
        past = torch.tensor([[2.0, 7.0, reward, 0.0]] * n, dtype=torch.float64)
        past[:, 2] = torch.nextafter(past[:, 2], torch.tensor(math.inf).double())
        for found in (
            whitened(rewards[:, None], mask),
            group_relative(rewards, groups, scale="batch"),
            smooth(rewards, groups, past),
            gae(rewards[:, None], nothing, nothing[:, 0], units)[0],
        ):
            assert not found.any(), reward
    apart = standardised(torch.tensor([1e8, 1e8 + 1], dtype=torch.float64), torch.tensor([True, True]))
    assert apart.tolist() == pytest.approx([-1.0, 1.0]), "a difference of one still counts"
