"""Rules of critics of turns, against slow references and what the published code gives."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrl.algorithms import off_policy, turns
from mmrl.algorithms.advantage import step_filter

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "turn-critics.jsonl").read_text().splitlines()]
ARCHER, DIGIRL, BASELINE = ([row for row in ROWS if row["system"] == name] for name in ("archer", "digirl", "archer-baseline"))


def t(x: Any, grad: bool = False) -> torch.Tensor:
    return torch.tensor(x, dtype=torch.float64, requires_grad=grad)


@pytest.mark.parametrize("row", ARCHER)
def test_archer_s_critics_learn_what_the_published_ones_learn(row: dict[str, Any]) -> None:
    answers, values, rewards = t(row["answers"], True), t(row["values"], True), t(row["rewards"])
    discounts = torch.where(torch.tensor(row["done"]), 0.0, row["gamma"])
    loss = turns.returns_loss(answers, rewards, discounts, t(row["next_values"]))
    loss = loss + turns.values_loss(values, t(row["target_answers"]))
    loss.backward()
    assert answers.grad is not None and values.grad is not None
    assert loss.item() == pytest.approx(row["loss"], abs=1e-4)
    assert np.allclose(torch.cat([answers.grad, values.grad]), row["gradient"], atol=1e-5)


@pytest.mark.parametrize("row", ARCHER)
def test_archer_s_advantages_and_targets_are_the_published_ones(row: dict[str, Any]) -> None:
    low, high = off_policy.lowest(t(row["values"])), off_policy.lowest(t(row["answers"]))
    found = turns.answer_advantage(torch.zeros(len(low)), high[:, None], low[:, None], torch.ones(len(low), 1).bool())
    assert np.allclose(found[:, 0], row["weights"], atol=1e-5)
    sources = [t([*row["answers"], *row["values"]])]
    targets = [t([*row["target_answers"], *row["next_values"]])]
    off_policy.follow(targets, sources, 0.1)
    assert np.allclose(targets[0], row["followed"], atol=1e-5)


@pytest.mark.parametrize("row", BASELINE)
def test_archer_s_baseline_is_the_published_one(row: dict[str, Any]) -> None:
    """What the policy's log-probabilities are weighted by, and how far each token's value is from what it learns."""
    advantages_NT, values_NT = t(row["advantages"])[:, None].expand(-1, len(row["values"][0])), t(row["values"])
    mask_NT = torch.arange(values_NT.shape[1]) < torch.tensor(row["lengths"])[:, None]
    weights_NT, targets_NT = turns.token_baseline(advantages_NT, values_NT, mask_NT)
    assert np.allclose(weights_NT, row["weights"], atol=1e-5)
    assert np.allclose((values_NT - targets_NT).nan_to_num(0.0), row["pull"], atol=1e-5)


def test_a_baseline_leaves_out_what_has_no_credit_and_what_is_not_trained() -> None:
    rng = np.random.default_rng(4)
    credit, values, lengths = rng.normal(size=(6, 5)), rng.normal(size=(6, 5)), [5, 3, 0, 1, 4, 2]
    credit[3] = np.nan
    mask_NT = torch.arange(5) < torch.tensor(lengths)[:, None]
    weights_NT, targets_NT = (x.tolist() for x in turns.token_baseline(t(credit), t(values), mask_NT))
    for n, length in enumerate(lengths):
        for k in range(5):
            weight, target = weights_NT[n][k], targets_NT[n][k]
            if n == 3:
                assert math.isnan(weight) and math.isnan(target)
            elif k >= length:
                assert weight == 0 and math.isnan(target)
            else:
                assert weight == pytest.approx(credit[n, k] - values[n, k], abs=1e-6)
                assert target == pytest.approx(credit[n, k], abs=1e-6)


@pytest.mark.parametrize("row", DIGIRL)
def test_digirl_s_critics_learn_what_the_published_ones_learn(row: dict[str, Any]) -> None:
    """Its softmax of two outputs is the sigmoid of their difference, and so are the gradients."""
    success = t(row["paid"]) > 0
    both, gradients = [], []
    for place in ("before", "after"):
        logits = (t(row[place])[..., 1] - t(row[place])[..., 0]).requires_grad_()
        turns.success_loss(logits, success).backward()
        assert logits.grad is not None
        both.append(turns.success_loss(logits, success).item())
        gradients.append(logits.grad)
    assert both[0] == pytest.approx(row["loss"], abs=1e-4), "the published code counts what comes after, too, and doesn't say it"
    assert np.allclose(torch.stack(gradients), t(row["gradient"])[..., 1], atol=1e-5)
    prompts = (t(row["prompts"])[:, 1] - t(row["prompts"])[:, 0]).requires_grad_()
    loss = turns.success_loss(prompts[None], t(row["rewards"]) > 0)
    loss.backward()
    assert prompts.grad is not None
    assert loss.item() == pytest.approx(row["prompt_loss"], abs=1e-4)
    assert np.allclose(prompts.grad, t(row["prompt_gradient"])[:, 1], atol=1e-5)


@pytest.mark.parametrize("row", DIGIRL)
def test_digirl_imitates_the_same_turns_of_the_same_episodes(row: dict[str, Any]) -> None:
    values, following = (t(row[place]).softmax(-1)[..., 1].amin(0) for place in ("before", "after"))
    paid = t(row["paid"])
    for n in range(len(paid)):  # this turn and one more, so that the first one's return is `paid`, which the last one is given
        rewards = torch.stack([torch.zeros(()), paid[n] / 0.5])[None]
        found, _ = step_filter(
            rewards, torch.stack([values[n], following[n]])[None], torch.zeros(1), torch.tensor([[0, 1]]), gamma=0.5
        )
        assert found[0, 0].item() == row["imitated"][n]
    chances = (t(row["prompts"])[:, 1] - t(row["prompts"])[:, 0]).sigmoid()
    assert turns.furthest_above(t(row["rewards"]), chances).nonzero()[:, 0].tolist() == row["chosen"]


def test_the_share_of_episodes_has_its_ties_and_sure_prompts_are_never_quite_sure() -> None:
    rewards, chances = t([1, 1, 0, 1, 0]), t([0.5, 0.5, 0.9, 0.9, 0.1])
    assert turns.furthest_above(rewards, chances, share=0.2).tolist() == [True, True, False, False, False]
    assert turns.furthest_above(rewards, chances, share=1.0).all()
    assert turns.furthest_above(t([1.0, 1.0]), t([1.0, 1.0 - 1e-6]), share=0.1).all(), "both are clamped"
    assert turns.furthest_above(t([0.0]), t([0.3])).tolist() == [True]


def test_an_answer_s_advantage_is_that_of_its_tokens_and_failed_scores_have_none() -> None:
    rng = np.random.default_rng(3)
    answers, values, mask = rng.normal(size=(4, 5)), rng.normal(size=(4, 5)), rng.random((4, 5)) < 0.6
    rewards = np.array([1.0, math.nan, 0.0, 2.0])
    found = turns.answer_advantage(t(rewards), t(answers), t(values), torch.tensor(mask))
    for n in range(4):
        for k in range(5):
            expected = math.nan if n == 1 else answers[n, k] - values[n, k] if mask[n, k] else 0.0
            assert found[n, k].item() == pytest.approx(expected, nan_ok=True)


def test_a_return_is_discounted_by_turn() -> None:
    assert off_policy.returns_to_go(t([0.0, 1.0, 0.5]), 0.5).tolist() == [0.625, 1.25, 0.5]
    assert off_policy.returns_to_go(t([]), 0.5).tolist() == []
