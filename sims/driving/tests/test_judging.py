"""Reward, success and failure: published values, and states worked out by hand."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch
from mmrl_driving.judging import judge, kept, located, pace, swing
from mmrl_driving.scene import HISTORY
from mmrl_driving.settings import COURSES, checked
from mmrl_driving.spawn import spawn

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "vlm-rl.jsonl"
OPTIONS = {"obs": "state", "size": 16, "cameras": ("top",), "traffic": 0, "templates": 3, "horizon": None}


def judged(task, route, x, y, direction=1.5707964, first=0.0, **others):
    """The judgement of one state."""
    options = checked(**OPTIONS | {"task": task})
    scene = spawn(options, torch.tensor([1]), None)
    scene = dataclasses.replace(
        scene, car=torch.tensor([[x, y, direction, 6.0]]), route=torch.tensor([route]), first=torch.tensor([first]), **others
    )
    return judge(scene, options, located(scene, options)[1])


def test_the_own_reward_is_the_published_one() -> None:
    rows = [row for line in GOLDEN.read_text().splitlines() if (row := json.loads(line))["of"] == "own"]
    course = COURSES["crossing"]
    options = checked(**OPTIONS | {"task": "crossing"})
    scene = spawn(options, torch.arange(len(rows)), None)
    histories = [row["history"][::-1] for row in rows]
    scene.aside = torch.tensor([h + [0.0] * (HISTORY - len(h)) for h in histories])
    scene.steps = torch.tensor([len(h) for h in histories])
    distance, angle = torch.tensor([h[0] for h in histories]), torch.tensor([row["angle"] for row in rows])
    speed = torch.tensor([row["speed"] for row in rows]) / 3.6
    centred, aligned, stable = kept(course, distance, angle, swing(scene))
    paid = pace(course, speed) * centred * aligned * stable
    ended = torch.tensor([row["ended"] for row in rows])
    found = torch.where(ended, -10.0, paid)
    assert found.tolist() == pytest.approx([row["reward"] for row in rows], abs=2e-6)
    assert 0 < ended.sum() < 15 and len(rows) == 60 and (found > 0.1).sum() > 15 and (found == 0).any()


def test_a_failure_costs_ten() -> None:
    """More than 3 m from the named way, or in another car; and it isn't forgotten."""
    fine, lost = judged("crossing", 1, 1.75, -20.0), judged("crossing", 1, 4.8, -20.0)
    assert not fine.failed_N and fine.reward_N > 0.5 and lost.failed_N and lost.reward_N == -10
    assert fine.parts["unharmed"] == 1 and lost.parts["unharmed"] == 0
    assert judged("crossing", 1, 1.75, -20.0, failed=torch.tensor([True])).failed_N
    other = torch.zeros(1, 2, 5)
    other[0, 0, :3] = torch.tensor([1.75, -17.0, 0.0])
    assert judged("crossing", 1, 1.75, -20.0, others=other, present=torch.tensor([[True, False]])).failed_N
    assert not judged("crossing", 1, 1.75, -20.0, others=other, present=torch.tensor([[False, False]])).failed_N


def test_the_named_way_counts() -> None:
    """On the western road, 30 m from the crossing: the end of a left turn, and off every other way."""
    west = {"x": -30.0, "y": 1.75, "direction": 3.1415927}
    left = judged("crossing", 0, **west, first=-20.0)
    assert left.success_N and left.parts["progress"] == 1 and left.parts["aligned"] > 0.999 and left.parts["centred"] > 0.999
    for other in (1, 2):
        assert judged("crossing", other, **west).failed_N
    assert not judged("crossing", 0, **west, first=4.0).success_N, "it began nearer to the end"


def test_a_motorway_ends_well_in_the_named_lane() -> None:
    assert judged("motorway", 2, 3.0, 121.0).success_N and not judged("motorway", 2, 3.0, 119.0).success_N
    away = judged("motorway", 0, 3.0, 121.0)
    assert not away.success_N and not away.failed_N and away.parts["centred"] == pytest.approx(1 - 6.5 / 9)
    assert judged("motorway", 0, 5.3, 60.0).failed_N


def test_swinging_is_a_standard_deviation_of_what_was_driven() -> None:
    scene = spawn(checked(**OPTIONS | {"task": "crossing"}), torch.arange(2), None)
    assert swing(scene).tolist() == [0, 0]
    scene.steps = torch.tensor([3, 40])
    scene.aside[:, :3] = torch.tensor([3.0, 1.0, 2.0])
    assert swing(scene).tolist() == pytest.approx([(2 / 3) ** 0.5, (14 / 30 - (6 / 30) ** 2) ** 0.5])
