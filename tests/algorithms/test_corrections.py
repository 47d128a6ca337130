"""Weights for a sampler with other probabilities: against those of verl and ms-swift, against slow loops, and of extremes."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmrl.algorithms.loss import LossInputs
from mmrl.config.sections import RlStage
from mmrl.train.update import loss_weights
from mmrl.train.update.loss_weights import apart, mean_weight, off_policy_weights

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "corrections.jsonl").read_text().splitlines()]
ROWS = [row for row in ROWS if "weights" in row]


def tokens(old, sampler, mask, off_policy=None):
    """(what the learner knows of these tables' tokens, in float32; their micro-batch; their batch)."""
    mask = torch.as_tensor(mask).bool()
    old_L, sampler_L = (torch.as_tensor(x, dtype=torch.float32)[mask] for x in (old, sampler))
    off_L = torch.zeros_like(old_L, dtype=torch.bool) if off_policy is None else torch.as_tensor(off_policy)[mask]
    rollout_L, lengths_N = mask.nonzero()[:, 0], mask.sum(1)
    known = {"rollout_L": rollout_L, "advantages_L": torch.ones_like(old_L)}
    inputs = LossInputs(logprobs_L=old_L, old_logprobs_L=old_L, lengths_N=lengths_N, **known)
    micro = SimpleNamespace(sampler_logprobs_L=sampler_L, off_policy_L=off_L, **known)
    return inputs, micro, SimpleNamespace(micro=[micro], lengths_N=lengths_N)


def weights(keys, inputs, micro, mean=1.0):
    stage = RlStage(kind="rl", steps=1, **keys)
    own_L = ~micro.sampler_logprobs_L.isnan() & ~micro.off_policy_L
    found, sums = off_policy_weights(stage, inputs, inputs.old_logprobs_L, micro.sampler_logprobs_L, own_L, mean)
    return found, sums


def test_the_table_is_whole():
    names = {row["name"].rpartition("-")[0] for row in ROWS}
    assert len(names) == 30 and len(ROWS) == 60
    cut = [row for row in ROWS if any(w == 0 and m for ws, ms in zip(row["weights"], row["mask"], strict=True)
                                      for w, m in zip(ws, ms, strict=True))]  # fmt: skip
    assert {row["keys"].get("gap_level") for row in cut} == {None, "token", "sum", "mean", "max"}


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["name"])
def test_weights_are_theirs(row):
    inputs, micro, batch = tokens(row["old"], row["sampler"], row["mask"])
    stage = RlStage(kind="rl", steps=1, **row["keys"])
    mean = mean_weight(stage, [batch], [[inputs.old_logprobs_L]]) if stage.importance_sampling_normalise else 1.0
    found, _ = weights(row["keys"], inputs, micro, mean)
    theirs = torch.tensor(row["weights"])[torch.tensor(row["mask"]).bool()]
    np.testing.assert_allclose(found, theirs, rtol=2e-4, atol=1e-6)


# -- slow loops --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize("kind", ["truncate", "mask"])
def test_normalised_weights_one_at_a_time(kind, level):
    """Two batches of a step, in which some tokens were sampled by nobody, or from another prompt: these keep a weight of 1."""
    noise = torch.Generator().manual_seed(4)
    keys = {"importance_sampling": kind, "importance_sampling_level": level, "importance_sampling_cap": 1.4}
    parts, ratios, units = [], [], []
    for _ in range(2):
        old = -2 - torch.rand(5, 6, generator=noise)
        mask = torch.arange(6) < torch.randint(1, 7, (5, 1), generator=noise)
        sampler = old - 0.4 * torch.randn(5, 6, generator=noise)
        sampler[torch.rand(5, 6, generator=noise) < 0.2] = torch.nan
        off = (torch.rand(5, 1, generator=noise) < 0.3).expand(5, 6)
        parts.append(tokens(old, sampler, mask, off))
        for n in range(5):
            own = [t for t in range(6) if mask[n, t] and not sampler[n, t].isnan() and not off[n, t]]
            moved = [(old[n, t] - sampler[n, t]).item() for t in own]
            whole = sum(moved) / (len(moved) if level == "geometric" and moved else 1)
            for one in moved if level == "token" else [whole] * bool(moved):
                ratio = math.exp(one)
                units.append(0.0 if kind == "mask" and ratio > 1.4 else min(ratio, 1.4))
            ratios += [
                (math.exp(m if level == "token" else whole), len(parts) - 1, n, t) for m, t in zip(moved, own, strict=True)
            ]
    stage = RlStage(kind="rl", steps=1, importance_sampling_normalise=True, **keys)
    mean = mean_weight(stage, [batch for *_, batch in parts], [[inputs.old_logprobs_L] for inputs, *_ in parts])
    assert mean == pytest.approx(sum(units) / len(units), rel=1e-5) and abs(mean - 1) > 0.01
    for number, (inputs, micro, _) in enumerate(parts):
        expected = torch.ones(len(inputs.rollout_L))
        places = {(n, t): i for i, (n, t) in enumerate(of_tokens(inputs))}
        for ratio, part, n, t in ratios:
            if part == number:
                expected[places[n, t]] = (0.0 if kind == "mask" and ratio > 1.4 else min(ratio, 1.4)) / mean
        np.testing.assert_allclose(weights(keys, inputs, micro, mean)[0], expected, rtol=1e-5)


