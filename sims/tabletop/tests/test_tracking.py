"""The reward by the object's pose relative to a demonstration's: published values, and episodes."""

import json
from pathlib import Path

import pytest
import torch
from mmrl_tabletop.table import Table
from mmrl_tabletop.tracking import keypoint_error, tracking_reward

from mmrl import UserError
from mmrl.testing.simulators import check_simulator

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "human2sim2robot.jsonl"
OPTIONS = {"tracking": True, "dims": 4, "shapes": ["cube"], "size": 16}


def test_rewards_are_the_published_ones() -> None:
    """Near and far from the goal, beyond the distance at which the reference waits, and with the gripper far away."""
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    pose, goal, distance, error, reward = (
        torch.tensor([row[name] for row in rows]) for name in ("pose", "goal", "distance", "error", "reward")
    )
    found = keypoint_error(pose, goal)
    assert len(rows) == 60 and (found - error).abs().max() < 3e-6
    assert (tracking_reward(found, distance, found > 0.2) - reward).abs().max() < 2e-5
    assert (reward == 0).sum() > 10 and ((reward > 0) & (error > 0.2)).any() and (reward > 0.5).any()


@pytest.mark.parametrize("task", ["pick", pytest.param("put-on", marks=pytest.mark.slow)])
def test_who_does_as_was_shown_is_paid_most(table, task: str) -> None:
    """The expert goes the same way, moment by moment; who stands still is paid for less and less."""
    one, on = table(32, task=task, **OPTIONS), torch.ones(32, dtype=torch.bool)
    one._renderer = lambda scene: {}
    one.reset(torch.arange(700, 732))
    start = one.snapshot(torch.arange(32))
    paid = {}
    for kind in ("expert", "still"):
        one.restore(torch.arange(32), start)
        rewards = []
        for _ in range(5):
            action = one.expert() if kind == "expert" else torch.zeros(32, 4)
            moved = one.step(action, on)
            rewards.append(moved.reward_N)
        paid[kind] = torch.stack(rewards)
        assert (kind, task) != ("expert", "pick") or moved.success_N.all()
    assert paid["expert"].median() > 0.98 and paid["expert"].min() > 0.5, "the turn of what is held may differ"
    assert paid["still"][-1].mean() < 0.6 < paid["expert"][-1].mean()
    assert (paid["expert"] <= 1).all()


def test_an_episode_begins_before_the_object_moves(table) -> None:
    one = table(64, task="pick", **OPTIONS)
    plain = table(64, task="pick", dims=4, shapes=["cube"])
    one.reset(torch.arange(64))
    plain.reset(torch.arange(64))
    assert torch.allclose(one._scene.objects[:, 0], plain._scene.objects[:, 0], atol=0.002) and (one._scene.held < 0).all()
    away = [(t._scene.gripper[:, :2] - t._scene.objects[:, 0, :2]).norm(dim=1) for t in (one, plain)]
    assert away[0].median() < 0.03 < away[1].median(), "the hand is where the demonstration's was"
    assert (one._scene.steps == 0).all() and (one._scene.phase == 1).all()
    assert one._scene.reference.shape == (64, 17, 4) and plain._scene.reference.shape == (64, 0, 4)
    assert torch.equal(one._scene.reference[:, 0], one._scene.objects[:, 0])
    assert (one._scene.reference[:, -1, 2] - one._scene.objects[:, 0, 2]).min() > 0.1, "it ends above the table"


def test_the_reference_waits_for_an_object_that_is_far_away(table) -> None:
    one, on = table(2, task="pick", **OPTIONS), torch.ones(2, dtype=torch.bool)
    one.reset(torch.arange(2))
    one._scene.reference = one._scene.reference.clone()
    one._scene.reference[0, :, 0] += 0.4
    one.step(torch.zeros(2, 4), on)
    assert one._scene.phase.tolist() == [1, 2]
    for _ in range(20):
        one.step(torch.zeros(2, 4), on)
    assert one._scene.phase[0] == 1 and one._scene.phase[1] <= 16


@pytest.mark.slow
@pytest.mark.parametrize("task", ["pick", "stack"])
def test_conformance(task: str) -> None:
    import mmrl_tabletop

    (spec,) = mmrl_tabletop.mmrl_simulators()
    report = check_simulator(spec, Table, options=OPTIONS | {"task": task, "shapes": ["cube", "cylinder"]})
    assert report.ok, str(report)


@pytest.mark.parametrize("options", [{"task": "reach"}, {"expert_slop": 0.5}])
def test_what_cannot_be_tracked_is_refused(table, options: dict) -> None:
    with pytest.raises(UserError, match="tracking needs a task that moves an object, and an expert without slop"):
        table(1, **OPTIONS | options)
    with pytest.raises(UserError, match="tracking: 'yes' is not one of False, True"):
        table(1, tracking="yes")
