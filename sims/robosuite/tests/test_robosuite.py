"""robosuite as it is published: pictures, numbers, rewards, actions; what comes back; demonstrations; what is refused."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import mmrl_robosuite
import numpy
import pytest
import torch
from mmrl_robosuite.environment import playback
from mmrl_robosuite.simulator import Robosuite
from mmrl_robosuite.tasks import TASKS

from mmrl import UserError

HERE = Path(__file__).parent
BLIND = {"cameras": ()}
slow = partial(pytest.param, marks=pytest.mark.slow)


def actions(steps, dims=7, seed=0):
    return torch.rand(steps, dims, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def stepped(simulator, action):
    return simulator.step(action.expand(simulator.num_envs, -1), torch.ones(simulator.num_envs, dtype=torch.bool))


def inside(python, *arguments):
    """What inside.py prints."""
    env = {**os.environ, "MUJOCO_GL": "osmesa"}
    command = [python or sys.executable, HERE / "inside.py", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("pictures")
def test_it_shows_bit_for_bit_what_robosuite_shows(made, python, tmp_path):
    simulator = made("lift", 1, size=32, state=["robot0_eef_pos", "object"], shaped=True)
    shown = [simulator.reset(torch.tensor([7]))]
    moved = [stepped(simulator, action) for action in actions(5)]
    shown += [each.observation for each in moved]
    numpy.save(tmp_path / "actions.npy", actions(5).numpy())
    files = [tmp_path / "actions.npy", tmp_path / "seen.npz"]
    command = [python or sys.executable, HERE / "bare.py", "7", "32", *files]
    subprocess.run(command, check=True, capture_output=True, timeout=300, env={**os.environ, **simulator.rendering.environment})
    seen = numpy.load(tmp_path / "seen.npz")
    for step, each in enumerate(shown):
        assert (each.images["agentview"][0].numpy() == seen["agentview_image"][step][::-1]).all(), "upright"
        assert (each.images["wrist"][0].numpy() == seen["robot0_eye_in_hand_image"][step][::-1]).all()
        both = numpy.concatenate([seen["robot0_eef_pos"][step], seen["object-state"][step]])
        assert (each.state[0].numpy() == both.astype("float32")).all()
    assert [float(each.reward_N) for each in moved] == seen["rewards"].astype("float32").tolist()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_future_comes_back_in_tasks_that_count_what_happened(python):
    """The markers of Wipe, nuts and their pegs; also in scenes that are built anew."""
    tasks = ("Wipe", "NutAssemblySquare")
    assert inside(python, "futures", *tasks) == {task: [True, True, True] for task in tasks}


@pytest.mark.slow
@pytest.mark.exhaustive  # a minute
@pytest.mark.timeout(600)
def test_the_expert_lifts_by_differences_and_by_poses(made):
    for control in ("delta", "absolute"):
        simulator = made("lift", 2, **BLIND, control=control)
        simulator.reset(torch.tensor([1, 2]))
        won = torch.zeros(2, dtype=torch.bool)
        for _ in range(60):
            won |= simulator.step(simulator.expert(), ~won).success_N
        assert won.all(), control


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "controller,control,dims,units",
    [("OSC_POSITION", "delta", 4, (0.05, 0.05, 0.05, 1.0)), ("JOINT_POSITION", "absolute", 8, (torch.pi,) * 7 + (1.0,))],
)
def test_controllers_have_actions_of_their_own(made, controller, control, dims, units):
    simulator = made("lift", 1, **BLIND, controller=controller, control=control, state=["robot0_joint_pos", "robot0_eef_pos"])
    action = simulator.action
    assert (action.dims, action.gripper) == (dims, dims - 1) and action.units == pytest.approx(units)
    before = simulator.reset(torch.tensor([0])).state
    asked = torch.zeros(dims)
    if control == "absolute":
        asked[:7] = before[0, :7] / torch.pi
        asked[0] += 0.1 / torch.pi
    else:
        asked[2] = -0.5
    for _ in range(12):
        after = stepped(simulator, asked).observation.state
    moved = (after - before)[0]
    if control == "absolute":
        assert abs(moved[0] - 0.1) < 0.03 and moved[1:7].abs().max() < 0.05, "one joint turns to its angle, the others stay"
    else:
        assert moved[9] < -0.05 and moved[7:9].abs().max() < 0.01, "the hand goes down"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("pictures")
def test_demonstrations_are_seen_as_they_were_recorded(made, demonstrations):
    """From the states of a file without pictures; to success; and an action of another leaves them."""
    given = {"demonstrations": str(demonstrations), "size": 32, "cameras": ["agentview"], "state": ["robot0_eef_pos", "object"]}
    simulator = made("lift", 2, **given)
    assert simulator.demonstrations == 2
    shown = [simulator.reset(torch.tensor([0, 3]))]
    told = []
    for _ in range(25):
        told.append(simulator.expert())
        shown.append(simulator.step(told[-1], torch.tensor([True, True])).observation)
    state = torch.stack([each.state for each in shown])
    assert (state[0, 0] - state[0, 1]).abs().max() > 1e-3, "seed 3 is the second of two demonstrations"
    recorded = inside_read(simulator, demonstrations, 25)
    assert torch.allclose(state[:25, 0], recorded["seen"], atol=1e-5) and torch.equal(
        torch.stack(told)[:, 0], recorded["actions"]
    )
    assert shown[20].images["agentview"].float().std() > 10
    left = simulator.snapshot(torch.tensor([0]))
    for _ in range(25):
        moved = simulator.step(simulator.expert(), torch.tensor([True, True]))
        if moved.success_N.all():
            break
    assert moved.success_N.all() and moved.reward_N.tolist() == [1.0, 1.0]
    back = simulator.restore(torch.tensor([0]), left)
    assert torch.equal(back.state[0], shown[25].state[0])
    away = simulator.step(-simulator.expert(), torch.tensor([True, False])).observation
    with pytest.raises(UserError, match="no demonstration is played"):
        made("door", 1, **BLIND).expert()
    assert not torch.equal(away.state[0], shown[25].state[0])


def inside_read(simulator, file, steps):
    code = (
        "import sys, h5py, numpy; d = h5py.File(sys.argv[1])['data/demo_0']; n = int(sys.argv[2]); "
        "seen = numpy.concatenate([d['obs/robot0_eef_pos'][:n], d['obs/object'][:n]], 1); "
        "numpy.savez(sys.argv[3], seen=seen.astype('float32'), actions=numpy.clip(d['actions'][:n].astype('float32'), -1, 1))"
    )
    python, out = simulator.workers._python, str(file.with_name("read.npz"))
    subprocess.run([python, "-c", code, str(file), str(steps), out], check=True, timeout=60)
    return {name: torch.tensor(rows) for name, rows in numpy.load(out).items()}


@pytest.mark.parametrize(
    "units,played,after",
    [
        (None, [[0.5, -1.0, 1.0], [1.0, 0.25, -1.0]], [0.0, 0.0, -1.0]),
        ((2.0, 4.0, 1.0), [[0.25, -0.5, 1.0], [1.0, 0.0625, -1.0]], [1.0, 0.0625, -1.0]),
    ],
)
def test_a_demonstrations_actions_are_in_the_units_of_the_simulator(units, played, after):
    """Poses of a file are in metres and radians; what they are here is a share of the units."""
    actions = numpy.array([[0.5, -2.0, 1.0], [3.0, 0.25, -1.0]], "float32")
    episode = playback.Episode("demo_0", actions, numpy.zeros((2, 4)), "", None, 0, units)
    for number, own in enumerate(played):
        episode.at = number
        assert episode.action() == own and episode.continues(numpy.array(own, "float32"))
        assert not episode.continues(numpy.array(own, "float32") * 0.5)
    episode.at = 2
    assert episode.action() == after and not episode.continues(numpy.array(after, "float32")), "a pose stays, a difference ends"


@pytest.mark.parametrize("said,kind", [({}, "delta"), ({"control_delta": True}, "delta"), ({"control_delta": False}, "absolute")])
def test_a_file_from_before_robosuite_1_5_says_what_its_actions_are(monkeypatch, said, kind):
    monkeypatch.setattr(playback.making, "composite", lambda given, robots: given)
    file = playback.File.__new__(playback.File)
    file.meta = {"env_version": "1.4.1", "env_kwargs": {"robots": ["Panda"], "controller_configs": {"type": "OSC_POSE", **said}}}
    told = file.arguments()
    assert told["controller_configs"] == {"type": "OSC_POSE", **said, "input_ref_frame": "world", "input_type": kind}
    assert told["lite_physics"] is False and told["robots"] == ["Panda"]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_what_robosuite_or_a_file_can_not_give_is_refused_in_one_line(python, demonstrations):
    told = inside(python, "refused", str(demonstrations))
    expected = {
        "camera": "Lift can't be made with robosuite 1.5",
        "state": "there is no 'cube' for the option state: there are object, robot0_joint_pos",
        "robot": "Lift can't be made with robosuite 1.5",
        "text": "text.hdf5 can't be opened",
        "missing": "missing.hdf5 can't be opened",
        "empty": "empty.hdf5 has no data with env_args",
        "torn": "they must be rows of as many steps",
        "other": "it was recorded with another version of robosuite",
        "subset": "has no subset 'valid' for filter_key: it has train",
        "task": "has demonstrations of Lift, and the task is Door",
        "expert": "the task has no scripted expert, and no demonstration is played",
    }
    assert told.keys() == expected.keys()
    for name, why in expected.items():
        assert why in told[name] and "\n" not in told[name], told[name]


@pytest.mark.parametrize(
    "options,why",
    [
        ({"num_envs": 0}, "num_envs = 0 must be"),
        ({"task": "lfit"}, "there is no task 'lfit': there are lift, stack"),
        ({"size": 4}, "size = 4 must be a whole number of 8 to 1024"),
        ({"max_steps": 0}, "max_steps = 0 must be"),
        ({"control_hz": 0}, "control_hz = 0 must be a number of 1 to 500"),
        ({"cameras": "wrist"}, "cameras = 'wrist' must be a list of names"),
        ({"cameras": ["wrist", "wrist"]}, "names one twice"),
        ({"cameras": [], "state": []}, "observations would be empty"),
        ({"robots": ["Panda", "Panda"]}, r"robots = \['Panda', 'Panda'\] must be 1, one for each arm"),
        ({"task": "transport", "robots": ["Panda"]}, r"must be 2, one for each arm"),
        ({"controller": "JOINT_VELOCITY", "control": "absolute"}, "JOINT_VELOCITY has no absolute actions"),
        ({"filter_key": "train"}, "filter_key names a subset of demonstrations: set demonstrations too"),
        ({"python": "/no/such"}, "is no program"),
    ],
)
def test_options_that_can_not_be_are_refused_in_one_line(options, why):
    wanted = {
        "num_envs": 1,
        "device": "cpu",
        "task": "lift",
        "max_steps": 9,
        "rendering": "none",
        "python": sys.executable,
        **options,
    }
    with pytest.raises(UserError, match=why) as error:
        Robosuite(**wanted)
    assert "\n" not in str(error.value)


def test_each_task_says_what_its_arms_take():
    specs = {spec.id: spec for spec in mmrl_robosuite.mmrl_simulators()}
    assert specs.keys() == {f"robosuite/{name}" for name in (*TASKS, "recorded")}
    assert [specs[f"robosuite/{name}"].action.dims for name in ("lift", "wipe", "transport", "two-arm-peg")] == [7, 6, 14, 12]
    assert [specs[f"robosuite/{name}"].max_steps for name in ("lift", "can", "square", "tool-hang", "transport")] == [400] * 3 + [
        700
    ] * 2
    assert {name for name, spec in specs.items() if "expert" in spec.capabilities} == {
        "robosuite/lift",
        "robosuite/stack",
        "robosuite/can",
        "robosuite/recorded",
    }
    assert TASKS["wipe"].state == ("robot0_eef_pos", "robot0_eef_quat") and len(TASKS["transport"].state) == 6
