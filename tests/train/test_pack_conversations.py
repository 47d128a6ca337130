"""Packing is exact: shared prompts, padding and splits change neither logprobs nor gradients."""

from dataclasses import fields, replace

import pytest
import torch

import vlm_cases as cases
from mmrl.policies.vlm.packed_rows import PackedRows
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.train.update.pack_conversations import pack

CREDIT = cases.credit(1.0, -0.5, 0.25, 2.0, -1.0, 0.75, 0.5, -2.0)


def relative(a, b):
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.parametrize("images", [0, 1, 2])
@pytest.mark.parametrize("family", cases.FAMILIES)
def test_a_shared_prompt_gives_the_logprobs_and_gradients_of_one_sequence_per_completion(family, images):
    vlm = cases.policy(family)
    rollouts = cases.rollouts(vlm, [cases.prompt(1, images), cases.prompt(2, images)])
    shared = cases.logprobs_and_gradient(vlm, pack(rollouts, CREDIT, vlm, shared_prefix=True, budget=10_000))
    alone = cases.logprobs_and_gradient(vlm, pack(rollouts, CREDIT, vlm, shared_prefix=False, budget=1))
    naive = torch.cat([cases.naive_logprobs(vlm, r, 0.8) for r in rollouts]).detach()
    assert (shared[0] - alone[0]).abs().max() < 1e-5 and (shared[0] - naive).abs().max() < 1e-5
    assert relative(shared[1], alone[1]) < 1e-5


@pytest.mark.parametrize("normalise", ["token", "sequence"])
@pytest.mark.parametrize(("budget", "micros"), [(1, 8), (45, 6), (60, 5), (100, 2), (10_000, 1)])
def test_every_micro_batch_split_gives_the_same(budget, micros, normalise):
    vlm = cases.policy("qwen2_5_vl")
    rollouts = cases.rollouts(vlm, [cases.prompt(1), cases.prompt(3, 2)])
    whole = cases.logprobs_and_gradient(vlm, pack(rollouts, CREDIT, vlm, shared_prefix=True, budget=10_000), normalise=normalise)
    batch = pack(rollouts, CREDIT, vlm, shared_prefix=True, budget=budget)
    assert len(batch.micro) == micros
    split = cases.logprobs_and_gradient(vlm, batch, normalise=normalise)
    assert (split[0] - whole[0]).abs().max() < 1e-5 and relative(split[1], whole[1]) < 1e-5


def test_eight_sequences_as_1x8_2x4_and_8x1():
    vlm = cases.policy("qwen2_5_vl")
    rollouts = cases.rollouts(vlm, [cases.prompt(1)] * 8, group=1, longest=6)
    longest = max(len(r.inputs.ids) + len(r.turns[0].token_ids) for r in rollouts)
    gradients = []
    for rows in (1, 2, 4, 8):
        batch = pack(rollouts, CREDIT, vlm, shared_prefix=False, budget=rows * longest)
        gradients.append(cases.logprobs_and_gradient(vlm, batch)[1])
    assert all(relative(g, gradients[0]) < 1e-5 for g in gradients)


def test_the_mask_lets_a_completion_see_the_prompt_and_itself():
    from mmrl.policies.vlm.vlm import prefix_mask

    segment = torch.tensor([[0, 0, 1, 1, 2, -1]])
    expected = [
        [1, 0, 0, 0, 0, 0],
        [1, 1, 0, 0, 0, 0],
        [1, 1, 1, 0, 0, 0],
        [1, 1, 1, 1, 0, 0],
        [1, 1, 0, 0, 1, 0],
        [0, 0, 0, 0, 0, 1],
    ]
    for dtype in (torch.float32, torch.bfloat16):
        mask = prefix_mask(segment, dtype)
        assert (mask[0, 0] == 0).int().tolist() == expected
        assert mask.dtype == dtype and set(mask.unique().tolist()) == {0.0, torch.finfo(dtype).min}
        assert mask.shape == (1, 1, 6, 6) and mask.stride()[-2:] == (16, 1)


