"""The replay memory against slow references, and its errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from mmrl.api.errors import UserError
from mmrl.train.update.replay import Drawn, Episode, Layout, Replay, draw_mixed

LAYOUT = Layout(simulator="tabletop", action=2, features=1)
GAMMA = 0.9


def episode(first: int, count: int, terminated: bool) -> Episode:
    """What is seen counts up from `first`, so that a transition is known by it."""
    seen = first + torch.arange(count + 1.0)
    return Episode(
        seen_TF=seen[:-1, None],
        after_TF=seen[1:, None],
        actions_TA=torch.stack([seen[:-1], -seen[:-1]], 1),
        rewards_T=seen[:-1] % 7 - 3,
        terminated=terminated,
    )


EPISODES = [episode(0, 5, True), episode(100, 4, False), episode(200, 1, True), episode(300, 6, False), episode(400, 3, True)]


def filled(capacity: int = 100, episodes: list[Episode] = EPISODES, **options: float) -> Replay:
    replay = Replay(LAYOUT, capacity, gamma=GAMMA, **options)
    for each in episodes:
        replay.add(each)
    return replay


def same(one: Drawn, other: Drawn) -> bool:
    return all(torch.equal(getattr(one, name), getattr(other, name)) for name in Drawn.__slots__)


@pytest.mark.parametrize("capacity", [100, 11])  # 19 transitions: all are kept, or the ring has gone round
@pytest.mark.parametrize("steps", [1, 3, 10])
def test_returns_of_n_steps_are_those_of_a_walk_through_the_episode(capacity: int, steps: int) -> None:
    replay = filled(capacity)
    drawn = replay.draw(400, 5, steps=steps)
    every = [(n, t) for n, e in enumerate(EPISODES) for t in range(len(e.rewards_T))][-capacity:]
    known = {float(EPISODES[n].seen_TF[t]): (EPISODES[n], t) for n, t in every}
    assert {float(s) for s in drawn.seen_nF} == known.keys()  # all that is kept is drawn, and nothing else
    for row in range(400):
        walked, t = known[float(drawn.seen_nF[row])]
        rewards, last = walked.rewards_T.numpy(), min(t + steps, len(walked.rewards_T)) - 1
        ends = walked.terminated and last == len(rewards) - 1
        expected = sum(GAMMA**k * r for k, r in enumerate(rewards[t : last + 1]))
        assert drawn.rewards_n[row].item() == pytest.approx(expected, abs=1e-5)
        assert drawn.after_nF[row].item() == walked.after_TF[last].item()
        assert drawn.discounts_n[row].item() == pytest.approx(0.0 if ends else GAMMA ** (last - t + 1), abs=1e-6)
        assert drawn.paid_n[row].item() == pytest.approx(sum(GAMMA**k * r for k, r in enumerate(rewards[t:])), abs=1e-5)
        assert torch.equal(drawn.actions_nA[row], walked.actions_TA[t])


def test_priorities_give_chances_and_weights() -> None:
    """Schaul et al., equations 1 and section 3.4: P(i) = p_i^alpha / sum, w_i = (N P(i))^-beta / max."""
    replay = filled(alpha=0.6, beta=0.4)
    errors = torch.linspace(0.0, 3.0, 19)
    replay.reprioritise(torch.arange(19), -errors)
    drawn = replay.draw(40_000, 1)
    powers = (errors.double().numpy() + 1e-6) ** 0.6
    chances = powers / powers.sum()
    counted = np.bincount(drawn.places_n.numpy(), minlength=19) / 40_000
    assert np.abs(counted - chances).max() < 4 * np.sqrt(0.25 / 40_000)
    weights = (19 * chances[drawn.places_n.numpy()]) ** -0.4
    np.testing.assert_allclose(drawn.weights_n.numpy(), weights / weights.max(), rtol=1e-5)
    replay.add(episode(500, 1, True))  # a new transition has the highest priority so far
    assert replay._kept["priorities"][19].item() == pytest.approx(3.0 + 1e-6)
    replay.reprioritise(torch.tensor([4, 4, -1]), torch.tensor([0.5, 2.0, 9.0]))
    assert replay._kept["priorities"][4].item() == pytest.approx(2.0 + 1e-6)
    assert replay._kept["highest"].item() == pytest.approx(3.0 + 1e-6)


def test_a_resumed_memory_draws_what_the_other_one_draws(tmp_path: Path) -> None:
    whole, resumed = filled(11, alpha=0.7, beta=0.5), filled(11, [], alpha=0.7, beta=0.5)
    whole.reprioritise(torch.arange(5), torch.arange(5.0))
    whole.save(tmp_path / "replay.safetensors")
    resumed.load(tmp_path / "replay.safetensors")
    for memory in (whole, resumed):
        memory.add(episode(600, 4, False))
    assert same(whole.draw(64, 3, steps=3), resumed.draw(64, 3, steps=3))
    assert not same(whole.draw(64, 3), whole.draw(64, 4))


def test_half_of_a_mixed_draw_is_offline() -> None:
    offline, online = filled(episodes=EPISODES[:1]), filled(episodes=EPISODES[3:])
    drawn = draw_mixed(online, offline, 64, 2, share=0.5)
    old = drawn.seen_nF[:, 0] < 10
    assert old.tolist() == [True] * 32 + [False] * 32
    assert torch.equal(drawn.places_n < 0, old)
    assert (draw_mixed(online, offline, 8, 2, share=1.0).places_n < 0).all()
    assert same(draw_mixed(online, None, 8, 2, share=0.0), online.draw(8, 2))


def test_torn_and_foreign_files_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "replay.safetensors"
    filled().save(path)
    whole = path.read_bytes()
    fresh = filled(episodes=[])
    flipped = bytearray(whole)
    flipped[-3] ^= 1
    for torn in (whole[: len(whole) // 2], b"", bytes(flipped)):
        path.write_bytes(torn)
        with pytest.raises(UserError, match="torn") as caught:
            fresh.load(path)
        assert "\n" not in str(caught.value) and len(fresh) == 0
    path.write_bytes(whole)
    for other in (replace(LAYOUT, simulator="maniskill"), replace(LAYOUT, action=7), replace(LAYOUT, features=3)):
        with pytest.raises(UserError, match="make them equal"):
            Replay(other, 100, gamma=GAMMA).load(path)
    with pytest.raises(UserError, match="capacity = 100"):
        Replay(LAYOUT, 50, gamma=GAMMA).load(path)


def test_a_memory_is_opened_whatever_its_capacity_was(tmp_path: Path) -> None:
    """One that went round, and one that is not yet full: both give the same draws as the memory that was saved."""
    path = tmp_path / "replay.safetensors"
    for capacity in (8, 100):
        saved = Replay(LAYOUT, capacity, gamma=GAMMA)
        for episode in EPISODES:
            saved.add(episode)
        saved.save(path)
        found = Replay.opened(path, LAYOUT, gamma=GAMMA)
        assert len(found) == len(saved) and same(found.draw(64, 3, steps=2), saved.draw(64, 3, steps=2))
    with pytest.raises(UserError, match=r"gamma = .*make them equal"):
        Replay.opened(path, LAYOUT, gamma=GAMMA / 2)
    filled(episodes=[]).save(path)
    with pytest.raises(UserError, match="holds no transition"):
        Replay.opened(path, LAYOUT, gamma=GAMMA)
    with pytest.raises(UserError, match="there is no replay file"):
        Replay.opened(tmp_path / "nothing", LAYOUT, gamma=GAMMA)


def test_a_memory_that_says_something_else_of_itself_is_torn(tmp_path: Path) -> None:
    """Its digest covers what the file says of the memory, too."""
    path = tmp_path / "replay.safetensors"
    filled().save(path)
    whole = path.read_bytes()
    assert whole.count(b'"added":"') == 1
    at = whole.index(b'"added":"') + len(b'"added":"')
    path.write_bytes(whole[:at] + (b"9" if whole[at : at + 1] != b"9" else b"8") + whole[at + 1 :])
    with pytest.raises(UserError, match="torn"):
        Replay.opened(path, LAYOUT, gamma=GAMMA)


def test_what_does_not_fit_is_refused() -> None:
    replay = filled(episodes=[])
    with pytest.raises(UserError, match="empty"):
        replay.draw(4, 0)
    with pytest.raises(UserError, match="needs offline data"):
        draw_mixed(filled(), replay, 4, 0, share=0.5)
    with pytest.raises(UserError, match="offline data have simulator"):
        other = Replay(replace(LAYOUT, simulator="gym"), 9, gamma=GAMMA)
        other.add(EPISODES[0])
        draw_mixed(filled(), other, 4, 0, share=0.5)
    with pytest.raises(UserError, match="doesn't fit a replay memory of 3"):
        filled(3, [EPISODES[0]])
    with pytest.raises(UserError, match=r"actions_TA is \[5, 3\]"):
        replay.add(replace(EPISODES[0], actions_TA=torch.zeros(5, 3)))
    with pytest.raises(UserError, match="not finite"):
        replay.add(replace(EPISODES[0], rewards_T=torch.full((5,), torch.nan)))
    with pytest.raises(UserError, match=r"replay.alpha = 2"):
        Replay(LAYOUT, 5, gamma=GAMMA, alpha=2.0)


@pytest.mark.parametrize("capacity", [100, 11])
def test_what_is_paid_again_is_as_if_it_had_been_paid_so_at_first(tmp_path: Path, capacity: int) -> None:
    """In a ring that has gone round too, and after a resume."""
    pay = [torch.rand(len(e.rewards_T), generator=torch.Generator().manual_seed(n)) for n, e in enumerate(EPISODES)]
    first = [replace(e, changing_T=-p) for e, p in zip(EPISODES, pay, strict=True)]
    second = [replace(e, changing_T=p.square()) for e, p in zip(EPISODES, pay, strict=True)]
    changed, expected = filled(capacity, first, changing=True), filled(capacity, second, changing=True)
    now = torch.cat([p.square() for p in pay])[-capacity:]
    places = (19 - len(now) + torch.arange(len(now))) % capacity  # the newest are at the places where the oldest were
    changed.save(tmp_path / "before.safetensors")
    changed.pay_again(torch.empty(len(now)).index_copy_(0, places, now))
    assert same(changed.draw(200, 3, steps=3), expected.draw(200, 3, steps=3))
    resumed = filled(capacity, [], changing=True)
    resumed.load(tmp_path / "before.safetensors")
    resumed.pay_again(torch.empty(len(now)).index_copy_(0, places, now))
    assert same(resumed.draw(200, 4), expected.draw(200, 4))
    opened = Replay.opened(tmp_path / "before.safetensors", LAYOUT, gamma=GAMMA)  # of a run that pays by a rule
    assert torch.equal(opened.draw(50, 1).rewards_n, filled(capacity, first).draw(50, 1).rewards_n)
    with pytest.raises(UserError, match="a rule pays what is not finite"):
        changed.pay_again(torch.full((len(now),), torch.nan))


@pytest.mark.parametrize("steps", [1, 3])
def test_parts_of_an_episode_keep_its_returns_and_end_where_they_end(steps: int) -> None:
    whole = EPISODES[0]
    replay = filled(episodes=[whole.part(1, 3, GAMMA), whole.part(4, 5, GAMMA)])
    drawn = replay.draw(60, 1, steps=steps)
    rewards, last = whole.rewards_T.tolist(), {1: min(1 + steps, 3) - 1, 2: 2, 4: 4}
    assert {int(s) for s in drawn.seen_nF} == last.keys()
    for row in range(60):
        t = int(drawn.seen_nF[row])
        assert drawn.after_nF[row].item() == last[t] + 1
        assert drawn.paid_n[row].item() == pytest.approx(sum(GAMMA**k * r for k, r in enumerate(rewards[t:])), abs=1e-5)
        assert drawn.discounts_n[row].item() == pytest.approx(0.0 if t == 4 else GAMMA ** (last[t] - t + 1), abs=1e-6)


def test_what_followed_a_part_is_still_earned_when_the_part_is_paid_again(tmp_path: Path) -> None:
    """Rewards 1, 2, 3 and what a rule pays, 10, 20, 30: from the second step on, 22 + 0.9 * 33. The rule now pays 5 for it."""
    whole = replace(episode(0, 3, True), rewards_T=torch.tensor([1.0, 2, 3]), changing_T=torch.tensor([10.0, 20, 30]))
    replay = Replay(LAYOUT, 5, gamma=GAMMA, changing=True)
    replay.add(whole.part(0, 2, GAMMA))
    replay.add(whole.part(2, 3, GAMMA))
    replay.save(tmp_path / "offline.safetensors")
    for one in (replay, Replay.opened(tmp_path / "offline.safetensors", LAYOUT, gamma=GAMMA, whole=True), replay.with_room(2)):
        one.pay_again(torch.tensor([10.0, 5, 30]))
        second = 2 + 5 + GAMMA * 33
        assert one._kept["paid"][:3].tolist() == pytest.approx([11 + GAMMA * second, second, 33.0])


@pytest.mark.parametrize("capacity", [100, 11])
def test_a_memory_with_room_has_the_same_transitions_and_is_opened_as_it_was(tmp_path: Path, capacity: int) -> None:
    """Also of one whose ring has gone round; and what is added takes the room before the oldest."""
    small = filled(capacity)
    large = small.with_room(5)
    kept = sorted(small.states[:, 0].tolist())
    assert large.states[:, 0].tolist() == kept and large.capacity == len(kept) + 5
    large.add(episode(700, 4, True))
    large.save(tmp_path / "large.safetensors")
    again = Replay.opened(tmp_path / "large.safetensors", LAYOUT, gamma=GAMMA, whole=True)
    for memory in (large, again):
        assert sorted(memory.states[:, 0].tolist()) == [*kept, 700, 701, 702, 703]
        memory.add(episode(800, 3, False))
        assert sorted(memory.states[:, 0].tolist())[:2] == kept[2:4]
    assert same(large.draw(64, 3, steps=3), again.draw(64, 3, steps=3))
