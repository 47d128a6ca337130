"""Group-relative advantages against a slow reference and published values."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.algorithms.advantage import group_relative, spread

GOLDEN = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "golden" / "algorithms.jsonl").read_text().splitlines()
    if line.strip()
]


def reference(rewards, groups, scale):
    """The definition, one rollout at a time."""
    out = np.full(len(rewards), np.nan)
    ok = [r for r in rewards if not np.isnan(r)]
    for i, (reward, group) in enumerate(zip(rewards, groups, strict=True)):
        if np.isnan(reward):
            continue
        mates = np.array([r for r, g in zip(rewards, groups, strict=True) if g == group and not np.isnan(r)])
        out[i] = 0.0 if len(mates) < 2 or mates.max() == mates.min() else reward - mates.mean()
        if scale == "group" and len(mates) > 1:
            out[i] /= mates.std(ddof=1) + 1e-4
        if scale == "batch" and len(ok) > 1:
            out[i] /= np.std(ok, ddof=1) + 1e-4
    return out


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equals_the_definition_on_ragged_groups_with_failed_scores(scale):
    rng = np.random.default_rng(0)
    for _ in range(200):
        n = int(rng.integers(1, 40))
        groups = rng.integers(0, 6, n) * 7 - 3
        rewards = np.where(rng.random(n) < 0.15, np.nan, rng.choice([0.0, 0.1, 0.25, 1.0, rng.normal()], n))
        found = group_relative(torch.tensor(rewards), torch.tensor(groups), scale=scale)
        np.testing.assert_allclose(found.numpy(), reference(rewards, groups, scale), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "row", [r for r in GOLDEN if r["system"].startswith("GRPO(VLM-R1")], ids=lambda r: str(r["inputs"]["rewards"])
)
def test_published_grpo_values(row):
    rewards = torch.tensor(row["inputs"]["rewards"], dtype=torch.float64)
    assert group_relative(rewards, torch.zeros(len(rewards), dtype=torch.long))[0].item() == pytest.approx(row["value"], abs=1e-6)


@pytest.mark.parametrize(
    "row", [r for r in GOLDEN if r["system"].startswith("GUI-G1 / Dr.GRPO")], ids=lambda r: str(r["inputs"]["rewards"])
)
def test_published_unscaled_values(row):
    rewards = torch.tensor(row["inputs"]["rewards"], dtype=torch.float64)
    assert group_relative(rewards, torch.zeros(len(rewards), dtype=torch.long), scale="none")[0].item() == pytest.approx(
        row["value"], abs=1e-6
    )


def test_a_failed_score_leaves_the_statistics_of_its_group_and_only_those():
    advantages = group_relative(torch.tensor([1.0, 0.0, torch.nan, 1.0, 0.0]), torch.tensor([0, 0, 0, 1, 1]), scale="none")
    assert advantages.tolist()[:2] == [0.5, -0.5] and advantages[2].isnan() and advantages.tolist()[3:] == [0.5, -0.5]


def test_equal_rewards_that_floats_cannot_average_have_no_spread():
    assert group_relative(torch.tensor([0.1] * 7), torch.zeros(7, dtype=torch.long)).tolist() == [0.0] * 7
    assert not spread(torch.tensor([0.1] * 7 + [torch.nan]), torch.zeros(8, dtype=torch.long)).any()


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