def of_tokens(inputs):
    """(rollout, place) of each token; rows have no holes."""
    seen = {}
    for n in inputs.rollout_L.tolist():
        seen[n] = seen.get(n, -1) + 1
        yield n, seen[n]


def test_without_a_weight_there_is_nothing_to_divide_by():
    inputs, micro, batch = tokens([[-1.0, -1.0]], [[-9.0, -9.0]], [[1, 1]])
    keys = {"importance_sampling": "mask", "importance_sampling_normalise": True}
    assert mean_weight(RlStage(kind="rl", steps=1, **keys), [batch], [[inputs.old_logprobs_L]]) == 1.0
    nobody, micro, batch = tokens([[-1.0]], [[math.nan]], [[1]])
    assert mean_weight(RlStage(kind="rl", steps=1, **keys), [batch], [[nobody.old_logprobs_L]]) == 1.0
    assert weights(keys, nobody, micro)[0].tolist() == [1.0]


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
@pytest.mark.parametrize("level", ["mean", "sum", "max", "token"])
def test_gaps_far_apart_are_finite_and_left_out(level, estimator):
    """A hundred nats and more, also of a sampler that gave a token no chance. The first completion has no gap, the last was
    sampled from another prompt, and what nobody sampled counts in no mean."""
    old = [[-1.0, -1.0], [-1.0, -200.0], [-300.0, -1.0], [-1.0, -1.0], [-1.0, -9.0]]
    sampler = [[-1.0, math.nan], [-1.0, -1.0], [-1.0, -1.0], [-1.0, -math.inf], [-1.0, -1.0]]
    off = torch.tensor([[False] * 2] * 4 + [[True] * 2])
    inputs, micro, _ = tokens(old, sampler, [[1, 1]] * 5, off)
    own = ~micro.sampler_logprobs_L.isnan() & ~micro.off_policy_L
    found = apart(inputs, inputs.old_logprobs_L, micro.sampler_logprobs_L, own, 3.0, estimator, level)
    both = [False, True], [True, False], [False, True]
    whole = [[True, True]] * 3
    assert found.view(5, 2).tolist() == [[False] * 2, *(both if level == "token" else whole), [False] * 2]


def test_log_ratios_of_k1_cancel_out_and_their_squares_do_not():
    inputs, micro, _ = tokens([[-2.0, -2.0]], [[-1.0, -3.0]], [[1, 1]])
    known = (inputs, inputs.old_logprobs_L, micro.sampler_logprobs_L, torch.tensor([True, True]))
    for level, (k1, k2) in {"mean": (0, 0.5), "sum": (0, 1.0), "max": (1.0, 0.5), "token": (1.0, 0.5)}.items():
        for estimator, gap in (("k1", k1), ("k2", k2)):
            for limit, cut in ((gap + 0.01, False), (max(gap - 0.01, 1e-6), gap > 0)):
                assert apart(*known, limit, estimator, level).tolist() == [cut] * 2, (level, estimator, limit)


def test_ranks_add_weights_up_on_the_device_of_the_policy(monkeypatch):
    """NCCL takes no tensors of the host."""
    devices = []
    monkeypatch.setattr(loss_weights, "all_reduce_sum", lambda sums: devices.append(sums.device.type) or torch.zeros(2))
    mean_weight(RlStage(kind="rl", steps=1, importance_sampling="truncate"), [], [], "meta")
    assert devices == ["meta"]
