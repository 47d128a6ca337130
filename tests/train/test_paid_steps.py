"""What a verifier pays along an episode stands where it was earned, whatever the ratio, the credit and what was cut off."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch

from mmrl.algorithms.gae import gae
from mmrl.algorithms.signals import Signals
from mmrl.api.episodes import Conversation, Trajectory
from mmrl.api.simulators.types import TrajectoryData
from mmrl.api.types import Prompt, Score, Status, Turn, add_part
from mmrl.config.sections import RlStage
from mmrl.judge import weighted_score

RATIOS = ("token", "action", "chunk")
K, C = 3, 2


def stage(**keys):
    return RlStage(kind="rl", steps=1, **keys)


def episode(seed, length, dropped):
    """dropped: actions of the last chunk that were not carried out."""
    g = torch.Generator().manual_seed(seed)
    valid = torch.ones(length, K, dtype=torch.bool)
    valid[-1, K - dropped :] = False
    track = TrajectoryData(
        instruction="go",
        images={},
        state=None,
        choices=torch.zeros(length, K, C),
        logprobs_TKC=-torch.rand(length, K, C, generator=g),
        valid_TK=valid,
        rewards_TK=torch.randn(length, K, generator=g) * valid,
    )
    return Trajectory(prompt=Prompt(messages=[]), group=0, status=Status.FINISHED, data=track)


SHAPES = [(1, 4, 0), (2, 2, 2), (3, 1, 1), (4, 5, 0), (5, 3, 1)]


def slow(rollout, score, ratio):
    """[L] rewards of an episode, target by target: what an action was paid at its last target, what a call earned at the last
    target of the last action that it carried out, what is left of the score at the very end."""
    track, found = rollout.data, []
    for call in range(len(track.valid_TK)):
        carried = [k for k in range(K) if track.valid_TK[call, k]]
        targets = []
        for k in carried:
            paid = float(track.rewards_TK[call, k])
            targets += [0.0] * (C - 1) + [paid] if ratio == "token" else [paid]
        if ratio == "chunk":
            targets = [math.fsum(targets)]
        targets[-1] += score.steps[call] if score.steps else 0.0
        found += targets
    found[-1] += score.value - sum(score.steps)
    return found


def scored(rollout, seed, steps=True):
    r = random.Random(seed)
    paid = tuple(r.gauss(0, 1) for _ in rollout.data.valid_TK) if steps else ()
    return Score(sum(paid) + r.choice([0.0, 0.5]), steps=paid)


@pytest.mark.parametrize("ratio", RATIOS)
def test_each_call_is_paid_where_its_last_action_ends(ratio):
    rollouts = [episode(*shape) for shape in SHAPES]
    scores = [scored(r, n, steps=n != 3) for n, r in enumerate(rollouts)]
    signals = Signals(rollouts, scores, stage(ratio=ratio))
    for n, (rollout, score) in enumerate(zip(rollouts, scores, strict=True)):
        wanted = slow(rollout, score, ratio)
        assert signals.rewards_NT[n, : len(wanted)].tolist() == pytest.approx(wanted, abs=1e-6)
        assert not signals.rewards_NT[n, len(wanted) :].any()
    assert torch.allclose(signals.rewards_NT.sum(1), signals.rewards_N, atol=1e-6), "nothing is lost or paid twice"


@pytest.mark.parametrize(("ratio", "credit"), list(itertools.product(RATIOS, ("action", "chunk"))))
def test_what_is_still_to_come_is_what_is_paid_later(ratio, credit):
    """With gamma and lambda 1 and values of 0, a unit's advantage is the sum of what it and those behind it earn."""
    rollouts = [episode(*shape) for shape in SHAPES]
    scores = [scored(r, n) for n, r in enumerate(rollouts)]
    signals = Signals(rollouts, scores, stage(ratio=ratio, credit=credit))
    zeros = torch.zeros_like(signals.rewards_NT)
    found, _ = gae(signals.rewards_NT, zeros, torch.zeros(len(rollouts)), signals.units_NT, gamma=1.0, lam=1.0, whiten=False)
    for n, (rollout, score) in enumerate(zip(rollouts, scores, strict=True)):
        wanted, units = slow(rollout, score, ratio), signals.units_NT[n].tolist()
        for place in range(len(wanted)):
            later = math.fsum(p for p, unit in zip(wanted, units, strict=False) if unit >= units[place])
            assert float(found[n, place]) == pytest.approx(later, abs=1e-5)


