"""The bonus for answers that follow from their thoughts (GRPO-CARE), and the reference model that says so."""

import json
from pathlib import Path

import pytest
import torch

from mmrl.algorithms.shaping import consistency_bonus
from mmrl.api.episodes import Conversation
from mmrl.api.sampling import Group
from mmrl.api.types import Prompt, Score, Status, Turn, user_message
from mmrl.config.sections import ConsistencyConfig, PolicyConfig, RlStage
from mmrl.policies.openvla.tiny import tokenizer_of
from mmrl.policies.reference import Reference
from mmrl.policies.vlm.tiny.tokens import make_tokenizer
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.sampling.consistency import TokenTexts, answer_tokens, pay_consistency

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


@pytest.fixture(scope="module", params=[make_tokenizer, tokenizer_of], ids=["bytes", "pieces"])
def tokenizer(request):
    return request.param()


@pytest.mark.parametrize(
    ("said", "opening", "closing", "answer"),
    [
        ("so it is. Answer: 12", " Answer: ", "</answer>", "12"),
        ("so\n\nAnswer:\t12\nover", "\nAnswer:\t", "\n", "12"),
        ("想。答案：是的。完", "答案：", "。", "是的"),
        ("Größe: – 😀 –", "Größe: –", "–", "😀"),
        ("so <answer>12</answer>.", "<answer>", "</answer>", "12"),
        ("so 12 Answer:", " Answer: ", "</answer>", ""),
    ],
)
def test_an_answer_after_blanks_or_other_signs_is_found(tokenizer, said, opening, closing, answer):
    ids = tokenizer.encode(said, add_special_tokens=False)
    pieces = TokenTexts(tokenizer)(ids)
    assert len(pieces) == len(ids) and "".join(pieces).strip() == said.strip()
    found = "".join(pieces[k] for k in answer_tokens(pieces, opening, closing))
    assert found.removeprefix(opening[-1]).strip() == answer


def test_answers_after_a_blank_are_paid():
    policy = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=32,layers=1"))
    tokenizer, prompt = policy.reader.tokenizer, Prompt(messages=[user_message("?")])
    said = ["so. Answer: 1", "so. Answer: 12"]
    rollouts = []
    for text in said:
        ids = tuple(tokenizer.encode(text, add_special_tokens=False))
        turn = Turn(observed_ids=(1,), token_ids=ids, logprobs=(0.0,) * len(ids), text=text)
        rollouts.append(Conversation(prompt=prompt, group=0, turns=(turn,), status=Status.FINISHED))
    scores = [Score(1.0) for _ in said]
    group = Group(place=("t", 0), number=0, prompt=prompt, inputs=None, rollouts=rollouts, scores=scores)
    logprobs_NT = torch.zeros(2, max(r.length for r in rollouts))
    found = pay_consistency([group], logprobs_NT, policy, ConsistencyConfig(opening=" Answer: "))
    assert found["consistency/confidence"] == 1 and found["consistency/paid_share"] == 1


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
