"""Episodes of a policy whose tokens say a whole chunk, of several lengths: their targets are those tokens, or the chunks."""

from __future__ import annotations

import pytest
import torch

from mmrl.api.episodes import Trajectory
from mmrl.api.simulators.types import TrajectoryData
from mmrl.api.types import Prompt, Status
from mmrl.policies.batches import Credit
from mmrl.train.update.pack_trajectories import pack_trajectories
from mmrl.train.update.packer import PackOptions

TOKENS = {"a": [2, 4, 1], "b": [3]}
ROOM, SPOKEN = 4, {"a": [0, 1, 10, 11, 12, 13, 20], "b": [0, 1, 2]}
"""Of each episode minus the log-probabilities of its tokens: ten times the call's index, and the token's place."""


def episode(name):
    """The last call's second action was not carried out. What is behind a call's tokens is 99."""
    tokens = torch.tensor(TOKENS[name])
    count, place = len(tokens), torch.arange(ROOM)
    logprobs = torch.where(place < tokens[:, None], -(10.0 * torch.arange(count)[:, None] + place), 99.0)
    valid = torch.ones(count, 2, dtype=torch.bool)
    valid[-1, 1] = False
    track = TrajectoryData(
        instruction=name,
        images={},
        state=torch.arange(count + 1.0)[:, None],
        choices=torch.arange(count)[:, None].expand(-1, ROOM),
        logprobs_TKC=logprobs[:, None],
        valid_TK=valid,
        rewards_TK=torch.tensor([[0.5, 0.25], [0.0, 1.0], [2.0, 0.0]])[:count],
        values_TU=torch.tensor([[7.0], [8.0], [9.0]])[:count],
        tokens_T=tokens,
    )
    return Trajectory(prompt=Prompt(messages=[]), group=0, status=Status.FINISHED, data=track)


@pytest.mark.parametrize("kept", [lambda r: r, Trajectory.to_stub, Trajectory.portable], ids=["whole", "stub", "portable"])
def test_the_targets_of_an_episode(kept):
    one = kept(episode("a"))
    assert (one.num_targets("token"), one.num_targets("chunk"), one.length, one.num_calls) == (7, 3, 7, 3)
    assert one.rewards("token").tolist() == [0, 0.75, 0, 0, 0, 1, 2] and one.rewards("chunk").tolist() == [0.75, 1, 2]
    assert list(one.ends("token")) == [1, 5, 6] and list(one.ends("chunk")) == [0, 1, 2]
    assert one.units("token", "token").tolist() == list(range(7))
    for credit in ("chunk", "turn"):
        assert one.units("token", credit).tolist() == [0, 0, 1, 1, 1, 1, 2] and one.units("chunk", credit).tolist() == [0, 1, 2]
    assert one.values("token").tolist() == [7, 7, 8, 8, 8, 8, 9] and one.values("chunk").tolist() == [7, 8, 9]
    assert not one.is_demonstration


@pytest.mark.parametrize("budget", [1, 9])
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("ratio", ["token", "chunk"])
def test_every_token_or_chunk_is_in_one_pass(ratio, parts, budget):
    some = [episode(name) for name in TOKENS]
    sizes = [r.num_targets(ratio) for r in some]
    advantages = torch.arange(2.0)[:, None] * 100 + torch.arange(max(sizes)) + 0.5
    credit = Credit(advantages=advantages, values_NT=advantages + 0.25)
    options = PackOptions(ratio=ratio, minibatches=parts, seed=3)
    told = {"token": SPOKEN, "chunk": {"a": [1, 46, 20], "b": [3]}}[ratio]
    found = {}
    for batch in pack_trajectories(some, credit, options, budget=budget):
        assert batch.num_tokens == sum(len(m.rollout_L) for m in batch.micro) and batch.lengths_N.tolist() == sizes
        for m in batch.micro:
            assert len(m.choices) <= budget and m.slots == ROOM
            again = m.targets(
                torch.where(torch.arange(ROOM) < m.tokens_S[:, None], 10.0 * m.choices + torch.arange(ROOM), 55)[:, None]
            )
            torch.testing.assert_close(again, -m.sampler_logprobs_L, msg="the learner's are where the sampler's are")
            values, _ = m.critic_values(10.0 * m.choices[:, :1])
            rows = zip(m.rollout_L, m.place_L, m.sampler_logprobs_L, m.advantages_L, m.values_L, values, strict=True)
            for n, place, logprob, advantage, value, own in rows:
                call = place if ratio == "chunk" else torch.tensor(SPOKEN["ab"[n]][place] // 10)
                assert float(advantage) == n * 100 + place + 0.5 and float(value) == advantage + 0.25 and float(own) == 10 * call
                found[int(n), int(place)] = -float(logprob)
    assert found == {(n, place): value for n, name in enumerate(TOKENS) for place, value in enumerate(told[name])}
