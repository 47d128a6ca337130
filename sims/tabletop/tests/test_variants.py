"""What each variant changes, and that training never shows it."""

from collections.abc import Callable

import pytest
import torch
from mmrl_tabletop import language
from mmrl_tabletop.settings import TASKS
from mmrl_tabletop.spawn import MOVE_AT, OUTER, TRAINING_TEXTURES
from mmrl_tabletop.table import Table
from mmrl_tabletop.things import MARK, PLATE, UNSEEN_COLOURS, UNSEEN_PLATES, UNSEEN_SHAPES, colour_ids, shape_ids

from mmrl import UserError

N = 512
STRANGE_SHAPES, STRANGE_COLOURS = set(shape_ids(UNSEEN_SHAPES)), set(colour_ids(UNSEEN_COLOURS))
STRANGE_PLATES = set(colour_ids(UNSEEN_PLATES))


def start(table: Callable[..., Table], variant: str | None = None, **options: object):
    one = table(N, **options)
    one._renderer = lambda scene: {}
    shown = one.reset(torch.arange(N), variant=variant)
    return one._scene, shown


@pytest.mark.parametrize("task", TASKS)
def test_training_shows_nothing_that_is_held_out(table: Callable[..., Table], task: str) -> None:
    every = {
        "colours": ("red", "green", "blue", "yellow", "purple", "turquoise"),
        "templates": 6,
        "textures": 6,
        "distractors": 3,
    }
    scene, shown = start(table, task=task, **every)
    assert not set(scene.shape.flatten().tolist()) & STRANGE_SHAPES
    assert not set(scene.colour.flatten().tolist()) & STRANGE_COLOURS
    assert set(scene.plate_kind.flatten().tolist()) <= {PLATE, MARK}
    assert not set(scene.plate_colour.flatten().tolist()) & STRANGE_PLATES
    assert set(scene.template.tolist()) == set(range(6)) and set(scene.texture.tolist()) == set(range(TRAINING_TEXTURES))
    assert (scene.objects[..., :2][scene.present].abs() <= 0.2701).all() and (scene.objects[:, 0, :2].abs() <= 0.2301).all()
    held_out = [t.split("{")[0] for t in language.TEMPLATES[task][1]]
    assert not any(text.startswith(h) for text in shown.instructions for h in held_out if len(h) > 4)


def test_unseen_objects(table: Callable[..., Table]) -> None:
    scene, shown = start(table, "semantic.object", task="stack")
    assert set(scene.shape[:, 0].tolist()) == STRANGE_SHAPES and set(scene.colour[:, 0].tolist()) == STRANGE_COLOURS
    assert not set(scene.shape[:, 1:].flatten().tolist()) & STRANGE_SHAPES
    named = {tuple(text.split()[2:4]) for text in shown.instructions if text.startswith("stack the ")}
    assert named == {(colour, shape) for colour in UNSEEN_COLOURS for shape in UNSEEN_SHAPES}


def test_unseen_receptacles(table: Callable[..., Table]) -> None:
    scene, shown = start(table, "semantic.receptacle", task="put-on")
    assert PLATE not in scene.plate_kind[:, 0].tolist() and set(scene.plate_colour[:, 0].tolist()) == STRANGE_PLATES
    assert {text.split()[-1] for text in shown.instructions if text.startswith(("put", "place"))} == {"tray", "mat"}
    beside, _ = start(table, "semantic.receptacle", task="pick")
    assert beside.plate_present[:, 0].all() and PLATE not in beside.plate_kind[:, 0].tolist()


@pytest.mark.parametrize("task", TASKS)
def test_unseen_instructions(table: Callable[..., Table], task: str) -> None:
    plain, shown = start(table, task=task, templates=6)
    scene, other = start(table, "semantic.instruction", task=task, templates=6)
    assert not set(shown.instructions) & set(other.instructions)
    assert len(set(scene.template.tolist())) == language.HELD_OUT
    assert torch.equal(plain.objects, scene.objects)


