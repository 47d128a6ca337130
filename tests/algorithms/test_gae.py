"""What is computed by unit of credit, against slow references: advantages with a critic, its loss, DigiRL's step filter."""

import math

import numpy as np
import pytest
import torch

from mmrl.algorithms.advantage import step_filter
from mmrl.algorithms.gae import gae, value_loss


def batches(seed, n=200):
    """rewards, values, bootstrap, units: ragged rows and units, tokens of no unit, failed rows, episodes that were cut off."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        rows, columns = int(rng.integers(1, 7)), int(rng.integers(1, 12))
        units = np.cumsum(rng.random((rows, columns)) < 0.6, axis=1)
        units = (units - units[:, :1]) * int(rng.integers(1, 3))  # numbers may be left out
        units[np.arange(columns) >= rng.integers(1, columns + 1, rows)[:, None]] = -1
        units[(rng.random((rows, columns)) < 0.1) & np.isin(units, [0]) & (np.arange(columns) > 0)] = -1
        rewards = np.where(units >= 0, rng.normal(size=units.shape), 0.0)
        rewards[rng.random(rows) < 0.2] = np.nan
        bootstrap = np.where(rng.random(rows) < 0.5, rng.normal(size=rows), 0.0)
        yield rewards, rng.normal(size=units.shape), bootstrap, units


def unit_rows(rewards, values, bootstrap, units):
    """Of each valid row: its number, each unit's tokens, the units' rewards and values; the last value is the bootstrap."""
    for n in np.flatnonzero(~np.isnan(rewards).any(1)):
        places = [np.flatnonzero(units[n] == u) for u in np.unique(units[n][units[n] >= 0])]
        yield n, places, [rewards[n, p].sum() for p in places], [*(values[n, p[0]] for p in places), bootstrap[n]]


def reference(rewards, values, bootstrap, units, gamma, lam, whiten):
    """The sum of equation 16, written out."""
    rows = list(unit_rows(rewards, values, bootstrap, units))
    credit = []
    for _, _, r, v in rows:
        deltas = [r[u] + gamma * v[u + 1] - v[u] for u in range(len(r))]
        credit.append([sum((gamma * lam) ** k * d for k, d in enumerate(deltas[u:])) for u in range(len(r))])
    flat = np.concatenate([[], *credit])
    mean, size = (flat.mean(), max(flat.std(), 1e-8)) if whiten and len(flat) else (0.0, 1.0)
    advantages, returns = np.full(units.shape, np.nan), np.full(units.shape, np.nan)
    for (n, places, _, v), found in zip(rows, credit, strict=True):
        advantages[n] = 0
        for u, p in enumerate(places):
            advantages[n, p], returns[n, p[0]] = (found[u] - mean) / size, found[u] + v[u]
    return advantages, returns


@pytest.mark.parametrize(("gamma", "lam", "whiten"), [(1.0, 0.95, True), (0.9, 0.8, False), (0.99, 0.0, False), (1.0, 1.0, True)])
def test_gae_equals_its_definition(gamma, lam, whiten):
    for batch in batches(0):
        found = gae(*map(torch.tensor, batch), gamma=gamma, lam=lam, whiten=whiten)
        for have, want in zip(found, reference(*batch, gamma, lam, whiten), strict=True):
            assert have.dtype == torch.float32
            np.testing.assert_allclose(have.numpy(), want, rtol=1e-5, atol=1e-5)


def one(rewards, values, bootstrap=0.0, units=None, **settings):
    units = list(range(len(rewards))) if units is None else units
    advantages, returns = gae(
        torch.tensor([rewards]),
        torch.tensor([values]),
        torch.tensor([bootstrap]),
        torch.tensor([units]),
        whiten=False,
        **settings,
    )
    return advantages[0].tolist(), returns[0].tolist()


def test_an_episode_that_ended_is_worth_nothing_more_and_one_that_was_cut_off_would_have_gone_on():
    # rewards 1 and 2, values 0.5 and 1, gamma = lam = 1/2
    # ended: delta = (1 + 0.5 * 1 - 0.5, 2 + 0 - 1) = (1, 1); A = (1 + 0.25 * 1, 1)
    advantages, returns = one([1.0, 2.0], [0.5, 1.0], gamma=0.5, lam=0.5)
    assert advantages == [1.25, 1.0] and returns == [1.75, 2.0]
    # cut off before a state of value 4: delta = (1, 2 + 0.5 * 4 - 1) = (1, 3); A = (1 + 0.25 * 3, 3)
    advantages, returns = one([1.0, 2.0], [0.5, 1.0], 4.0, gamma=0.5, lam=0.5)
    assert advantages == [1.75, 3.0] and returns == [2.25, 4.0]


def test_lambda_1_is_monte_carlo_and_lambda_0_the_temporal_difference():
    rewards, values = [1.0, -2.0, 4.0], [0.5, 0.25, 3.0]
    returns = [1 - 0.5 * 2 + 0.25 * 4, -2 + 0.5 * 4, 4]
    assert one(rewards, values, gamma=0.5, lam=1.0) == ([r - v for r, v in zip(returns, values, strict=True)], returns)
    targets = [1 + 0.5 * 0.25, -2 + 0.5 * 3, 4]
    assert one(rewards, values, gamma=0.5, lam=0.0) == ([t - v for t, v in zip(targets, values, strict=True)], targets)


def test_a_unit_has_one_reward_one_value_and_one_target():
    """Two units of two tokens are two units of one: rewards add up, and the value of a later token is not asked."""
    advantages, returns = one([0.5, 0.5, 0.0, 2.0], [0.5, 99.0, 1.0, 99.0], units=[0, 0, 1, 1], gamma=0.5, lam=0.5)
    assert advantages == [1.25, 1.25, 1.0, 1.0]
    assert returns[0] == 1.75 and returns[2] == 2.0 and math.isnan(returns[1]) and math.isnan(returns[3])


def test_whitening_counts_units_and_not_tokens():
    rewards, units = torch.tensor([[3.0, 0.0, 0.0], [0.0, 0.0, 0.0]]), torch.tensor([[0, 0, 0], [0, -1, -1]])
    advantages, _ = gae(rewards, torch.zeros(2, 3), torch.zeros(2), units)
    assert advantages.tolist() == [[1.0, 1.0, 1.0], [-1.0, 0.0, 0.0]]
    assert gae(rewards * 0, torch.full((2, 3), 0.1), torch.zeros(2), units)[0].tolist() == [[0.0] * 3] * 2


def test_step_filter_equals_its_definition():
    kept = total = 0
    for rewards, values, bootstrap, units in batches(1):
        expected, targets = np.zeros(units.shape), np.full(units.shape, np.nan)
        expected[np.isnan(rewards).any(1)] = np.nan
        for n, places, r, v in unit_rows(rewards, values, bootstrap, units):
            for u, p in enumerate(places):
                to_go = sum(0.7**k * x for k, x in enumerate(r[u:]))
                targets[n, p[0]] = float(to_go > 0)
                expected[n, p] = float(np.clip(v[u + 1] - v[u] - 0.05 + r[u] + to_go, 0, 1) > 0)
        for have, want in zip(
            step_filter(*map(torch.tensor, (rewards, values, bootstrap, units)), gamma=0.7), (expected, targets), strict=True
        ):
            assert have.dtype == torch.float32
            np.testing.assert_array_equal(have.numpy(), want)
        kept, total = kept + np.nansum(expected), total + (units >= 0).sum()
    assert 0.2 < kept / total < 0.8


def test_value_loss_equals_its_definition():
    rng = np.random.default_rng(2)
    for huber in (math.inf, 0.3):
        for _ in range(200):
            n = int(rng.integers(1, 40))
            values, old, returns = rng.normal(size=n), rng.normal(size=n), rng.normal(size=n)
            returns[rng.random(n) < 0.2] = np.nan
            loss, clipped = value_loss(*map(torch.tensor, (values, old, returns)), clip=0.2, huber=huber)
            for i in range(n):
                near = old[i] + np.clip(values[i] - old[i], -0.2, 0.2)
                a, b = (
                    e * e / 2 if abs(e) <= huber else huber * (abs(e) - huber / 2)
                    for e in (values[i] - returns[i], near - returns[i])
                )
                assert loss[i].item() == pytest.approx(0 if np.isnan(returns[i]) else max(a, b), rel=1e-9, abs=1e-12)
                assert clipped[i].item() == float(b > a)


def test_the_gradient_of_the_value_loss():
    """Square: the error. Huber: its sign times delta. Beyond the clip on the way to the target: none. Without a target: none."""
    values = torch.tensor([1.5, 3.0, 1.0, 1.0], requires_grad=True)
    old, returns = torch.tensor([1.5, 3.0, 0.0, 1.0]), torch.tensor([1.0, 1.0, 9.0, torch.nan])
    value_loss(values, old, returns, clip=0.2, huber=1.0)[0].sum().backward()
    assert values.grad.tolist() == [0.5, 1.0, 0.0, 0.0]
    values.grad = None
    value_loss(values, old, returns, clip=math.inf)[0].sum().backward()
    assert values.grad.tolist() == [0.5, 2.0, -8.0, 0.0]
