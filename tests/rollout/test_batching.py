"""How much is computed at once: rows of a micro-batch within the budget, completions within the batch size."""

from dataclasses import replace

import pytest
import torch

import vlm_cases as cases
from mmrl.rollout.generate import cache
from mmrl.rollout.generate.draw import sample_tokens
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.update.pack_conversations import pack


def rows(vlm, lengths):
    """One rollout of a prompt for each length of a completion; and the prompt's length."""
    (rollout,) = cases.rollouts(vlm, [cases.prompt(1)], group=1)
    made = [
        replace(rollout, group=g, turns=(replace(rollout.turns[0], token_ids=(20,) * n, logprobs=(-1.0,) * n),))
        for g, n in enumerate(lengths)
    ]
    return made, len(rollout.inputs.ids)


@pytest.mark.parametrize(
    ("lengths", "times", "more", "expected"),
    [
        ([8, 2, 1, 4, 1, 2], 3, 6, [[1, 1, 2], [2, 4], [8]]),  # 3 (P + 2) is just within 3 P + 6
        ([8, 2, 1, 4, 1, 2], 3, 5, [[1, 1], [2, 2], [4, 8]]),  # and just above 3 P + 5
        ([1, 8, 1], 3, 12, [[1, 1], [8]]),  # 3 (P + 8) with padding, though only 3 P + 10 tokens
        ([1, 8, 1], 0, 1, [[1], [1], [8]]),  # a row that is too long goes alone
    ],
)
def test_a_micro_batch_holds_as_many_padded_tokens_as_the_budget_allows(lengths, times, more, expected):
    vlm = cases.policy("qwen2_5_vl")
    rollouts, prompt = rows(vlm, lengths)
    batch = pack(rollouts, cases.credit(*[1.0] * len(rollouts)), vlm, shared_prefix=True, budget=times * prompt + more)
    found = [[int((row >= 0).sum()) - prompt for row in micro.segment_BS] for micro in batch.micro]
    assert found == expected
    assert batch.num_tokens == sum(lengths) and sum(len(m.target_L) for m in batch.micro) == sum(lengths)


@pytest.mark.parametrize(
    ("batch_size", "group_size", "prompts"), [(8, 4, [2, 2, 1]), (11, 4, [2, 2, 1]), (3, 4, [1] * 5), (5, 1, [5]), (99, 4, [5])]
)
def test_as_many_prompts_are_decoded_at_once_as_the_batch_size_allows(monkeypatch, batch_size, group_size, prompts):
    vlm = cases.policy("qwen2_5_vl")
    step, calls = vlm.family.step, []
    monkeypatch.setattr(vlm.family, "step", lambda ids, *rest: calls.append(ids.shape) or step(ids, *rest))
    inputs = [vlm.encode(cases.prompt(i % 2 + 1)) for i in range(5)]
    groups = LocalGenerator(vlm, batch_size).generate(inputs, group_size, SamplingParams(max_tokens=2, temperature=1.0))
    assert [n for n, tokens in calls if tokens > 1] == prompts and [len(g) for g in groups] == [group_size] * 5
    assert max(n for n, tokens in calls if tokens == 1) <= max(batch_size, group_size)


@pytest.mark.parametrize("family", cases.FAMILIES)
def test_greedy_tokens_come_with_their_logprobs_at_temperature_1(family):
    vlm = cases.policy(family)
    prompts = [cases.prompt(1), cases.prompt(2)]
    inputs = [vlm.encode(p) for p in prompts]
    groups = LocalGenerator(vlm).generate(inputs, 1, SamplingParams(max_tokens=4, temperature=0.0))
    for rollout in cases.as_rollouts(prompts, inputs, groups):
        plain = cases.naive_logprobs(vlm, rollout, 1.0)
        assert (plain - torch.tensor(rollout.turns[0].logprobs)).abs().max() < 1e-5


def test_room_that_runs_out_is_made_anew_and_loses_nothing(monkeypatch):
    """With room for two tokens at first it grows several times, also after rows that ended were dropped."""
    monkeypatch.setattr(cache, "ROOM", 2)
    vlm = cases.policy("qwen2_5_vl")
    vlm.bias_V[vlm.end_id] += 3.0
    try:
        prompts = [cases.prompt(1), cases.prompt(3)]
        inputs = [vlm.encode(p) for p in prompts]
        groups = LocalGenerator(vlm).generate(inputs, 8, SamplingParams(max_tokens=20, temperature=1.0, seed=1))
        assert max(len(s.token_ids) for g in groups for s in g) == 20 and len({len(s.token_ids) for g in groups for s in g}) > 3
        for rollout in cases.as_rollouts(prompts, inputs, groups):
            batch = pack([rollout], cases.credit(1.0), vlm, shared_prefix=False, budget=1)
            logprobs, _ = vlm.logprobs(batch.micro[0], 1.0)
            assert (logprobs - torch.tensor(rollout.turns[0].logprobs)).abs().max() < 1e-5
    finally:
        vlm.bias_V[vlm.end_id] -= 3.0


def test_what_is_drawn_for_a_prompt_depends_on_its_number_alone():
    vlm = cases.policy("qwen2_5_vl")
    inputs = [vlm.encode(cases.prompt(i)) for i in range(1, 6)]
    sampling = SamplingParams(max_tokens=12, temperature=1.0, seed=4)
    ids = lambda groups: [[s.token_ids for s in g] for g in groups]  # noqa: E731
    together = ids(LocalGenerator(vlm).generate(inputs, 3, sampling))
    alone = LocalGenerator(vlm, batch_size=3)
    assert ids(alone.generate(inputs, 3, sampling)) == together
    shares = {r: ids(LocalGenerator(vlm).generate(inputs[r::2], 3, sampling, range(5)[r::2])) for r in (0, 1)}
    assert [shares[i % 2][i // 2] for i in range(5)] == together
    assert ids(LocalGenerator(vlm).generate(inputs[:1], 3, sampling, [7])) != together[:1]


def test_the_chosen_id_is_where_the_summed_probabilities_pass_the_draw():
    probabilities = torch.tensor([[0.0, 0.5, 0.0, 0.25, 0.25, 0.0]]).expand(7, -1)
    drawn = torch.tensor([0.0, 0.49, 0.5, 0.74, 0.75, 0.999, 1 - 2**-53], dtype=torch.float64)
    assert sample_tokens(probabilities, drawn).tolist() == [1, 1, 3, 3, 4, 4, 4]
    assert sample_tokens(probabilities * 0.3, drawn).tolist() == [1, 1, 3, 3, 4, 4, 4]  # what is left of them by top_p
