"""Starts, words and judgements, worked out by hand; and the expert's success."""

import pytest
import torch
from mmrl_mjx.models import CUBE
from mmrl_mjx.tasks import TASKS, Scene, instruction, judge, order, start


def scene(grip, things, gap=0.08, closed=False, angles=()) -> Scene:
    """One state."""
    return Scene(
        grip=torch.tensor([grip]),
        gap=torch.tensor([gap]),
        closed=torch.tensor([closed]),
        things=torch.tensor([things]),
        angles=torch.tensor([angles]),
        hinges=torch.zeros(1, len(angles), 3),
    )


def test_every_thing_is_named_in_every_order() -> None:
    orders = order(TASKS["stack"], torch.arange(600))
    count = {tuple(row): 0 for row in orders.tolist()}
    for row in orders.tolist():
        count[tuple(row)] += 1
    assert len(count) == 6 and min(count.values()) > 60
    assert instruction(TASKS["stack"], [2, 0, 1]) == "stack the blue cube on the red cube"


def test_cubes_start_apart_on_the_table() -> None:
    qpos = start(TASKS["pick"], torch.arange(500))["qpos"][:, 9:].view(500, 3, 7)
    assert torch.equal(qpos[..., 2], torch.full((500, 3), CUBE))
    for a, b in ((0, 1), (0, 2), (1, 2)):
        assert (qpos[:, a, 1] - qpos[:, b, 1]).abs().min() > 2 * 1.42 * CUBE, "their diagonals don't meet"
    assert (qpos[..., 3:].norm(dim=-1) - 1).abs().max() < 1e-6
    places = qpos[..., 1].argsort(1)
    assert len({tuple(row) for row in places.tolist()}) == 6


def test_a_ball_is_reached_within_three_centimetres() -> None:
    balls = [[0.5, 0.0, 0.2], [0.5, 0.2, 0.2], [0.5, -0.2, 0.2]]
    there, away = (judge("reach", scene([0.5, 0.0, z], balls)) for z in (0.225, 0.3))
    assert there.success_N.tolist() == [True] and away.success_N.tolist() == [False]
    assert away.parts["reached"].item() == pytest.approx(0.5) and away.dense_N.item() == pytest.approx(0.25)
    assert there.dense_N.item() == pytest.approx(0.5 / 1.25 + 0.5)
    assert not judge("reach", scene([0.5, 0.2, 0.2], balls)).success_N, "that is another ball"


def test_a_cube_is_picked_up_where_it_is_high_and_held() -> None:
    others = [[0.5, 0.2, 0.02], [0.5, -0.2, 0.02]]
    held = judge("pick", scene([0.5, 0.0, 0.15], [[0.5, 0.0, 0.15], *others], gap=0.04, closed=True))
    assert held.success_N and held.dense_N == 1 and held.parts["lifted"] == 1
    low = judge("pick", scene([0.5, 0.0, 0.07], [[0.5, 0.0, 0.07], *others], gap=0.04, closed=True))
    assert not low.success_N and low.parts["lifted"].item() == pytest.approx(0.5) and low.parts["grasped"] == 1
    for broken in ({"gap": 0.08, "closed": False}, {"gap": 0.0, "closed": True}):
        thrown = judge("pick", scene([0.5, 0.0, 0.15], [[0.5, 0.0, 0.15], *others], **broken))
        assert not thrown.success_N and thrown.parts["grasped"] == 0, "nothing is between the fingers"


def test_a_cube_is_stacked_where_it_was_let_go() -> None:
    things = [[0.5, 0.0, 0.06], [0.5, 0.005, 0.02], [0.5, -0.2, 0.02]]
    assert judge("stack", scene([0.5, 0.0, 0.09], things)).success_N
    assert not judge("stack", scene([0.5, 0.0, 0.06], things, gap=0.04, closed=True)).success_N, "it is held"
    for moved in ([0.5, 0.03, 0.06], [0.5, 0.0, 0.08], [0.5, 0.0, 0.02]):
        assert not judge("stack", scene([0.5, 0.0, 0.12], [moved, *things[1:]])).success_N


def test_a_door_is_open_from_forty_six_degrees() -> None:
    handles = [[0.6, 0.1, 0.27], [0.6, -0.1, 0.27]]
    half = judge("door", scene([0.6, 0.1, 0.17], handles, angles=[0.4, 1.0]))
    assert not half.success_N and half.parts["opened"].item() == pytest.approx(0.5), "the other door doesn't count"
    assert half.dense_N.item() == pytest.approx(0.3 * 0.5 + 0.4 * 0.5)
    assert judge("door", scene([0.6, 0.1, 0.17], handles, angles=[0.81, 0.0])).success_N


@pytest.mark.parametrize(
    "task", [*("reach", "pick"), *(pytest.param(task, marks=pytest.mark.slow) for task in ("stack", "door"))]
)
def test_the_expert_does_nine_of_ten(arms, task: str) -> None:
    simulator = arms(task, 10)
    simulator.reset(torch.arange(1000, 1010))
    solved = torch.zeros(10, dtype=torch.bool)
    for _ in range(simulator.max_steps):
        solved |= simulator.step(simulator.expert(), ~solved).success_N & ~solved
        if solved.all():
            break
    assert solved.sum() >= 9


def test_pay_is_dense_or_sparse(arms) -> None:
    """In the same states: 0 or 1 instead of progress."""
    paid = {}
    for reward in ("dense", "sparse"):
        simulator = arms("reach", 2, reward=reward)
        simulator.reset(torch.tensor([3, 4]))
        paid[reward] = torch.stack(
            [simulator.step(simulator.expert(), torch.ones(2, dtype=torch.bool)).reward_N for _ in range(12)]
        )
    assert paid["sparse"].unique().tolist() == [0.0, 1.0]
    assert ((paid["dense"] > 0.8) == (paid["sparse"] == 1)).all() and len(paid["dense"].unique()) > 10