def test_distractors(table: Callable[..., Table]) -> None:
    plain, _ = start(table, task="put-on")
    scene, _ = start(table, "semantic.distractor-object", task="put-on")
    assert (scene.present.sum(1) == plain.present.sum(1) + 1).all()
    assert torch.equal(scene.objects[:, :2], plain.objects[:, :2])
    scene, _ = start(table, "semantic.distractor-receptacle", task="put-on")
    assert (scene.plate_present.sum(1) == 2).all() and (scene.plate_colour[:, 0] != scene.plate_colour[:, 1]).all()


def test_positions(table: Callable[..., Table]) -> None:
    scene, _ = start(table, "execution.position", task="stack")
    edge = scene.objects[:, :2, :2].abs().amax(-1)
    assert (edge >= OUTER[0] - 1e-6).all() and (edge <= OUTER[1] + 1e-6).all()
    assert (scene.objects[..., 3] >= 0.39).all()
    sides = scene.objects[:, 0, :2]
    assert all((sides[:, axis] * sign > 0.2).any() for axis in (0, 1) for sign in (-1, 1)), "all four sides"


def test_robot_poses(table: Callable[..., Table]) -> None:
    plain, _ = start(table)
    scene, _ = start(table, "execution.robot-pose")
    assert plain.gripper[:, :2].abs().max() <= 0.15 and (plain.gripper[:, 3:] == 0).all()
    assert (scene.gripper[:, :2].abs() >= 0.18).all() and (scene.gripper[:, 5].abs() >= 0.3).all()


def test_moved_goes_by_each_environments_own_steps(table: Callable[..., Table]) -> None:
    one = table(3)
    one.reset(torch.arange(3), variant="execution.moved")
    still, moved_at = torch.zeros(3, 7), {}
    for step in range(8):
        active = torch.tensor([True, step >= 2, step % 2 == 0])  # out of step with each other
        before = one._scene.objects[:, 0, :2].clone()
        one.step(still, active)
        for i in range(3):
            if not torch.equal(before[i], one._scene.objects[i, 0, :2]):
                moved_at[i] = (step, int(one._scene.steps[i]))
    assert moved_at == {0: (MOVE_AT - 1, MOVE_AT), 1: (MOVE_AT + 1, MOVE_AT), 2: (2 * MOVE_AT - 2, MOVE_AT)}


def test_moved_takes_it_from_the_hand(table: Callable[..., Table]) -> None:
    one = table(N)
    one._renderer = lambda scene: {}
    one.reset(torch.arange(N), variant="execution.moved")
    for _ in range(MOVE_AT):
        held = one._scene.held.clone()
        moved = one.step(one.expert(), torch.ones(N, dtype=torch.bool))
    assert (one._scene.held < 0).all() and not moved.success_N.any()
    assert held.shape == (N,)


@pytest.mark.parametrize(
    "variant", ["vision.images", "vision.texture-03", "vision.texture-05", "vision.whole-03", "vision.whole-05"]
)
def test_looks_change_nothing_else(table: Callable[..., Table], variant: str) -> None:
    (plain, shown), (scene, other) = start(table, textures=3), start(table, variant, textures=3)
    looks = {"texture", "overlay", "overlay_share", "overlay_whole"}
    for name, value in plain.as_mapping().items():
        assert name in looks or torch.equal(value, getattr(scene, name)), name
    assert shown.instructions == other.instructions
    assert (scene.texture >= TRAINING_TEXTURES).all() == (variant == "vision.images")
    if variant != "vision.images":
        assert (scene.overlay_share == (0.3 if variant.endswith("03") else 0.5)).all()
        assert scene.overlay_whole.all() == ("whole" in variant)


def test_a_texture_over_things_leaves_the_table(table: Callable[..., Table]) -> None:
    one = table(4, size=64)
    plain = one.reset(torch.arange(4)).images["front"]
    over = one.reset(torch.arange(4), variant="vision.texture-05").images["front"]
    whole = one.reset(torch.arange(4), variant="vision.whole-05").images["front"]
    assert 0.6 < (plain == over).all(-1).float().mean() < 0.97 and (plain == whole).all(-1).float().mean() < 0.05
    difference = (over != whole).all(-1)
    assert not (difference & (plain != over).any(-1)).any(), "where things are, both are alike"


