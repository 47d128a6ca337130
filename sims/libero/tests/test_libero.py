"""LIBERO as it is published: starts, instructions, pictures, actions, success; what repeats; what is lost and what is refused."""

import math
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import mmrl_libero
import numpy
import pytest
import torch
from mmrl_libero.suites import SUITES

from mmrl import UserError

SPECS = {spec.id.partition("/")[2]: spec for spec in mmrl_libero.mmrl_simulators()}
BOTH, BLIND = torch.tensor([True, True]), {"cameras": ()}
BARE = Path(__file__).with_name("bare.py")
slow = partial(pytest.param, marks=pytest.mark.slow)


def actions(steps, seed=0):
    return torch.rand(steps, 7, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def played(simulator, seeds, steps, env_ids=None):
    """All that is seen from a reset on: states and pictures of each step."""
    shown = [simulator.reset(torch.tensor(seeds), env_ids)]
    for action in actions(steps):
        shown.append(
            simulator.step(action.expand(simulator.num_envs, -1), torch.ones(simulator.num_envs, dtype=torch.bool)).observation
        )
    return shown


def task_files(python, suite):
    """[bddl, states] of a suite's first task, as the interpreter with LIBERO finds them."""
    place = Path(mmrl_libero.__file__).parent
    code = "import packages as p, sys; task = p.tasks(p.find(), sys.argv[1])[0]; print(task.bddl, task.states)"
    done = subprocess.run([python or sys.executable, "-c", code, suite], capture_output=True, text=True, check=True, cwd=place)
    return done.stdout.split()


def bare(python, folder, simulator, task, state, made, control):
    """What a bare environment of LIBERO-Goal shows, with robosuite's own actions."""
    numpy.save(folder / "actions.npy", made.numpy())
    files = [folder / "actions.npy", folder / "seen.npz"]
    command = [python or sys.executable, BARE, "libero_goal", str(task), str(state), "64", *files, control]
    subprocess.run(command, check=True, capture_output=True, timeout=300, env={**os.environ, **simulator.rendering.environment})
    return numpy.load(folder / "seen.npz")


def equal(first, second, row=0):
    for one, other in zip(first, second, strict=True):
        assert torch.equal(one.state[row], other.state[row])
        assert all(torch.equal(one.images[name][row], other.images[name][row]) for name in one.images)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("pictures")
def test_it_shows_bit_for_bit_what_the_published_evaluation_sees(made, python, tmp_path):
    """A bare environment, in the order of calls of OpenVLA's and openpi's evaluations: seed, reset, set_init_state, ten steps."""
    simulator = made(SPECS["goal"], 1, size=64)
    task, state = 1, 7
    shown = played(simulator, [task + 10 * state], 6)
    seen = bare(python, tmp_path, simulator, task, state, actions(6), "delta")
    assert str(seen["language"]) == shown[0].instructions[0] == "put the bowl on the stove"
    for step, each in enumerate(shown):
        for camera, name in (("agentview", "agentview_image"), ("wrist", "robot0_eye_in_hand_image")):
            assert (each.images[camera][0].numpy() == seen[name][step][::-1, ::-1]).all()
        assert (each.state[0, :3].numpy() == seen["robot0_eef_pos"][step].astype("float32")).all()
        assert (each.state[0, 6:].numpy() == seen["robot0_gripper_qpos"][step].astype("float32")).all()


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("pictures")
def test_poses_are_commanded_as_in_the_published_evaluation_of_x_vla(made, python, tmp_path):
    """`use_delta = False` of robosuite's controller after settling, its own pose as the state, the wrist's pictures as they come
    (2toINF/X-VLA, evaluation/libero/libero_client.py)."""
    simulator = made(SPECS["goal"], 1, size=64, control="absolute", rotate=["agentview"])
    shown = [simulator.reset(torch.tensor([71]))]
    away = torch.tensor([0.05, -0.03, 0.02, 0.1, 0.0, -0.2])
    asked = [torch.cat([shown[0].state[0, :6] + away * (i + 1) / 6, torch.tensor([1.0 - 2 * (i < 3)])]) for i in range(6)]
    units = torch.tensor(simulator.action.units)
    for action in asked:
        shown.append(simulator.step((action / units)[None], torch.tensor([True])).observation)
    seen = bare(python, tmp_path, simulator, 1, 7, torch.stack(asked), "absolute")
    for step, each in enumerate(shown):
        assert (each.images["agentview"][0].numpy() == seen["agentview_image"][step][::-1, ::-1]).mean() > 0.99
        assert (each.images["wrist"][0].numpy() == seen["robot0_eye_in_hand_image"][step]).mean() > 0.99
        numpy.testing.assert_allclose(each.state[0, :3], seen["places"][step], atol=1e-5)
        turn = torch.tensor(seen["turns"][step])
        angle = math.acos(min(1.0, max(-1.0, (float(turn.trace()) - 1) / 2)))
        assert abs(each.state[0, 3:6].norm() - angle) < 1e-4
        numpy.testing.assert_allclose(turn @ each.state[0, 3:6].double(), each.state[0, 3:6], atol=1e-4, err_msg="the axis stays")
    reached = (shown[-1].state[0, :3] - shown[0].state[0, :3]) @ away[:3] / (away[:3] @ away[:3])
    assert reached > 0.3
    before = simulator.reset(torch.tensor([71])).state
    assert torch.equal(before, shown[0].state), "settling is as without absolute actions"
    for _ in range(5):
        told = simulator.expert()
        after = simulator.step(told, torch.tensor([True])).observation.state
    delta = made(SPECS["goal"], 1, **BLIND)
    delta.reset(torch.tensor([71]))
    for _ in range(5):
        wanted = delta.step(delta.expert(), torch.tensor([True])).observation.state
    assert (after[0, 6:] - wanted[0, 6:]).abs().max() < 1e-3, "the fingers"
    rise = (wanted - delta.reset(torch.tensor([71])).state)[0, 2]
    assert abs((after - before)[0, 2] - rise) < 0.01, "states are of two frames, that rise alike"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("pictures")
def test_an_episode_repeats_whatever_was_played_before_and_beside_it(made):
    """Pixels included: again in the same scene, after another task's, with a neighbour that is reset in between, and in a fresh
    process."""
    simulator = made(SPECS["spatial"], 2, size=64)
    first = played(simulator, [13, 4], 10)
    equal(first, played(simulator, [13, 4], 10))
    simulator.reset(torch.tensor([8, 9]))  # other tasks: scenes are built anew
    again = [simulator.reset(torch.tensor([13, 9]))]
    for number, action in enumerate(actions(10)):
        if number == 5:
            simulator.reset(torch.tensor([19]), torch.tensor([1]))
        again.append(simulator.step(action.expand(2, -1), BOTH).observation)
    equal(first, again)
    other = made(SPECS["spatial"], 1, size=64, task=3, timeout_s=60.0)
    equal(first, played(other, [1], 10))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_resets_and_two_hundred_steps_are_bit_equal_twice_over(made):
    simulator = made(SPECS["object"], 2, **BLIND)
    seen = []
    for _ in range(2):
        rows = [simulator.reset(torch.tensor([number, 30 + number])).state for number in (0, 10, 20, 30, 40, 0, 50, 60, 70, 80)]
        rows += [simulator.step(action.expand(2, -1), BOTH).observation.state for action in actions(200)]
        seen.append(torch.stack(rows))
    assert torch.equal(*seen) and len(seen[0][:10, 0].unique(dim=0)) == 9


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("pictures")
def test_a_snapshot_has_the_same_future_elsewhere_too(made):
    """In mid-movement, a thing in the hand: the controller's goal, the gripper and the clocks of observations are in it."""
    simulator = made(SPECS["object"], 2, size=64, task=6)
    simulator.reset(torch.tensor([0, 3]))
    for _ in range(70):
        moved = simulator.step(simulator.expert(), BOTH)
    kept = simulator.snapshot(torch.tensor([0]))
    future = [simulator.step(action.expand(2, -1), BOTH).observation for action in actions(8)]
    shown = simulator.restore(torch.tensor([1]), kept)
    assert torch.equal(shown.state[0], moved.observation.state[0])
    assert all(torch.equal(shown.images[name][0], moved.observation.images[name][0]) for name in shown.images)
    elsewhere = [simulator.step(action.expand(2, -1), BOTH).observation for action in actions(8)]
    for one, other in zip(future, elsewhere, strict=True):
        assert torch.equal(one.state[0], other.state[1])
        assert all(torch.equal(one.images[name][0], other.images[name][1]) for name in one.images)


@pytest.mark.slow
def test_a_snapshot_of_another_task_brings_its_scene_and_words_with_it(made):
    simulator = made(SPECS["spatial"], 1, **BLIND)
    first = simulator.reset(torch.tensor([2]))
    kept = simulator.snapshot(torch.tensor([0]))
    other = simulator.reset(torch.tensor([5]))
    back = simulator.restore(torch.tensor([0]), kept)
    assert back.instructions == first.instructions != other.instructions and torch.equal(back.state, first.state)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_every_suite_is_whole_and_begins(made):
    for name, suite in SUITES.items():
        simulator = made(SPECS[name], 1, **BLIND)
        assert (simulator.action, simulator.max_steps) == (SPECS[name].action, suite.max_steps)
        assert {len(goals) for goals in simulator.goals.values()} == {suite.tasks}
        assert set(simulator.goals) == {"", *suite.variants}
        shown = simulator.reset(torch.tensor([suite.tasks - 1 + suite.tasks * 49]))
        moved = simulator.step(torch.zeros(1, 7), torch.tensor([True]))
        assert shown.instructions == [simulator.goals[""][-1]] and set(moved.parts) == {"goals"} and not moved.success_N.any()
        simulator.close()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_variants_of_pro_change_what_they_say_they_change(made):
    """Wordings and goals have words of their own; swapped places and other objects keep the words of the training task."""
    simulator = made(SPECS["spatial"], 1, **BLIND)
    base = simulator.reset(torch.tensor([0]))
    said = {name: simulator.reset(torch.tensor([0]), variant=name).instructions[0] for name in SPECS["spatial"].variants}
    assert said["pro.object"] == said["pro.swap"] == base.instructions[0]
    assert said["pro.language"].startswith("lift the black bowl") and "not between" in said["pro.task"]
    assert simulator.reset(torch.tensor([0])).instructions == base.instructions
    with pytest.raises(UserError, match=r"has no variant 'pro.luck': it has pro.language"):
        simulator.reset(torch.tensor([0]), variant="pro.luck")


@pytest.mark.slow
def test_units_and_gripper_are_what_they_say(made):
    """A step of 0.5 along each axis, held for five: the arm lags behind, as each step's goal is counted from where
    it is. The state has the hand's place, its turn and its two fingers."""
    simulator = made(SPECS["object"], 2, **BLIND, task=0)
    for axis in range(3):
        before = simulator.reset(torch.tensor([0, 0])).state
        asked = torch.zeros(2, 7)
        asked[:, axis], asked[:, 6] = 0.5, torch.tensor([-1.0, 1.0])
        for _ in range(5):
            after = simulator.step(asked, BOTH).observation.state
        moved = (after - before)[0, :3]
        assert 0.1 < moved[axis] / (5 * 0.5 * simulator.action.units[axis]) < 1.1 and moved.abs().argmax() == axis
    opening = after[:, 6] - after[:, 7]
    assert opening[0] > 0.075 and opening[1] < 0.06, "it closes above 0"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("suite,task", [("object", 0), ("object", 3), ("spatial", 0), ("goal", 7)])
def test_the_expert_succeeds_in_nine_of_ten_published_states(made, suite, task):
    simulator = made(SPECS[suite], 2, **BLIND, task=task)
    solved = []
    for state in range(0, 10, 2):
        simulator.reset(torch.tensor([state, state + 1]))
        won = torch.zeros(2, dtype=torch.bool)
        for _ in range(simulator.max_steps):
            moved = simulator.step(simulator.expert(), ~won)
            won |= moved.success_N
            if won.all():
                break
        assert (moved.parts["goals"][won] == 1).all()
        solved += won.tolist()
    assert sum(solved) >= 9, solved


@pytest.mark.slow
def test_the_state_can_have_the_places_of_things(made):
    """What the goal names, from the hand: the expert brings the hand to the first of them."""
    simulator = made(SPECS["goal"], 1, **BLIND, task=7, objects=True)
    begun = simulator.reset(torch.tensor([3])).state
    assert begun.shape == (1, 8 + 3) and begun[0, 8:10].norm() > 0.2
    for _ in range(20):
        seen = simulator.step(simulator.expert(), torch.tensor([True])).observation
    assert seen.state[0, 8:10].norm() < 0.1
    assert torch.allclose(seen.state[0, :3] + seen.state[0, 8:], begun[0, :3] + begun[0, 8:], atol=1e-3), "the stove stands"


@pytest.mark.slow
def test_a_process_that_dies_or_hangs_costs_its_episode(made):
    simulator = made(SPECS["object"], 2, **BLIND, task=0, timeout_s=10.0)
    start = simulator.reset(torch.tensor([1, 2])).state
    os.kill(simulator.workers.pid(0), signal.SIGKILL)
    os.kill(simulator.workers.pid(1), signal.SIGSTOP)
    with pytest.warns(UserWarning, match=r"libero .libero_object.: environment [01] was lost"):
        assert simulator.step(torch.zeros(2, 7), BOTH).lost_N.tolist() == [True, True]
    assert simulator.expert().tolist() == [[0.0] * 7] * 2 and simulator.workers.lost == 2
    assert torch.equal(simulator.reset(torch.tensor([1, 2])).state, start)
    assert not simulator.step(torch.zeros(2, 7), BOTH).lost_N.any()


@pytest.mark.slow
def test_actions_that_can_not_be_are_refused_and_cost_nothing(made):
    simulator = made(SPECS["object"], 2, **BLIND, task=0)
    before = simulator.reset(torch.tensor([1, 2])).state
    bad = torch.zeros(2, 7)
    bad[1, 6] = torch.nan
    for given, why in ((torch.zeros(2, 6), r"actions must be float32 \[2, 7\]"), (bad, "the action of environment 1 has NaN")):
        with pytest.raises(UserError, match=why):
            simulator.step(given, BOTH)
    unmoved = simulator.step(torch.zeros(2, 7), torch.tensor([False, False]))
    assert torch.equal(unmoved.observation.state, before) and simulator.workers.lost == 0


@pytest.mark.parametrize(
    "options,why",
    [
        ({"num_envs": 0}, "num_envs = 0 must be"),
        ({"size": 4}, "size = 4 must be a whole number of 8 to 1024"),
        ({"settling": -1}, "settling = -1 must be"),
        ({"max_steps": 0}, "max_steps = 0 must be"),
        ({"cameras": "wrist"}, "cameras = 'wrist' must be a list of agentview, wrist"),
        ({"cameras": ["front"]}, "must be a list of agentview, wrist"),
        ({"initial_states": []}, r"initial_states = \[\] must be a list of numbers from 0"),
        ({"initial_states": [-1]}, r"initial_states = \[-1\] must be"),
        ({"bddl": "a.bddl"}, "set suite, or bddl and states for a task of your own: one of the two"),
        ({"states": "a.npy"}, "states are those of a task of your own: set bddl too"),
        ({"suite": None}, "set suite, or bddl and states"),
        ({"objects": True}, "objects = true needs one task, as goals name different numbers of things: set task"),
        ({"python": "/no/such"}, "is no program"),
        slow({"task": 10}, "there is no task 10: give a number from 0 to 9, or a name such as pick_up"),
        slow({"task": "pick"}, "there is no task 'pick'"),
        slow({"suite": "libero_speed"}, "has no suite libero_speed"),
        slow({"initial_states": [50], "cameras": ()}, "initial_states has 50, and pick_up_.* has 50 states"),
        slow({"assets": "/no/such"}, "/no/such, which the option assets names for LIBERO's assets, is no folder"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(options, why, request):
    python = options.get("python") or (request.getfixturevalue("python") if "slow" in request.keywords else sys.executable)
    made = request.getfixturevalue("made") if "slow" in request.keywords else None
    with pytest.raises(UserError, match=why) as error:
        if made:
            made(SPECS["object"], options.pop("num_envs", 1), **{"rendering": "none", **options})
        else:
            from mmrl_libero.simulator import Libero

            wanted = {"num_envs": 1, "rendering": "none", **SPECS["object"].options, **options, "python": python}
            Libero(device="cpu", **wanted)
    assert "\n" not in str(error.value)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_states_and_files_of_another_task_are_refused(made, python, tmp_path):
    """A task of one's own: LIBERO's bddl with states of another scene, with text for a task, and with its own states."""
    files = {suite: task_files(python, f"libero_{suite}") for suite in ("goal", "object")}
    spec = SPECS["env"]
    with pytest.raises(
        UserError, match=r"an initial state of .* has \d+ numbers, and its scene \d+: the states are those of another"
    ):
        made(spec, 1, **BLIND, bddl=files["goal"][0], states=files["object"][1])
    (tmp_path / "task.bddl").write_text("put the bowl on the plate")
    with pytest.raises(UserError, match="is no task of LIBERO"):
        made(spec, 1, **BLIND, bddl=str(tmp_path / "task.bddl"), states=files["goal"][1])
    own = made(spec, 1, **BLIND, bddl=files["goal"][0], states=files["goal"][1])
    suite = made(SPECS["goal"], 1, **BLIND, task=0)
    assert torch.equal(own.reset(torch.tensor([4])).state, suite.reset(torch.tensor([4])).state)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["software", "gpu"])
def test_without_what_draws_it_is_said_what_is_missing(made, tmp_path, monkeypatch, way):
    """The libraries are planted: files without code, before the real ones. The child that tries them may do what it likes."""
    for name in ("libOSMesa.so", "libEGL.so"):
        for end in ("", ".0", ".1", ".6", ".8"):
            (tmp_path / f"{name}{end}").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    from mmrl.api.simulators import mujoco_rendering as rendering

    rendering._probe.cache_clear()
    try:
        with pytest.raises(
            UserError, match=r"libero can't render: (osmesa|egl) doesn't work .*: apt-get install libosmesa6"
        ) as error:
            made(SPECS["object"], 1, rendering=way)
    finally:
        rendering._probe.cache_clear()
    assert "\n" not in str(error.value)
