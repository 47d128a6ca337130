"""GiGPO against its published code, a slow reference and a small world."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as some
from PIL import Image

from mmrl.algorithms.presets import load_algorithm
from mmrl.algorithms.signals import Signals
from mmrl.algorithms.states import Numbering, met_again
from mmrl.api.episodes import Conversation, Trajectory
from mmrl.api.simulators.types import TrajectoryData
from mmrl.api.types import Prompt, Score, Status, Turn, user_message
from mmrl.config.sections import RlStage

ROWS = [json.loads(line) for line in (Path(__file__).parents[1] / "golden" / "gigpo.jsonl").read_text().splitlines()]


def stage(**keys: Any) -> RlStage:
    return RlStage(kind="rl", steps=1, credit="turn", **keys)


def episode(
    group: int, seen: list[Any], rewards: list[float], sizes: list[int], status: Status = Status.FINISHED
) -> Conversation:
    """seen: before each turn, a text, or a text and a picture. sizes: tokens of each turn."""
    messages = [user_message(*(s if isinstance(s, tuple) else (s,))) for s in seen]
    turns = tuple(
        Turn(
            observed_ids=(1,),
            token_ids=(9,) * size,
            logprobs=(-1.0,) * size,
            text="",
            reward=reward,
            messages=(message,) if n else (),
        )
        for n, (message, reward, size) in enumerate(zip(messages, rewards, sizes, strict=True))
    )
    return Conversation(prompt=Prompt(messages=messages[:1]), group=group, turns=turns, status=status)


def per_turn(rollouts: list[Conversation], scores: list[Score], how: RlStage, **options: Any) -> list[list[float]]:
    """The advantage of each turn that has tokens, all of which must have the same."""
    found = load_algorithm("gigpo", options).credit(Signals(rollouts, scores, how)).advantages
    turns = []
    for rollout, row in zip(rollouts, found.tolist(), strict=True):
        at, mine = 0, []
        for turn in rollout.turns:
            tokens = row[at : at + len(turn.token_ids)]
            at += len(turn.token_ids)
            assert len({repr(x) for x in tokens}) <= 1
            mine += tokens[:1]
        assert all(math.isnan(row[0]) if math.isnan(x) else x == 0 for x in row[at:]), "behind the end"
        turns.append(mine)
    return turns


@pytest.mark.parametrize("row", ROWS)
def test_advantages_are_the_published_ones(row: dict[str, Any]) -> None:
    rollouts = [episode("ab".index(e["group"]), e["states"], e["rewards"], [2] * len(e["states"])) for e in row["episodes"]]
    options = {name: row[name] for name in ("gamma", "step_weight", "scale", "over")}
    found = per_turn(rollouts, [Score(0.0)] * len(rollouts), stage(state_similarity=row["similarity"]), **options)
    assert [len(x) for x in found] == [len(x) for x in row["advantages"]]
    assert np.allclose(np.concatenate(found), np.concatenate(row["advantages"]), atol=2e-5)


@settings(max_examples=40, deadline=None)
@given(some.randoms(use_true_random=False), some.sampled_from(["none", "group"]), some.sampled_from(["episodes", "turns"]))
def test_advantages_equal_sums_written_out(chance: Any, scale: str, over: str) -> None:
    """With scores that failed, groups of one, turns without tokens in the middle and at the end, and episodes cut off."""
    rollouts, scores = [], []
    for _ in range(chance.randint(1, 7)):
        sizes = [chance.randint(0, 2) for _ in range(chance.randint(1, 5))]
        cut = chance.random() < 0.3
        sizes = [*(s for s in sizes), *([0] if cut else [chance.randint(1, 2)])]
        seen = [chance.choice("xyz") for _ in sizes]
        rewards = [chance.choice([0.0, 0.5, -1.0, 0.3]) for _ in sizes]
        status = Status.TRUNCATED_TURNS if cut else Status.FINISHED
        rollouts.append(episode(chance.randint(0, 2), seen, rewards, sizes, status))
        scores.append(Score(None) if chance.random() < 0.2 else Score(chance.choice([0.0, 1.0])))
    if not any(r.length for r in rollouts):
        return
    gamma, weight, eps = 0.9, 0.7, 1e-6
    turns: list[tuple[int, int, str, float]] = []  # (episode, group, state, return)
    for n, (rollout, score) in enumerate(zip(rollouts, scores, strict=True)):
        seen = [rollout.prompt.text, *(t.messages[0]["content"][-1]["text"] for t in rollout.turns[1:])]
        spoken, paid = [k for k, t in enumerate(rollout.turns) if t.token_ids], dict[int, float]()
        for k, turn in enumerate(rollout.turns):  # what is paid where nothing was said belongs to what was said before
            at = max([j for j in spoken if j <= k], default=min(spoken, default=0))
            paid[at] = paid.get(at, 0.0) + turn.reward
        if spoken and score.value is not None:
            paid[spoken[-1]] += score.value
        for place, k in enumerate(spoken):
            later = sum(gamma**m * paid[j] for m, j in enumerate(spoken[place:]))
            turns.append((n, rollout.group, seen[k], math.nan if score.failed else later))
    wholes = [math.nan if s.value is None else s.value + r.environment_reward for r, s in zip(rollouts, scores, strict=True)]

    def relative(value: float, others: list[float]) -> float:
        others = [x for x in others if not math.isnan(x)]
        if math.isnan(value) or max(others) == min(others):
            return value * 0.0
        return (value - np.mean(others)) / (1.0 if scale == "none" else np.std(others, ddof=1) + eps)

    counted = range(len(rollouts)) if over == "episodes" else [t[0] for t in turns]
    expected: list[list[float]] = [[] for _ in rollouts]
    for n, group, state, value in turns:
        episodes = relative(wholes[n], [wholes[m] for m in counted if rollouts[m].group == group])
        same = relative(value, [t[3] for t in turns if t[1:3] == (group, state)])
        expected[n].append(episodes + weight * same)
    found = per_turn(rollouts, scores, stage(), gamma=gamma, step_weight=weight, scale=scale, over=over)
    assert np.allclose(np.concatenate(found), np.concatenate(expected), atol=1e-5, equal_nan=True)
    units, states = Signals(rollouts, scores, stage()).units_NT, Signals(rollouts, scores, stage()).states_NT
    places = [t[1:3] for t in turns]
    assert met_again(units, states) == pytest.approx(np.mean([places.count(p) > 1 for p in places]))


def test_a_detour_is_told_from_the_short_way_where_grpo_tells_nothing() -> None:
    """A corridor of three rooms. Both episodes reach its end and are paid the same; one of them first goes back."""
    short = episode(0, ["room 1", "room 2", "room 3"], [0, 0, 1], [1, 1, 1])
    detour = episode(0, ["room 1", "room 2", "room 1", "room 2", "room 3"], [0, 0, 0, 0, 1], [1] * 5)
    pair, scores = [short, detour], [Score(0.0)] * 2
    assert not load_algorithm("grpo", {}).credit(Signals(pair, scores, stage())).advantages.any()
    first, second = per_turn(pair, scores, stage())
    assert first[0] == pytest.approx(0.95**2 - (2 * 0.95**2 + 0.95**4) / 3, abs=1e-6) and first[2] == second[4] == 0
    assert second[1] < 0 < second[3] == first[1], "in room 2, going back is worse than going on"
    apart = [short, replace(detour, group=1)]
    assert not np.concatenate(per_turn(apart, scores, stage(), step_weight=1.0))[:3].any(), "each is alone in its group"


def test_states_that_are_never_met_again_leave_grpo() -> None:
    pair = [episode(0, [f"{n} {k}" for k in range(3)], [0, 0, float(n)], [1, 2, 1]) for n in range(2)]
    assert per_turn(pair, [Score(0.0)] * 2, stage()) == [[-0.5] * 3, [0.5] * 3]
    signals = Signals(pair, [Score(0.0)] * 2, stage())
    assert met_again(signals.units_NT, signals.states_NT) == 0


def test_a_state_is_what_was_said_and_shown_or_what_the_environment_calls_it(tmp_path: Path) -> None:
    red, other = Image.new("RGB", (8, 8), "red"), Image.new("RGB", (8, 8), "red")
    other.putpixel((3, 3), (254, 0, 0))
    red.save(tmp_path / "red.png")
    read = Image.open(tmp_path / "red.png")
    seen = [("a", red), ("a", other), ("b", red), ("a", read), "a", ("a", red)]
    rollout = episode(0, seen, [0.0] * 6, [1] * 6)
    first, changed, told, opened, unseen, again = rollout.states
    assert first == again == opened and len({first, changed, told, unseen}) == 4
    named = replace(rollout, turns=(replace(rollout.turns[0], state=("start", "")), *rollout.turns[1:]))
    assert named.states[0] == ("start", "") and named.states[1:] == rollout.states[1:]
    assert named.with_states().to_stub().states == named.states, "another rank knows them without the pictures"


def test_similar_texts_are_one_state_only_where_the_pictures_are_equal() -> None:
    texts = [f"You are in room {n}, and see a door." for n in (1, 2)] + ["Outside."]
    assert SequenceMatcher(None, *texts[:2]).ratio() > 0.95
    for similarity, alike in ((1.0, False), (0.95, True)):
        number = Numbering(similarity)
        one, two, three = (number(0, (text, "")) for text in texts)
        assert (one == two) is alike and three not in (one, two)
        assert number(0, (texts[0], "picture")) not in (one, two) and number(1, (texts[0], "")) != one
        assert number(0, (texts[0], "")) == one


def test_calls_in_a_simulator_begin_in_what_was_observed() -> None:
    """Of two episodes that begin alike; the last state begins no call. A chunk has two actions, the last one a single one."""

    def played(group: int, numbers: list[float], rewards: list[float]) -> Trajectory:
        count = len(rewards)
        track = TrajectoryData(
            instruction="go",
            images={"eye": torch.zeros(count + 1, 2, 2, 3, dtype=torch.uint8)},
            state=torch.tensor(numbers)[:, None],
            choices=torch.zeros(count, 2, 3),
            logprobs_TKC=torch.zeros(count, 2, 3),
            valid_TK=torch.tensor([[True, True]] * (count - 1) + [[True, False]]),
            rewards_TK=torch.tensor([[r, 0.0] for r in rewards]),
        )
        return Trajectory(prompt=Prompt(messages=[]), group=group, status=Status.FINISHED, data=track)

    pair = [played(0, [0.0, 1.0, 2.0], [0.0, 1.0]), played(0, [0.0, 3.0, 1.0, 2.0], [0.0, 0.0, 1.0])]
    assert pair[0].states == [pair[1].states[0], pair[1].states[2]] and len({*pair[1].states}) == 3
    assert pair[1].with_states().to_stub().states == tuple(pair[1].states)
    for ratio, per_call in (("token", 6), ("chunk", 1)):
        signals = Signals(pair, [Score(0.0)] * 2, stage(ratio=ratio))
        found = load_algorithm("gigpo", {}).credit(signals).advantages
        assert found[0, 0].item() == pytest.approx((0.95 - 0.95**2) / 2) and found[0, per_call] == 0
        assert found[1, 0] == -found[0, 0] and not found[1, per_call:].any()
