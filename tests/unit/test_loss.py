"""Losses against slow references; averages that don't depend on how a batch is split."""

import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mmrl.algorithms.loss import LossInputs, average, clipped_surrogate, k3, negative_log_likelihood
from mmrl.learn import learning_rate
from mmrl.schema import RlStage

GOLDEN = [
    json.loads(line)
    for line in (Path(__file__).parents[1] / "golden" / "algorithms.jsonl").read_text().splitlines()
    if line.strip()
]


def inputs(logprobs, old, advantages, rollout=None, lengths=None):
    return LossInputs(
        logprobs_L=torch.as_tensor(logprobs),
        old_logprobs_L=torch.as_tensor(old),
        advantages_L=torch.as_tensor(advantages),
        rollout_L=rollout,
        lengths_N=lengths,
    )


def test_the_surrogate_equals_its_definition():
    rng = np.random.default_rng(1)
    for _ in range(200):
        n = int(rng.integers(1, 50))
        new, old, adv = rng.normal(-2, 1, n), rng.normal(-2, 1, n), rng.normal(0, 1, n)
        loss, clipped = clipped_surrogate(inputs(new, old, adv), 0.2, 0.28)
        for i in range(n):
            ratio = math.exp(new[i] - old[i])
            bounded = min(max(ratio, 0.8), 1.28)
            assert loss[i].item() == pytest.approx(-min(ratio * adv[i], bounded * adv[i]), rel=1e-9)
            assert clipped[i].item() == float((ratio > 1.28 and adv[i] > 0) or (ratio < 0.8 and adv[i] < 0))


@pytest.mark.parametrize(
    "row", [r for r in GOLDEN if "clip-higher" in r["what"]], ids=lambda r: f"{r['inputs']['ratio']}/{r['inputs']['advantage']}"
)
def test_published_clip_higher_values(row):
    i = row["inputs"]
    loss, _ = clipped_surrogate(inputs([math.log(i["ratio"])], [0.0], [float(i["advantage"])]), i["eps_low"], i["eps_high"])
    assert -loss.item() == pytest.approx(row["value"], abs=1e-6)


def test_the_gradient_on_policy_is_the_policy_gradient_and_a_clipped_one_is_zero():
    logprobs = torch.tensor([-1.0, -2.0, -0.5], requires_grad=True)
    clipped_surrogate(inputs(logprobs, logprobs.detach(), [1.0, -2.0, 0.5]), 0.2, 0.2)[0].sum().backward()
    assert logprobs.grad.tolist() == [-1.0, 2.0, -0.5]
    logprobs = torch.tensor([0.0], requires_grad=True)
    clipped_surrogate(inputs(logprobs, [-1.0], [1.0]), 0.2, 0.2)[0].sum().backward()
    assert logprobs.grad.tolist() == [0.0]


def test_likelihood_is_minus_the_logprob():
    loss, _ = negative_log_likelihood(inputs([-1.5, -0.25], [0.0, 0.0], [1.0, 1.0]))
    assert loss.tolist() == [1.5, 0.25]


def test_k3_is_zero_at_equality_never_negative_and_unbiased():
    logits, reference = torch.tensor([0.3, -1.0, 0.8]).log_softmax(0), torch.tensor([0.0, 0.5, -0.5]).log_softmax(0)
    assert k3(logits, logits).tolist() == [0.0, 0.0, 0.0]
    assert (k3(logits, reference) >= 0).all()
    exact = (logits.exp() * (logits - reference)).sum()
    assert (logits.exp() * k3(logits, reference)).sum().item() == pytest.approx(exact.item(), rel=1e-5)


@pytest.mark.parametrize(("normalise", "expected"), [("token", (1 + 2 + 3 + 10) / 4), ("sequence", ((1 + 2 + 3) / 3 + 10) / 2)])
def test_averages_do_not_depend_on_the_split(normalise, expected):
    batch = SimpleNamespace(num_tokens=4, num_rollouts=2, lengths_N=torch.tensor([3, 1]))
    values, rollout = torch.tensor([1.0, 2.0, 3.0, 10.0]), torch.tensor([0, 0, 0, 1])
    for cut in range(5):
        parts = [(values[:cut], rollout[:cut]), (values[cut:], rollout[cut:])]
        assert sum(average(v, SimpleNamespace(rollout_L=r), batch, normalise).item() for v, r in parts) == pytest.approx(expected)


def test_schedules_are_functions_of_the_step():
    stage = RlStage(kind="rl", steps=10, learning_rate=1.0, warmup_steps=2, schedule="linear")
    assert [learning_rate(stage, s) for s in (0, 1, 2, 6, 9)] == [0.5, 1.0, 1.0, 0.5, 0.125]
    cosine = stage.model_copy(update={"schedule": "cosine", "warmup_steps": 0})
    assert [round(learning_rate(cosine, s), 6) for s in (0, 5)] == [1.0, 0.5]
    assert learning_rate(stage.model_copy(update={"schedule": "constant"}), 9) == 1.0
