"""ROVER's loss against what its released code gave, and by hand."""

import json
from pathlib import Path

import pytest
import torch

from mmrl.algorithms.advantage import group_relative
from mmrl.algorithms.loss import LossInputs, uniform_valuation

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "rover.jsonl").read_text().splitlines()]


def inputs(logprobs, old, advantages, rollout):
    lengths = rollout.bincount()
    return LossInputs(logprobs_L=logprobs, old_logprobs_L=old, advantages_L=advantages, rollout_L=rollout, lengths_N=lengths)


def test_the_table_is_whole():
    assert len(ROWS) == 72 and all("tinnerhrhe/ROVER @b0fa587" in row["how"] for row in ROWS)
    assert sum(len(set(row["groups"])) > 1 for row in ROWS) > 30 and sum(min(row["lengths"]) > 1 for row in ROWS) > 5


@pytest.mark.parametrize("row", ROWS, ids=range(len(ROWS)))
def test_published_value(row):
    """A group of one is left as it is there, and has no baseline here: such rollouts are skipped."""
    groups = torch.tensor(row["groups"])
    alone = (groups[:, None] == groups).sum(1) == 1
    credit = group_relative(torch.tensor(row["rewards"]), groups, scale="none")
    credit = torch.where(alone, torch.tensor(row["rewards"]), credit)
    now, old = (torch.tensor(row[name], dtype=torch.float64).log_softmax(-1) for name in ("logits", "old_logits"))
    places = [(n, t) for n, length in enumerate(row["lengths"]) for t in range(length)]
    picked = [(now[n, t, row["ids"][n][t]], old[n, t, row["ids"][n][t]], (now[n, t] - old[n, t]).mean()) for n, t in places]
    logprobs, before, means = (torch.stack(column) for column in zip(*picked, strict=True))
    logprobs.requires_grad_()
    rollout = torch.tensor([n for n, _ in places])
    loss, cut = uniform_valuation(inputs(logprobs, before, credit[rollout].double(), rollout), means)
    loss.mean().backward()
    assert loss.mean().item() == pytest.approx(row["loss"], rel=1e-4, abs=1e-6) and not cut.any()
    assert logprobs.grad.tolist() == pytest.approx([row["gradient"][n][t] for n, t in places], rel=1e-3, abs=1e-6)


def test_nothing_follows_the_last_token_of_a_rollout():
    zero, rollout = torch.zeros(4), torch.tensor([0, 0, 1, 1])
    loss, _ = uniform_valuation(
        inputs(zero, zero, torch.tensor([1.0, 1.0, -1.0, -1.0]), rollout), torch.tensor([9.0, 2.0, 9.0, 4.0])
    )
    assert loss.tolist() == [9.0, 1.0, 9.0, 1.0]
    halved, _ = uniform_valuation(inputs(zero, zero, zero, rollout), torch.tensor([9.0, 2.0, 9.0, 4.0]), temperature=0.5)
    assert halved.tolist() == [1.0, 0.0, 4.0, 0.0]