def test_failed_rollouts_leave_the_batch_and_idle_ones_are_only_counted():
    vlm = cases.policy("qwen2_5_vl")
    rollouts = cases.rollouts(vlm, [cases.prompt(1), cases.prompt(2)])
    credit = cases.credit(torch.nan, 1.0, -1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    lengths = [len(r.turns[0].token_ids) for r in rollouts]
    batch = pack(rollouts, credit, vlm, shared_prefix=True, budget=10_000)
    assert batch.num_rollouts == 7 and batch.num_tokens == sum(lengths[1:]) and batch.lengths_N.tolist() == [0, *lengths[1:]]
    assert sorted(set(batch.micro[0].rollout_L.tolist())) == [1, 2]
    kept = pack(rollouts, credit, vlm, shared_prefix=True, budget=10_000, keep_zero=True)
    assert sorted({n for m in kept.micro for n in m.rollout_L.tolist()}) == list(range(1, 8))
    a, b = cases.logprobs_and_gradient(vlm, batch)[1], cases.logprobs_and_gradient(vlm, kept)[1]
    assert relative(a, b) < 1e-5


def test_nothing_to_train_is_an_empty_batch():
    vlm = cases.policy("qwen2_5_vl")
    assert (
        pack(cases.rollouts(vlm, [cases.prompt(1)]), cases.credit(0.0, 0.0, 0.0, 0.0), vlm, shared_prefix=True, budget=99).micro
        == ()
    )


def test_a_vision_id_in_a_completion_is_refused():
    vlm = cases.policy("qwen2_5_vl")
    rollout = cases.rollouts(vlm, [cases.prompt(1)], group=1)[0]
    image = vlm.model.config.image_token_id
    bad = replace(rollout, turns=(replace(rollout.turns[0], token_ids=(5, image), logprobs=(0.0, 0.0)),))
    with pytest.raises(ValueError, match="vision id"):
        pack([bad], cases.credit(1.0), vlm, shared_prefix=True, budget=99)


def test_other_prompt_ids_than_the_learners_are_refused():
    vlm = cases.policy("qwen2_5_vl")
    rollout = cases.rollouts(vlm, [cases.prompt(1)], group=1)[0]
    bad = replace(rollout, turns=(replace(rollout.turns[0], observed_ids=rollout.turns[0].observed_ids[1:]),))
    with pytest.raises(ValueError, match="other prompt ids"):
        pack([bad], cases.credit(1.0), vlm, shared_prefix=True, budget=99)


def test_a_mask_that_lets_completions_see_each_other_would_be_caught(monkeypatch):
    """The planted fault of the parity test above."""
    vlm = cases.policy("qwen2_5_vl")
    rollouts = cases.rollouts(vlm, [cases.prompt(1)])
    right = cases.logprobs_and_gradient(
        vlm, pack(rollouts, cases.credit(1.0, -0.5, 0.25, 2.0), vlm, shared_prefix=True, budget=10_000)
    )[0]
    monkeypatch.setattr(PackedRows, "allowed", lambda self, b, q, k: q >= k)
    wrong = cases.logprobs_and_gradient(
        vlm, pack(rollouts, cases.credit(1.0, -0.5, 0.25, 2.0), vlm, shared_prefix=True, budget=10_000)
    )[0]
    assert (right - wrong).abs().max() > 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("family", cases.FAMILIES)
def test_two_threads_add_up_to_the_same_bits_every_time(family):
    vlm, before = cases.policy(family, 256), torch.get_num_threads()
    rollouts = cases.rollouts(vlm, [cases.prompt(1), cases.prompt(2), cases.prompt(3)], group=16)
    batch = pack(rollouts, cases.credit(*torch.linspace(-1, 1, len(rollouts)).tolist()), vlm, shared_prefix=True, budget=10_000)
    try:
        torch.set_num_threads(2)
        gradients = [cases.logprobs_and_gradient(vlm, batch)[1].clone() for _ in range(8)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(g, gradients[0]) for g in gradients)


@pytest.mark.parametrize("pictures", [(1, 1), (1, 2), (2, 0), (0, 1)])
@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "internvl"])
def test_a_conversation_under_another_prompt_is_read_as_if_it_had_begun_with_it(family, pictures):
    """As by hints, conditions and mismatched pairs."""
    vlm = cases.policy(family)
    short, long = cases.two_turns(vlm, "what", pictures[0]), cases.two_turns(vlm, "what\n\nHint: twelve bananas" * 2, pictures[1])
    for sampled, wanted in ((short, long), (long, short)):
        found = sampled.answering(wanted.prompt, wanted.inputs)
        assert found.media_rows == wanted.media_rows and found.off_policy
        for field in fields(PromptInputs):
            value, expected = (getattr(r.final_inputs, field.name) for r in (found, wanted))
            if field.name == "pictures":  # each is numbered when it is processed
                assert len(value) == len(expected)
            elif expected is None or field.name.endswith(("sizes", "format")):
                assert value == expected, field.name
            else:
                torch.testing.assert_close(value, expected, rtol=0, atol=0, msg=field.name)
        one, other = (pack([r], cases.credit(1.0), vlm, shared_prefix=True, budget=10_000).micro[0] for r in (found, wanted))
        assert torch.equal(one.ids_BS, other.ids_BS) and one.media.keys() == other.media.keys()
        assert one.positions is other.positions is None or torch.equal(one.positions, other.positions)


def test_a_conversation_of_one_turn_under_another_prompt_has_no_later_inputs():
    vlm = cases.policy("qwen2_5_vl")
    (rollout,) = cases.rollouts(vlm, [cases.prompt(1)], group=1)
    other = cases.prompt(2)
    assert rollout.answering(other, vlm.encode(other)).final_inputs is None
