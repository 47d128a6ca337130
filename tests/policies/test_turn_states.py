"""What critics of turns see: the states of each conversation alone, however a batch is laid out, though the policy moves on."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import vlm_cases as cases
from mmrl.api.types import Turn
from mmrl.policies.batches import ones
from mmrl.policies.turn_states import TurnEyes, TurnStates
from mmrl.train.update.pack_conversations import pack


def seen(eyes: TurnEyes, rollouts: list[Any], vlm: Any, shared: bool = True, budget: int = 10_000) -> dict[int, TurnStates]:
    batch = pack(rollouts, ones(rollouts), vlm, shared_prefix=shared, budget=budget, keep_zero=True)
    return eyes.of(rollouts, batch)


def test_states_are_those_of_each_conversation_alone() -> None:
    vlm = cases.policy("qwen2_5_vl")
    rollouts = cases.in_turns(vlm)
    short = Turn(observed_ids=rollouts[1].turns[0].observed_ids, token_ids=(120,), logprobs=(-1.0,), text="")
    rollouts[1] = replace(rollouts[1], turns=(short,))
    eyes = TurnEyes(vlm)
    for shared, budget in ((True, 10_000), (False, 1), (True, 60)):
        found = seen(eyes, rollouts, vlm, shared, budget)
        assert sorted(found) == list(range(len(rollouts)))
        for n, rollout in enumerate(rollouts):
            states, at = cases.naive_states(vlm, rollout)
            answered = [places for places in at if places]
            before = states[[places[0] for places in answered] + [len(states) - 1]]
            after = states[[places[-1] + 1 for places in answered]]
            assert found[n].seen_TH.shape == before.shape and found[n].said_TH.shape == after.shape
            assert (found[n].seen_TH - before).abs().max() < 2e-5 and (found[n].said_TH - after).abs().max() < 2e-5


def test_a_frozen_copy_sees_what_it_saw_and_can_be_restored() -> None:
    vlm = cases.policy("qwen2_5_vl").clone()
    rollouts = cases.in_turns(vlm)
    eyes = TurnEyes(vlm)
    first = seen(eyes, rollouts, vlm)
    kept = {name: x.detach().clone() for name, x in eyes.state().items()}
    with torch.no_grad():
        for _, parameter in vlm.parameters():
            parameter.mul_(1.5)
    assert all(p.requires_grad for _, p in vlm.parameters())
    again, moved = seen(eyes, rollouts, vlm), TurnEyes(vlm)
    other = seen(moved, rollouts, vlm)
    moved.load(kept)
    restored = seen(moved, rollouts, vlm)
    for n, states in first.items():
        assert torch.equal(again[n].seen_TH, states.seen_TH) and torch.equal(restored[n].said_TH, states.said_TH)
        assert not torch.equal(other[n].said_TH, states.said_TH)


def test_rollouts_that_are_not_in_the_batch_have_no_states() -> None:
    vlm = cases.policy("qwen2_5_vl")
    rollouts = cases.in_turns(vlm)
    credit = replace(ones(rollouts), advantages=torch.tensor([1.0, torch.nan, 1.0, 1.0, 1.0, torch.nan]))
    batch = pack(rollouts, credit, vlm, shared_prefix=True, budget=10_000, keep_zero=True)
    assert sorted(TurnEyes(vlm).of(rollouts, batch)) == [0, 2, 3, 4]
