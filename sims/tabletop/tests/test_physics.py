"""Contact: what is pushed, grasped, carried, dropped, stacked, and lost."""

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from mmrl_tabletop.scene import REACH, TIP
from mmrl_tabletop.table import Table
from mmrl_tabletop.things import SHAPES, shape_ids

from mmrl.api.simulators.reproducible import sin_cos, wrapped

CUBE, BALL, CYLINDER = shape_ids(("cube", "ball", "cylinder"))
R = 0.07


def scene_of(table: Table, objects: list[tuple[int, float, float]], gripper: tuple[float, float, float], plates=()) -> None:
    """One environment with these objects (shape, x, y) on the table and the gripper somewhere, open."""
    scene = table._scene
    K, P = scene.shape.shape[1], scene.plates.shape[1]
    shapes = torch.tensor([[o[0] for o in objects] + [CUBE] * (K - len(objects))])
    rows = [[x, y, SHAPES[shape].half[2] * R, 0.0] for shape, x, y in objects]
    rows += [[9.0 + i, 9.0, 0.0, 0.0] for i in range(K - len(objects))]
    spots = [list(p) for p in plates] + [[-9.0 - i, 9.0] for i in range(P - len(plates))]
    table._scene = replace(
        scene,
        objects=torch.tensor([rows]),
        shape=shapes,
        present=torch.arange(K)[None] < len(objects),
        gripper=torch.tensor([[*gripper, 0.0, 0.0, 0.0]]),
        plates=torch.tensor([spots]),
        plate_present=torch.arange(P)[None] < len(plates),
    )


def act(table: Table, x: float = 0.0, y: float = 0.0, z: float = 0.0, grip: float = -1.0, yaw: float = 0.0, times: int = 1):
    for _ in range(times):
        moved = table.step(torch.tensor([[x, y, z, 0.0, 0.0, yaw, grip]]), torch.ones(1, dtype=torch.bool))
    return moved


@pytest.fixture
def one(table: Callable[..., Table]) -> Table:
    made = table(1, task="stack", distractors=2)
    made.reset(torch.tensor([1]))
    return made


def place(table: Table, k: int = 0) -> list[float]:
    return table._scene.objects[0, k, :3].tolist()


def test_grasp_carry_and_drop(one: Table) -> None:
    scene_of(one, [(CUBE, 0.0, 0.0), (CYLINDER, 0.25, 0.2)], (0.01, 0.0, 0.055))
    moved = act(one, grip=1)
    assert moved.parts["grasped"][0] == 1 and place(one)[0] == pytest.approx(0.01), "the jaw centres it"
    moved = act(one, z=1, grip=1, times=2)
    assert place(one)[2] == pytest.approx(0.78 * R + 0.2, abs=1e-5) and moved.parts["lifted"][0] == 1
    act(one, x=-1, y=0.5, grip=1)
    assert place(one)[:2] == pytest.approx([-0.09, 0.05], abs=1e-5)
    moved = act(one, grip=-1)
    assert place(one) == pytest.approx([-0.09, 0.05, 0.78 * R], abs=1e-5) and moved.parts["grasped"][0] == 0


def test_held_counts_steps_in_a_row(one: Table) -> None:
    scene_of(one, [(CUBE, 0.0, 0.0), (CYLINDER, 0.25, 0.2)], (0.0, 0.0, 0.055))
    held = [act(one, grip=1).parts["held"][0].item() for _ in range(6)]
    assert held == [0, 0, 0, 0, 1, 1]
    assert act(one, grip=-1).parts["held"][0] == 0
    assert act(one, grip=1).parts["held"][0] == 0


@pytest.mark.parametrize("gripper", [(0.12, 0.0, 0.055), (0.0, 0.06, 0.055), (0.0, 0.0, 0.19)])
def test_too_far_to_grasp(one: Table, gripper: tuple[float, float, float]) -> None:
    scene_of(one, [(CUBE, 0.0, 0.0), (CYLINDER, 0.25, 0.25)], gripper)
    assert act(one, grip=1).parts["grasped"][0] == 0


def test_a_closed_gripper_must_open_first(one: Table) -> None:
    scene_of(one, [(CUBE, 0.0, 0.0), (CYLINDER, 0.25, 0.2)], (0.0, 0.0, 0.3))
    act(one, grip=1)
    act(one, z=-1, grip=1, times=4)
    assert one._scene.gripper[0, 2] >= 2 * 0.78 * R + TIP - 1e-5, "its fingers stand on the cube"
    assert act(one, grip=1).parts["grasped"][0] == 0


