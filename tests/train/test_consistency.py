"""The bonus for answers that follow from their thoughts (GRPO-CARE), and the reference model that says so."""

import json
from pathlib import Path

import pytest
import torch

from mmrl.algorithms.shaping import consistency_bonus
from mmrl.config.sections import PolicyConfig, RlStage
from mmrl.policies.reference import Reference
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.sampling.consistency import answer_tokens

GOLDEN = Path(__file__).parents[1] / "golden" / "consistency.jsonl"


def test_answers_and_bonuses_are_those_of_the_released_trainer():
    rows = [json.loads(line) for line in GOLDEN.read_text(encoding="utf-8").splitlines()]
    paid = 0
    for row in rows:
        found = [answer_tokens(pieces) for pieces in row["pieces"]]
        assert [list(places) for places in found] == row["answers"]
        means = [torch.tensor(x)[list(at)].mean() for x, at in zip(row["logprobs"], found, strict=True)]
        sure_N = torch.tensor([m.exp() if at else 0.0 for m, at in zip(means, found, strict=True)])
        accuracy_N = torch.tensor(row["accuracy"], dtype=torch.float64)
        bonus_N = consistency_bonus(accuracy_N, sure_N, **row["settings"])
        assert bonus_N.tolist() == pytest.approx(row["bonus"], abs=1e-6)
        paid += int(bonus_N.count_nonzero())
    assert len(rows) == 30 and paid > 20


def test_equal_answers_are_all_paid_and_failed_scores_stay_failed():
    third = torch.tensor([0.1, 0.1, 0.1, 0.7])
    bonus_N = consistency_bonus(torch.tensor([1.0, 1.0, 1.0, torch.nan]), third, bonus=0.5)
    assert bonus_N[:3].tolist() == [0.5] * 3 and bonus_N[3].isnan()
    assert consistency_bonus(torch.zeros(3), torch.ones(3)).tolist() == [0.0] * 3
    assert consistency_bonus(torch.ones(3), torch.tensor([0.0, 0.2, 0.4])).tolist() == [0.0, 0.0, 0.5], "no answer, no part"


def test_other_tags_and_answers_without_an_end():
    assert answer_tokens(["so", "\\boxed{", "1", "2", "}", "<eos>"], "\\boxed{", "}") == range(2, 4)
    assert answer_tokens(["<answer>", "no", "w"]) == range(1, 3)
    assert list(answer_tokens(["<answer>"])) == list(answer_tokens([])) == []


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_the_reference_follows_the_policy_in_float32(dtype):
    policy = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1", dtype=dtype))
    reference = Reference(policy, adapters=False, decay=0.75)
    before = {name: w.detach().float().clone() for name, w in reference._weights(reference.copy)}
    with torch.no_grad():
        for _, weight in policy.parameters():
            weight.add_(0.5)
    now = {name: w.detach().float() for name, w in policy.parameters()}
    for _ in range(2):
        reference.follow()
    for name, mean in reference.state().items():
        torch.testing.assert_close(mean, now[name] + 0.75**2 * (before[name] - now[name]))
    other = Reference(policy, adapters=False, decay=0.75)
    other.load_state({name: x.clone() for name, x in reference.state().items()})
    for one in (other, reference):
        one.follow()
    for (_, mine), (_, theirs) in zip(other._weights(other.copy), reference._weights(reference.copy), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_a_stage_says_what_consistency_needs():
    assert RlStage(kind="rl", steps=1, consistency={}).refers and not RlStage(kind="rl", steps=1).refers
    for keys, why in (
        ({"consistency": {}, "reference": "none"}, "asks a reference model"),
        ({"reference_decay": 0.9, "kl_coef": 0.1}, "no effect without reference_every"),
        ({"consistency": {"verifier": "x/y"}, "labels": "majority"}, "is never called"),
    ):
        with pytest.raises(ValueError, match=why):
            RlStage(kind="rl", steps=1, **keys)