def test_a_call_that_earned_at_its_first_action_when_the_rest_was_dropped():
    """By hand: two calls of three actions, of the last only one was carried out; the calls earned 1 and 10, and 0.5 are left."""
    rollout = episode(0, 2, 2)
    rollout.data.rewards_TK.zero_()
    score = Score(11.5, steps=(1.0, 10.0))
    by_action = Signals([rollout], [score], stage(ratio="action")).rewards_NT
    assert by_action.tolist() == [[0.0, 0.0, 1.0, 10.5]]
    by_token = Signals([rollout], [score], stage(ratio="token")).rewards_NT
    assert by_token.tolist() == [[0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 10.5]]
    assert Signals([rollout], [score], stage(ratio="chunk")).rewards_NT.tolist() == [[1.0, 10.5]]


def test_a_failed_score_pays_nothing():
    rollout = episode(0, 2, 0)
    assert Signals([rollout], [Score(None)], stage(ratio="action")).rewards_NT.isnan().all()


def turn(size, reward=0.0):
    return Turn(observed_ids=(1,), token_ids=(9,) * size, logprobs=(-1.0,) * size, text="", reward=reward)


def test_turns_of_a_conversation_are_paid_at_their_last_token():
    """One of them samples nothing: what it earned goes to the token before it."""
    rollout = Conversation(prompt=Prompt(messages=[]), group=0, turns=(turn(2, 0.25), turn(0), turn(3)), status=Status.FINISHED)
    found = Signals([rollout], [Score(8.0, steps=(1.0, 2.0, 4.0))], stage())
    assert found.rewards_NT.tolist() == [[0.0, 3.25, 0.0, 0.0, 5.0]] and found.rewards_N.tolist() == [8.25]


def test_steps_that_are_not_one_for_each_call_are_no_silent_loss():
    with pytest.raises(ValueError, match="zip"):
        Signals([episode(0, 2, 0)], [Score(1.0, steps=(1.0,))], stage(ratio="action")).rewards_NT  # noqa: B018


def test_a_weighted_sum_of_scores_is_one_of_their_steps():
    scores = {"a": Score(3.0, steps=(1.0, 2.0)), "b": Score(5.0), "c": Score(4.0, steps=(4.0, 0.0))}
    found = weighted_score({"a": 2.0, "b": 1.0, "c": -1.0}, scores)
    assert found.value == 7.0 and found.steps == (-2.0, 4.0), "of b all is left for the end"
    assert weighted_score({"b": 1.0}, scores).steps == ()
    failed = weighted_score({"a": 1.0, "d": 1.0}, {**scores, "d": Score(None)})
    assert failed.value is None and failed.steps == ()
    ignored = weighted_score({"a": 1.0, "d": 0.0}, {**scores, "d": Score(None)})
    assert ignored.value == 3.0 and ignored.steps == (1.0, 2.0)


def test_an_amount_on_top_belongs_to_the_end():
    found = add_part(Score(3.0, {"a": 3.0}, "why", (1.0, 2.0)), "extra", -0.5)
    assert found == Score(2.5, {"a": 3.0, "extra": -0.5}, "why", (1.0, 2.0))


def test_a_score_is_written_with_its_steps_where_it_has_some():
    assert Score(1.0).as_json().keys() == {"value", "parts", "status", "detail"}
    assert Score(1.0, steps=(0.5, 0.5)).as_json()["steps"] == [0.5, 0.5]


@pytest.mark.parametrize("ratio", RATIOS)
def test_where_calls_end(ratio):
    rollout = episode(0, 3, 2)
    assert list(rollout.ends(ratio)) == {"token": [5, 11, 13], "action": [2, 5, 6], "chunk": [0, 1, 2]}[ratio]
    assert rollout.ends(ratio)[-1] == rollout.num_targets(ratio) - 1