def test_pushing(one: Table) -> None:
    scene_of(one, [(CYLINDER, 0.0, 0.0), (CUBE, 0.2, 0.0), (CUBE, -0.3, 0.3)], (-0.15, 0.0, 0.05))
    act(one, grip=1)
    act(one, x=1, grip=1, times=2)
    x, y, z = place(one)
    assert x > 0.08 and abs(y) < 1e-4 and z == pytest.approx(0.85 * R)
    assert place(one, 1)[0] > 0.2, "what it meets is pushed on"
    assert place(one, 2)[:2] == pytest.approx([-0.3, 0.3]), "what nothing touches stays"


def test_pushed_over_the_edge_is_lost(one: Table) -> None:
    scene_of(one, [(CYLINDER, 0.3, 0.0), (CUBE, -0.2, 0.0)], (0.15, 0.0, 0.05))
    act(one, grip=1)
    moved = [act(one, x=1, grip=1) for _ in range(3)]
    assert not moved[0].terminated_N[0] and moved[-1].terminated_N[0]
    assert not one._scene.present[0, 0] and not moved[-1].success_N[0]


def test_a_lost_distractor_ends_nothing(one: Table) -> None:
    scene_of(one, [(CYLINDER, -0.3, 0.0), (CUBE, -0.1, 0.2), (CUBE, 0.3, 0.0)], (0.15, 0.0, 0.05))
    act(one, grip=1)
    moved = act(one, x=1, grip=1, times=3)
    assert not one._scene.present[0, 2] and not moved.terminated_N[0]


@pytest.mark.parametrize("shape,stays", [(CUBE, True), (CYLINDER, True), (BALL, False)])
def test_stacking(one: Table, shape: int, stays: bool) -> None:
    base_top = 2 * SHAPES[shape].half[2] * R
    scene_of(one, [(CUBE, 0.0, 0.0), (shape, 0.2, 0.0)], (0.0, 0.0, 0.055))
    act(one, grip=1)
    act(one, z=1, grip=1, times=2)
    act(one, x=1, grip=1, times=2)
    act(one, z=-1, grip=1, times=3)
    assert place(one)[2] >= base_top + 0.78 * R - 0.005, "what is held doesn't go through what it comes down on"
    moved = act(one, grip=-1)
    assert bool(moved.success_N[0]) is stays
    if stays:
        assert place(one)[2] == pytest.approx(base_top + 0.78 * R, abs=1e-5)
    else:
        assert place(one)[2] == pytest.approx(0.78 * R) and overlap(one) < 0.002, "it rolls off, and lies beside"


def test_half_over_is_not_on_it(one: Table) -> None:
    scene_of(one, [(CUBE, 0.0, 0.0), (CYLINDER, 0.2, 0.0)], (0.0, 0.0, 0.055))
    act(one, grip=1)
    act(one, z=1, grip=1, times=2)
    act(one, x=0.7, grip=1, times=2)
    assert not act(one, grip=-1).success_N[0]
    assert place(one)[2] == pytest.approx(0.78 * R) and overlap(one) < 0.002


def test_what_stands_on_something_goes_with_it(one: Table) -> None:
    scene_of(one, [(CUBE, 0.0, 0.0), (CYLINDER, 0.0, 0.0)], (-0.2, 0.0, 0.05))
    one._scene.objects[0, 0, 2] = 2 * 0.85 * R + 0.78 * R
    act(one)
    assert one._scene.support[0, 0] == 1
    moved = act(one, x=1, grip=1, times=2)
    assert moved.success_N[0] and place(one, 1)[0] > 0.08
    assert 0 <= place(one)[0] - place(one, 1)[0] < 0.04, "the palm is a little wider than the fingers"
    assert act(one, x=-1, grip=1).success_N[0]


def test_onto_a_plate(table: Callable[..., Table]) -> None:
    one = table(1, task="put-on")
    scene_of(one, [(CUBE, 0.0, 0.0)], (0.0, 0.0, 0.055), plates=[(0.2, 0.0)])
    act(one, grip=1)
    act(one, z=1, grip=1)
    moved = act(one, x=1, grip=1, times=2)
    assert not moved.success_N[0], "above it is not on it"
    moved = act(one, grip=-1)
    assert moved.success_N[0] and moved.parts["placed"][0] == 1
    assert place(one)[2] == pytest.approx(0.014 + 0.78 * R, abs=1e-5)


def test_the_gripper_stays_in_reach(one: Table) -> None:
    act(one, x=1, y=1, z=1, times=12)
    assert one._scene.gripper[0, :3].tolist() == pytest.approx([REACH, REACH, 0.5])
    act(one, x=-1, y=-1, z=-1, times=14)
    assert one._scene.gripper[0, :2].tolist() == pytest.approx([-REACH, -REACH])


