"""The figures of a step, worked out by hand."""

import math

import pytest
import torch

from mmrl.metrics import rl_metrics, zero_spread_share
from mmrl.types import Prompt, Rollout, Score, Status, Turn, user


def rollout(group, tokens=1, task="a/one", status=Status.FINISHED):
    turn = Turn(observed_ids=(), token_ids=(7,) * tokens, logprobs=(0.0,) * tokens, text="")
    return Rollout(prompt=Prompt(messages=[user("x")], task=task), group=group, turns=(turn,), status=status)


def test_the_figures_of_a_step():
    cut = Status.TRUNCATED_LENGTH
    rollouts = [
        rollout(0, 1),
        rollout(0, 2),
        rollout(1, 3),
        rollout(1, 4),
        rollout(2, 5, "b/two", status=cut),
        rollout(2, 9, "b/two", status=cut),
    ]
    scores = [
        Score(1.0, {"v": 1.0, "w": 0.5}),
        Score(0.0, {"v": 0.0, "w": 0.0}),
        Score(None, {"w": 1.0}, "v failed: no"),
        Score(0.5, {"v": 0.5, "w": 0.5}),
        Score(0.5, {"u": 0.25}),
        Score(1.0, {"u": 0.75}),
    ]
    advantages = torch.tensor([1.0, -1.0, torch.nan, 0.0, 0.0, 0.0])
    assert rl_metrics(rollouts, scores, advantages) == pytest.approx(
        {
            "reward/mean": 0.6,  # of the five that were scored
            "reward/std": math.sqrt((0.16 + 0.36 + 0.01 + 0.01 + 0.16) / 5),
            "reward/u": 0.5,
            "reward/v": 0.5,
            "reward/w": 0.5,
            "task/a/one/reward": 0.5,
            "task/b/two/reward": 0.75,
            "length/mean": 4.0,
            "length/max": 9.0,
            "length/truncated_share": 1 / 3,
            "judge/failed_share": 1 / 6,
            "zero_spread_share": 2 / 3,
        }
    )


def test_a_step_in_which_every_score_failed_has_gaps_and_no_zeros():
    found = rl_metrics([rollout(0), rollout(0)], [Score(None), Score(None)], torch.full((2,), torch.nan))
    assert not [k for k in found if "reward" in k]
    assert found["judge/failed_share"] == 1.0 and found["zero_spread_share"] == 1.0 and found["length/mean"] == 1.0


def test_a_group_taught_something_when_any_of_its_completions_did():
    rollouts = [rollout(g) for g in (5, 5, 5, 2, 2, 9)]
    share = lambda *values: zero_spread_share(rollouts, torch.tensor(values))  # noqa: E731
    assert share(0.0, 0.0, -0.5, 0.0, 0.0, 0.0) == pytest.approx(2 / 3)
    assert share(0.0, 1.0, -1.0, torch.nan, 0.5, 0.0) == pytest.approx(1 / 3)
    assert share(torch.nan, 0.0, 0.0, torch.nan, torch.nan, 0.0) == 1.0
    assert share(0.0, 1.0, 0.0, 1.0, 0.0, 1.0) == 0.0
