"""Motion, routes and collisions, against slow references and published code."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from mmrl_driving.motion import BASE, LENGTH, WIDTH, bicycle, collided, driven_on, steered
from mmrl_driving.routes import CORNER, LANE, Routes, is_marked, is_road
from mmrl_driving.settings import checked
from mmrl_driving.spawn import spawn

GOLDEN = Path(__file__).parents[3] / "tests" / "golden" / "highway-env.jsonl"
OPTIONS = {"obs": "state", "size": 16, "cameras": ("top",), "traffic": 4, "templates": 3, "horizon": None}


def scene(n: int, task: str = "crossing", **options):
    return spawn(checked(**OPTIONS | {"task": task} | options), torch.arange(n), None)


def test_the_car_moves_as_that_of_highway_env() -> None:
    rows = [json.loads(line) for line in GOLDEN.read_text().splitlines()]
    x, y, direction, speed = torch.tensor([row["before"] for row in rows]).unbind(1)
    slip = torch.tensor([row["slip"] for row in rows]).sin()
    found = torch.stack(bicycle(x, y, direction, speed, slip, rows[0]["dt"]), 1)
    wanted = torch.tensor([row["after"] for row in rows])
    wanted[:, 2] = (wanted[:, 2] + math.pi) % (2 * math.pi) - math.pi
    assert len(rows) == 30 and (found - wanted).abs().max() < 2e-5


def test_an_action_is_what_the_page_says() -> None:
    """At 5 m/s the tightest turn has a curvature of 0.23 / m, at 20 m/s 7 / 400; the pedal gives 3 m/s^2, and takes 6."""
    car = torch.tensor([[0.0, 0.0, 0.0, 5.0], [0.0, 0.0, 0.0, 20.0], [0.0, 0.0, 0.0, 20.0], [0.0, 0.0, 0.0, 0.5]])
    moved = steered(car, torch.tensor([1.0, 1.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 1.0, -1.0]), 20.3)
    turned = moved[:, 2] / 0.2
    assert turned[:2].tolist() == pytest.approx([5 * 0.23, 7 / 20], rel=1e-4) and turned[2:].abs().max() == 0
    assert moved[:, 3].tolist() == pytest.approx([5.0, 20.0, 20.3, 0.0]), "bounded by the fastest speed and by standing"
    assert steered(car[2:3], torch.zeros(1), torch.tensor([-0.5]), 99.0)[0, 3] == pytest.approx(20 - 0.6)
    assert moved[0, 1] > 0, "above 0 is left"
    slip = math.asin(0.23 * BASE / 2)
    centre = torch.tensor([-math.sin(slip), math.cos(slip)]) / 0.23  # across the way of the car's middle
    for _ in range(40):
        car = steered(car, torch.ones(4), torch.zeros(4), 99.0)
        assert abs(math.hypot(*(car[0, :2] - centre).tolist()) * 0.23 - 1) < 0.1, "it drives in a circle"


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2), st.floats(-30, 60), st.floats(-2.9, 2.9))
def test_a_point_beside_a_route_is_located_there(route: int, along: float, left: float) -> None:
    """Whatever way is driven, and however far aside; the direction is the tangent."""
    for task in ("crossing", "motorway"):
        routes = Routes(task, torch.tensor([route]))
        x, y, direction = (float(v) for v in routes.points(torch.tensor([[along]])))
        place = routes.locate(torch.tensor([x - left * math.sin(direction)]), torch.tensor([y + left * math.cos(direction)]))
        assert float(place.along) == pytest.approx(along, abs=2e-3) and float(place.left) == pytest.approx(left, abs=2e-3)
        assert math.cos(float(place.direction) - direction) == pytest.approx(1, abs=1e-6)
        there = routes.points(torch.tensor([[along + 0.01]]))
        assert float(there[0]) - x == pytest.approx(0.01 * math.cos(direction), abs=2e-4)
        assert float(there[1]) - y == pytest.approx(0.01 * math.sin(direction), abs=2e-4)


def test_routes_end_on_their_roads() -> None:
    """Right-hand traffic: the left turn ends on the northern half of the western road, the right turn on the southern half."""
    x, y, _ = Routes("crossing", torch.tensor([0, 1, 2])).points(torch.full((3, 1), 40.0))
    assert x[0] < -CORNER and y[0].item() == pytest.approx(LANE / 2, abs=1e-4)
    assert x[1].item() == pytest.approx(LANE / 2) and y[1].item() == pytest.approx(40 - CORNER)
    assert x[2] > CORNER and y[2].item() == pytest.approx(-LANE / 2, abs=1e-4)
    along = torch.linspace(-20, 60, 200).expand(3, -1)
    px, py, _ = Routes("crossing", torch.tensor([0, 1, 2])).points(along)
    assert is_road("crossing", px, py).all() and not is_road("crossing", px + 60, py + 60).any()
    lanes = Routes("motorway", torch.tensor([0, 1, 2]))
    assert lanes.x.tolist() == [-LANE, 0, LANE]


def test_marks_are_where_they_belong() -> None:
    x, y = torch.tensor([0.0, 0.0, 2.0, -2.0, 0.0]), torch.tensor([-14.0, 0.0, -8.3, -8.3, -13.0])
    assert is_marked("crossing", x, y).tolist() == [True, False, True, False, True], "a stop line is on its own half"
    x, y = torch.tensor([1.5 * LANE, LANE / 2, LANE / 2, 0.0]), torch.tensor([5.0, 1.0, 5.0, 1.0])
    assert is_marked("motorway", x, y).tolist() == [True, True, False, False]


def overlap(a: np.ndarray, b: np.ndarray) -> bool:
    """Of two rectangles x, y, direction, by points in a grid on the first."""
    along, aside = np.meshgrid(np.linspace(-LENGTH / 2, LENGTH / 2, 60), np.linspace(-WIDTH / 2, WIDTH / 2, 40))
    px = a[0] + along * math.cos(a[2]) - aside * math.sin(a[2]) - b[0]
    py = a[1] + along * math.sin(a[2]) + aside * math.cos(a[2]) - b[1]
    ahead, left = px * math.cos(b[2]) + py * math.sin(b[2]), py * math.cos(b[2]) - px * math.sin(b[2])
    return bool(((abs(ahead) < LENGTH / 2) & (abs(left) < WIDTH / 2)).any())


def test_collisions_are_those_of_the_rectangles() -> None:
    found, rng = scene(400), np.random.default_rng(0)
    mine = np.stack([np.zeros(400), np.zeros(400), rng.uniform(-3, 3, 400)], 1)
    theirs = np.stack([rng.uniform(-5, 5, 400), rng.uniform(-5, 5, 400), rng.uniform(-3, 3, 400)], 1)
    found.car[:, :3] = torch.tensor(mine)
    found.others[:, 0, :3] = torch.tensor(theirs)
    found.others[:, 1:, 0] = 1000.0
    wanted = [overlap(a, b) for a, b in zip(mine, theirs, strict=True)]
    assert 100 < sum(wanted) < 300
    differ = np.array(wanted) != collided(found).numpy()
    assert differ.sum() <= 6, "corners that barely touch fall between the points of the grid"
    found.present = torch.zeros_like(found.present)
    assert not collided(found).any()


def test_other_cars_keep_their_speed_and_brake_for_what_is_ahead() -> None:
    found = scene(2, traffic=1)
    found.car[:, :2] = torch.tensor([[100.0, 0.0], [9.0, 0.5]])
    found.others[:, 0] = torch.tensor([0.0, 0.0, 0.0, 6.0, 8.0])
    found.others[:, 1:, 0] = 5.0  # places that are empty
    moved = driven_on(found)[:, 0]
    assert moved[0, 3] == pytest.approx(6.4) and moved[1, 3] == pytest.approx(6 - 1.2), "to its usual speed, or brakes"
    assert moved[0, 0] == pytest.approx(sum(0.05 * (6 + 0.1 * k) for k in range(1, 5)), abs=1e-4)
    assert moved[0, 1].abs() < 1e-4
    beside = found.rows(torch.tensor([1]))
    beside.car[:, 1] = 2.5
    assert driven_on(beside)[0, 0, 3] > 6, "what is in the next lane isn't ahead"
    assert math.isclose(BASE, 2.8)