def test_turning_turns_what_is_held(one: Table) -> None:
    scene_of(one, [(CUBE, 0.0, 0.0), (CYLINDER, 0.25, 0.2)], (0.0, 0.0, 0.055))
    one._scene.objects[0, 0, 3] = 0.2
    act(one, grip=1)
    assert one._scene.objects[0, 0, 3].item() == pytest.approx(0, abs=1e-6), "a cube turns until its sides meet the fingers"
    act(one, yaw=1, grip=1, z=1, times=2)
    assert one._scene.gripper[0, 5].item() == pytest.approx(0.6) and one._scene.objects[0, 0, 3].item() == pytest.approx(0.6)


def overlap(table: Table) -> float:
    """Metres by which two objects of one height are inside each other, at most; over all environments."""
    scene, size = table._scene, table._contact.body(table._scene)
    away = (scene.objects[:, :, None, :2] - scene.objects[:, None, :, :2]).norm(dim=-1)
    inside = size.contact[:, :, None] + size.contact[:, None] - away
    level = (scene.objects[:, :, None, 2] - scene.objects[:, None, :, 2]).abs() < size.half[:, :, None] + size.half[
        :, None
    ] - 0.004
    both = scene.present[:, :, None] & scene.present[:, None] & level & ~torch.eye(away.shape[1], dtype=torch.bool)
    return float(torch.where(both, inside, 0).max())


def test_random_actions_break_nothing(table: Callable[..., Table]) -> None:
    """Nothing is NaN, nothing floats, nothing is deep in anything else."""
    many = table(256, task="stack", distractors=3)
    many._renderer = lambda scene: {}
    many.reset(torch.arange(256))
    generator = torch.Generator().manual_seed(1)
    deep = []
    for _ in range(60):
        moved = many.step(torch.rand(256, 7, generator=generator) * 2 - 1, torch.ones(256, dtype=torch.bool))
        scene, size = many._scene, many._contact.body(many._scene)
        assert scene.objects.isfinite().all() and moved.observation.state.isfinite().all()
        bottom = scene.objects[..., 2] - size.half
        held = torch.arange(scene.shape.shape[1]) == scene.held[:, None]
        free = scene.present & ~held
        assert (bottom[scene.present] > -1e-5).all()
        assert ((bottom[free] < 1e-5) | (scene.support[free] >= 0)).all(), "what nothing holds stands on something"
        below = scene.objects[..., 2].gather(1, scene.support.clamp(min=0)) + size.half.gather(1, scene.support.clamp(min=0))
        on = free & (scene.support >= 0)
        assert ((bottom - below)[on].abs() < 1e-5).all()
        deep.append(overlap(many))
    assert sorted(deep)[30] < 0.01 and max(deep) < 0.05


def test_starts_are_free_of_overlaps(table: Callable[..., Table]) -> None:
    for task in ("pick", "put-on", "push", "stack"):
        for distractors in (1, 4):
            many = table(512, task=task, distractors=distractors)
            many._renderer = lambda scene: {}
            for variant in (None, "semantic.distractor-object", "semantic.distractor-receptacle", "execution.position"):
                many.reset(torch.arange(512), variant=variant)
                assert overlap(many) < 0.001, (task, distractors, variant)


def test_sines() -> None:
    angles = torch.linspace(-20, 20, 4001)
    sin, cos = sin_cos(angles)
    assert (sin - angles.double().sin()).abs().max() < 1e-5 and (cos - angles.double().cos()).abs().max() < 1e-5
    assert (wrapped(angles).abs() <= 3.1416).all()


def test_reaching(table: Callable[..., Table]) -> None:
    one = table(1, task="reach")
    for gripper, reached in (
        ((0.0, 0.05, 0.12), True),
        ((0.0, 0.07, 0.12), False),
        ((0.0, -0.055, 0.15), True),
        ((0.0, 0.0, 0.18), False),
    ):
        scene_of(one, [(CUBE, 0.0, 0.0)], gripper)
        moved = act(one)
        assert bool(moved.success_N[0]) is reached and moved.parts["reached"][0] == reached, gripper


def test_a_pick_is_high_enough_from_10_cm_on(table: Callable[..., Table]) -> None:
    one = table(1, task="pick")
    scene_of(one, [(CUBE, 0.0, 0.0)], (0.0, 0.0, 0.055))
    act(one, grip=1)
    high = [act(one, z=0.3, grip=1) for _ in range(4)]
    assert [bool(m.success_N[0]) for m in high] == [False, False, False, True]
    assert [int(m.parts["lifted"][0]) for m in high] == [0, 1, 1, 1]
