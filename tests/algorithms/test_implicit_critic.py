"""PACS's credit and loss against what its released code gave, and by hand."""

import json
from pathlib import Path

import pytest
import torch

from mmrl.algorithms.implicit_critic import class_balanced, implicit_critic
from mmrl.algorithms.loss import LossInputs

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "pacs.jsonl").read_text().splitlines()]


def test_the_table_is_whole():
    assert len(ROWS) == 72 and all("ritzz-ai/PACS @4c987b4" in row["how"] for row in ROWS)
    assert sum(len(set(row["groups"])) > 1 for row in ROWS) > 30
    mixed = [{c for c, g in zip(row["correct"], row["groups"], strict=True) if g == 0} for row in ROWS]
    assert sum(len(m) == 2 for m in mixed) > 20 and sum(len(m) == 1 for m in mixed) > 10


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_published_value(row):
    """Here with the tokens of a rollout in one row, and its mean over rollouts as the engine takes it."""
    groups, lengths = torch.tensor(row["groups"]), torch.tensor(row["lengths"])
    places = [(n, t) for n, length in enumerate(row["lengths"]) for t in range(length)]
    rollout = torch.tensor([n for n, _ in places])
    now = torch.tensor([row["logprobs"][n][t] for n, t in places], dtype=torch.float64, requires_grad=True)
    old = torch.tensor([row["old"][n][t] for n, t in places], dtype=torch.float64)
    credit = class_balanced(torch.tensor(row["correct"]), groups)
    ratios = torch.zeros(len(groups), dtype=torch.float64).index_add(0, rollout, (now - old).detach()).float()
    inputs = LossInputs(logprobs_L=now, old_logprobs_L=old, advantages_L=credit[rollout], rollout_L=rollout, lengths_N=lengths)
    loss, cut = implicit_critic(inputs, ratios, groups, credit, beta=row["beta"])
    mean = loss.sum() / len(groups)
    mean.backward()
    assert mean.item() == pytest.approx(row["loss"], rel=1e-5, abs=1e-6) and not cut.any()
    assert now.grad.tolist() == pytest.approx([row["gradient"][n][t] for n, t in places], rel=1e-4, abs=1e-6)


def test_classes_of_a_group_weigh_the_same():
    nan = float("nan")
    found = class_balanced(torch.tensor([1, 0, 0, nan, 1.0, 0.9, 0.2]), torch.tensor([0, 0, 0, 0, 1, 1, 2]))
    assert found[[0, 1, 2, 4, 5, 6]].tolist() == [1.5, -0.75, -0.75, 1.0, 1.0, -1.0] and found[3].isnan()
    assert class_balanced(torch.tensor([0.9, 1.0]), torch.tensor([0, 0]), threshold=0.95).tolist() == [-1.0, 1.0]


def test_a_rollout_that_is_left_out_counts_in_no_baseline():
    groups, zero = torch.tensor([0, 0, 0]), torch.zeros(2, requires_grad=True)
    given = {"logprobs_L": zero, "old_logprobs_L": zero.detach(), "advantages_L": zero.detach()}
    inputs = LossInputs(**given, rollout_L=torch.tensor([0, 1]), lengths_N=torch.tensor([1, 1, 0]))
    losses = [
        implicit_critic(inputs, torch.tensor([0.3, -0.2, other]), groups, torch.tensor([1.0, -1.0, float("nan")]))[0].tolist()
        for other in (0.0, 5.0)
    ]
    assert losses[0] == losses[1]
    assert losses[0][0] == pytest.approx(torch.nn.functional.softplus(torch.tensor(-0.5)).item())
