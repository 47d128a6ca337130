"""What is remembered of episodes: actions by call, who did them, and what each call was worth."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrl.api.errors import UserError
from mmrl.api.simulators.types import TrajectoryData
from mmrl.train.sampling.offline import in_chunks
from mmrl.train.update.experience import Experience, Lived, lived, shown


def track(number: int, actions: int, chunk: int = 1, corrected: list[bool] | None = None) -> TrajectoryData:
    """An episode of so many actions, 0.1, 0.2, ..., in chunks; its state is its number and the call."""
    calls = -(-actions // chunk)
    each = torch.arange(1, calls * chunk + 1).float().view(calls, chunk, 1) / 10
    at = torch.arange(calls + 1)
    return TrajectoryData(
        instruction=f"do {number}",
        images={"front": at.to(torch.uint8)[:, None, None, None].expand(-1, 2, 2, 3)},
        state=torch.stack([torch.full_like(at, number), at], 1).float(),
        choices=each,
        logprobs_TKC=torch.zeros(calls, chunk, 1),
        valid_TK=(torch.arange(calls * chunk) < actions).view(calls, chunk),
        rewards_TK=torch.zeros(calls, chunk),
        actions_TKA=each,
        corrected_TK=None if corrected is None else torch.tensor(corrected).view(calls, chunk),
    )


def one(number: int, actions: int, chunk: int = 1, **keys: bool) -> Lived:
    shown_ = track(number, actions, chunk)
    assert shown_.state is not None
    return lived(shown_, shown_.state * 10, task="t", longest=20, **{"success": True, **keys})


def test_a_call_s_chunk_goes_on_into_later_calls_and_repeats_the_last_action() -> None:
    episode = one(0, 5, chunk=2)
    assert episode.tensors["steps"].tolist() == [2, 2, 1] and len(episode) == 3
    actions, valid = episode.chunk(1, 5)
    assert actions[:, 0].tolist() == pytest.approx([0.3, 0.4, 0.5, 0.5, 0.5])
    assert valid.tolist() == [True, True, True, False, False]
    assert episode.chunk(0, 2)[0][:, 0].tolist() == pytest.approx([0.1, 0.2])
    assert episode.tensors["features"].tolist() == [[0, 0], [0, 10], [0, 20]], "of the last state none"
    assert episode.returns(1.0).tolist() == pytest.approx([-0.2, -0.1, 0.0])


def test_a_call_s_chunk_ends_where_the_instruction_changes() -> None:
    """As one that is played, and one of a demonstration. The same words again, later, are another part."""
    shown_ = replace(track(0, 5), instructions=("pick", "pick", "place", "pick", "pick", "pick"))
    assert shown_.state is not None
    episode = lived(shown_, shown_.state, task="t", longest=20, success=True)
    found = [episode.chunk(call, 3) for call in range(5)]
    assert [(10 * actions[:, 0]).round().tolist() for actions, _ in found] == [
        [1, 2, 2],
        [2, 2, 2],
        [3, 3, 3],
        [4, 5, 5],
        [5, 5, 5],
    ]
    assert [int(valid.sum()) for _, valid in found] == [2, 1, 1, 2, 1]


def test_who_did_an_action_is_remembered() -> None:
    assert one(0, 3).tensors["corrected"].tolist() == [False] * 3
    assert one(0, 3, expert=True).tensors["corrected"].tolist() == [True] * 3
    taken = track(1, 3, corrected=[False, True, True])
    assert taken.state is not None
    found = lived(taken, taken.state, task="t", longest=9, success=False)
    assert found.tensors["corrected"].tolist() == [False, True, True] and found.returns(1.0).tolist() == [-1.0] * 3


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_a_call_is_another_s_only_with_all_of_its_chunk(data: st.DataObject) -> None:
    """Against a walk over the chunk that is imitated: up to the end of the episode, or of its instruction."""
    actions, chunk, ahead = (data.draw(st.integers(1, most)) for most in (12, 3, 5))
    calls = -(-actions // chunk)
    marks = data.draw(st.lists(st.booleans(), min_size=calls * chunk, max_size=calls * chunk))
    texts = data.draw(st.lists(st.sampled_from(["pick", "place"]), min_size=calls + 1, max_size=calls + 1))
    shown_ = replace(track(0, actions, chunk, marks), instructions=tuple(texts))
    episode = lived(shown_, torch.zeros(calls + 1, 0), task="t", longest=20, success=True)
    who = torch.tensor(marks[:actions])
    assert torch.equal(episode.tensors["others"], who)
    expected = []
    for call in range(calls):
        _, valid = episode.chunk(call, ahead)
        if who[call * chunk : call * chunk + int(valid.sum())].all():
            expected.append(call)
    assert episode.by_others(ahead) == expected


def test_the_oldest_of_its_own_episodes_go_first_and_given_ones_stay() -> None:
    experience = Experience(7)
    experience.given = [one(9, 4, expert=True)]
    for number in range(4):
        experience.add(one(number, 3))
    assert [episode.instruction for episode in experience] == ["do 9", "do 2", "do 3"] and len(experience) == 10
    assert experience.joined("features").shape == (10, 2)
    calls = experience.calls()
    seen = shown(calls[4:6], ["a", "b"])
    assert seen.state is not None and seen.state.tolist() == [[2, 0], [2, 1]] and seen.instructions == ["a", "b"]
    assert seen.images["front"][1, 0, 0].tolist() == [1, 1, 1]


def test_a_saved_experience_is_the_same_and_a_torn_one_is_refused(tmp_path: Path) -> None:
    whole, path = Experience(30), tmp_path / "experience.safetensors"
    for number in range(3):
        whole.add(one(number, 4, chunk=2, success=number > 0))
    whole.save(path)
    again = Experience(30)
    again.load(path)
    assert [(e.task, e.longest, e.success, e.instruction) for e in again] == [
        (e.task, e.longest, e.success, e.instruction) for e in whole
    ]
    for name in ("features", "steps", "actions", "others", "corrected", "state"):
        assert torch.equal(again.joined(name), whole.joined(name)), name
    assert torch.equal(again.own[2].images["front"], whole.own[2].images["front"])
    with pytest.raises(UserError, match=r"has capacity = 30, and this run 31: make them equal"):
        Experience(31).load(path)
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="it is torn; restore it, or begin anew"):
        Experience(30).load(path)


def test_an_expert_s_single_actions_are_dealt_into_chunks() -> None:
    found = in_chunks(track(0, 5), 2)
    assert found.actions_TKA is not None and found.state is not None
    assert found.actions_TKA[..., 0].tolist() == [pytest.approx([0.1, 0.2]), pytest.approx([0.3, 0.4]), pytest.approx([0.5, 0.5])]
    assert found.valid_TK.tolist() == [[True, True], [True, True], [True, False]]
    assert found.state[:, 1].tolist() == [0, 2, 4, 5] and len(found.images["front"]) == 4
    asked = replace(track(0, 5), instruction="a", instructions=("a", "a", "a", "b", "b", "b"))
    parts = in_chunks(asked, 2)
    assert parts.valid_TK.tolist() == [[True, True], [True, False], [True, True]], "no call goes on where the instruction changes"
    assert list(parts.told) == ["a", "a", "b", "b"] and parts.state is not None and parts.state[:, 1].tolist() == [0, 2, 3, 5]
    assert parts.actions_TKA is not None and parts.actions_TKA[1, :, 0].tolist() == pytest.approx([0.3, 0.3])
    paid = track(0, 5)
    paid.rewards_TK[:] = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0])[:, None]
    assert in_chunks(paid, 2).rewards_TK.sum(1).tolist() == [3.0, 12.0, 16.0], "each is paid once"