@pytest.mark.parametrize("alike", [False, True])
def test_no_two_objects_are_alike(table: Callable[..., Table], alike: bool) -> None:
    for task in ("pick", "stack"):
        scene, _ = start(table, "semantic.distractor-object", task=task, distractors=4, alike=alike)
        code = scene.shape * 100 + scene.colour
        K = code.shape[1]
        same = (code[:, :, None] == code[:, None]) & ~torch.eye(K, dtype=torch.bool)
        assert not same.any()
    scene, _ = start(table, distractors=2, alike=alike)
    shared = (scene.colour[:, 0] == scene.colour[:, 1]) | (scene.shape[:, 0] == scene.shape[:, 1])
    assert (scene.colour[:, 0] == scene.colour[:, 1]).any() == alike and shared.any()


BAD = {
    "task": ("lift", "task: 'lift' is not one of reach"),
    "size": (8, "size = 8 must be a whole number of 16 to 1024"),
    "cameras": ((), "cameras = () must be a list of one or more different names"),
    "dims": (6, "dims: 6 is not one of 4, 7"),
    "distractors": (9, "distractors = 9 must be"),
    "shapes": (("cone",), "shapes: 'cone' is not one of cube, ball, cylinder"),
    "colours": (("red", "red"), "must be a list of one or more different names"),
    "templates": (0, "templates = 0 must be"),
    "textures": (7, "textures = 7 must be"),
    "step": (1, "step = 1 must be a number of 0.01 to 0.2"),
    "radius": (float("nan"), "radius = nan must be"),
    "light": ("bright", "light = 'bright' must be"),
    "noise": (-1, "noise = -1 must be"),
    "samples": (5, "samples: 5 is not one of"),
    "horizon": (0, "horizon = 0 must be"),
    "expert_slop": (2, "expert_slop = 2 must be"),
    "alike": (1, "alike: 1 is not one of False, True"),
}


@pytest.mark.parametrize("option", BAD)
def test_bad_options_are_one_line(table: Callable[..., Table], option: str) -> None:
    value, message = BAD[option]
    with pytest.raises(UserError) as raised:
        table(1, **{option: value})
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_options_that_do_not_fit_together(table: Callable[..., Table]) -> None:
    with pytest.raises(
        UserError, match="3 objects need as many pairs of a colour and a shape, but there are only 1 colours and 2 shapes"
    ):
        table(1, colours=("red",), shapes=("cube", "ball"))
    with pytest.raises(UserError, match="task = 'stack' needs a flat shape"):
        table(1, task="stack", shapes=("ball",))
    with pytest.raises(UserError, match="num_envs = 0 must be"):
        table(0)


def test_wrong_calls_are_refused(table: Callable[..., Table]) -> None:
    one = table(3)
    with pytest.raises(UserError, match=r"has no variant 'vision\.dark'"):
        one.reset(torch.arange(3), variant="vision.dark")
    with pytest.raises(UserError, match=r"the seeds of 3 environments must be int64 \[3\]"):
        one.reset(torch.arange(2))
    with pytest.raises(UserError, match="must be from 0 to 2: there are 3 environments"):
        one.reset(torch.arange(1), torch.tensor([3]))
    with pytest.raises(UserError, match=r"env_ids_n must be int64 \[n\] without repetitions"):
        one.reset(torch.arange(2), torch.tensor([1, 1]))
    with pytest.raises(UserError, match="the action of environment 1 has NaN"):
        one.step(torch.tensor([[0.0] * 7, [float("nan")] * 7, [0.0] * 7]), torch.ones(3, dtype=torch.bool))
    with pytest.raises(UserError, match=r"actions must be float32 \[3, 7\]"):
        one.step(torch.zeros(3, 4), torch.ones(3, dtype=torch.bool))
    with pytest.raises(UserError, match=r"active must be bool \[3\]"):
        one.step(torch.zeros(3, 7), torch.ones(3))
    with pytest.raises(UserError, match="the state doesn't fit 3 environments of this table"):
        one.restore(torch.arange(3), table(3, task="stack").snapshot(torch.arange(3)))
    one.close()
    one.close()
    with pytest.raises(UserError, match="this table is closed"):
        one.reset(torch.arange(3))
