"""Gymnasium's environments as the plugin gives them."""

import sys

import mmrl_gym
import numpy
import pytest
import torch

from mmrl import UserError
from mmrl.api.simulators.types import ActionSpec

pytest.importorskip("gymnasium", reason='Gymnasium is not installed: pip install "multimodal-rl[gym]"')
pytest.importorskip(
    "pygame", reason='pygame, with which the classic environments draw, is not installed: pip install "multimodal-rl[gym]"'
)
from mmrl_gym.environment import resized
from mmrl_gym.simulator import Gym

PENDULUM = {"env_id": "Pendulum-v1", "instruction": "swing the pole up", "size": 32}


@pytest.fixture
def made():
    found = []

    def make(num_envs, **options):
        found.append(Gym(num_envs=num_envs, device="cpu", **options))
        return found[-1]

    yield make
    for each in found:
        each.close()


def test_it_is_what_gymnasium_does(made):
    """The same seed and torques, in this process and without the plugin."""
    import gymnasium

    simulator = made(1, **PENDULUM)
    env = gymnasium.make("Pendulum-v1").unwrapped
    obs, _ = env.reset(seed=7)
    assert simulator.reset(torch.tensor([7])).state[0].tolist() == obs.tolist()
    for action in (-1.0, 0.3, 1.0, 5.0):
        obs, reward, *_ = env.step(numpy.array([2 * min(action, 1.0)], numpy.float32))  # its bounds are -2 and 2
        moved = simulator.step(torch.tensor([[action]]), torch.tensor([True]))
        assert numpy.allclose(moved.observation.state[0].numpy(), obs, atol=1e-6)
        assert moved.reward_N.item() == pytest.approx(float(reward), rel=1e-6)
    assert simulator.max_steps == 200 and simulator.action.dims == 1
    assert (simulator.action.units, simulator.action.offsets) == ((2.0,), (0.0,)), "a policy with statistics gives torques"


def test_units_that_are_given_are_those(made):
    """And a choice has none."""
    assert made(1, **PENDULUM, units=[0.5]).action == ActionSpec(dims=1, units=(0.5,))
    assert made(1, env_id="CartPole-v1", instruction="balance", pictures=False).action == ActionSpec(dims=2)


def test_of_a_discrete_action_the_largest_number_counts(made):
    import gymnasium

    simulator = made(1, env_id="CartPole-v1", instruction="balance", size=16, success_return=3.0)
    env = gymnasium.make("CartPole-v1").unwrapped
    env.reset(seed=2)
    simulator.reset(torch.tensor([2]))
    solved = []
    for actions in ([0.1, -0.2], [-0.5, -0.4], [0.0, 1.0]):
        obs, *_ = env.step(int(numpy.argmax(actions)))
        moved = simulator.step(torch.tensor([actions]), torch.tensor([True]))
        assert moved.observation.state[0].tolist() == obs.astype("float32").tolist()
        solved.append(moved.success_N.item())
    assert solved == [False, False, True], "success_return: the sum of rewards is 3"


def test_pictures_are_what_is_rendered_made_smaller(made):
    import gymnasium

    simulator = made(1, **PENDULUM)
    env = gymnasium.make("Pendulum-v1", render_mode="rgb_array")
    env.reset(seed=7)
    picture = env.render()
    side = picture.shape[0]
    shown = simulator.reset(torch.tensor([7])).images["camera"][0].numpy()
    assert (shown == resized(picture, 32, numpy)).all() and simulator.render(torch.tensor([0])).shape == (1, side, side, 3)
    env.close()


@pytest.mark.parametrize("before,after", [(6, 3), (7, 3), (5, 8), (4, 4)])
def test_resizing_gives_the_mean_over_each_new_pixel(before, after):
    """Against a slow reference, whose grid divides both sizes."""
    generator = numpy.random.default_rng(before)
    picture = generator.integers(0, 256, (before, before, 3), dtype=numpy.uint8)
    fine = picture.repeat(after, 0).repeat(after, 1).astype(float)
    wanted = fine.reshape(after, before, after, before, 3).mean((1, 3))
    assert numpy.abs(resized(picture, after, numpy) - wanted).max() <= 0.5 + 1e-9


@pytest.mark.parametrize(
    "options,why",
    [
        ({"env_id": "Pendulun-v1"}, "has no environment 'Pendulun-v1'.*did you mean 'Pendulum-v1'"),
        (
            {"modules": ("no_such.module",)},
            "no module named 'no_such.module': pip install .*a file of yours, start mmrl with PYTHONPATH=FOLDER.* no_such.py",
        ),
        ({"size": 3}, "size = 3 must be"),
        ({"pictures": False, "state": False}, "so there is no observation"),
        ({"success_key": "success", "success_return": 1.0}, "set one of them"),
        ({"success_return": -100.0}, "success_return = -100.0 must be above 0, the return at the start"),
        ({"gripper": 4}, "gripper = 4 must be an index of the 1 dims"),
        ({"python": "/no/such"}, "is no program"),
        ({"make": {"render_mode": None}}, "returned no picture: it must support"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(made, options, why):
    with pytest.raises(UserError, match=why) as error:
        made(1, **PENDULUM | options)
    assert "\n" not in str(error.value)


def test_a_success_key_that_is_never_said_is_told(made):
    simulator = made(1, **PENDULUM, success_key="won")
    simulator.reset(torch.tensor([1]))
    with pytest.raises(UserError, match=r"info has no 'won' after a step .it has nothing.: set success_key"):
        simulator.step(torch.zeros(1, 1), torch.tensor([True]))


def test_a_state_of_another_environment_is_refused(made):
    simulator = made(1, **PENDULUM)
    other = made(1, env_id="CartPole-v1", instruction="balance", size=16)
    with pytest.raises(UserError, match=r"the snapshot is of CartPole-v1, but this environment is Pendulum-v1"):
        simulator.restore(torch.tensor([0]), other.snapshot(torch.tensor([0])))
    assert simulator.workers.lost == 0


def test_another_interpreter_runs_it(made):
    simulator = made(1, **PENDULUM, python=sys.executable)
    assert simulator.reset(torch.tensor([1])).state.shape == (1, 3)
    assert {spec.id for spec in mmrl_gym.mmrl_simulators()} == {"gym/env", "gym/metaworld"}


@pytest.mark.parametrize("given,gpu", [({}, "7"), ({"environment": {"MUJOCO_EGL_DEVICE_ID": "0"}}, "0")])
def test_what_mujoco_draws_by_egl_is_drawn_on_the_simulator_s_gpu(monkeypatch, given, gpu):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID", raising=False)
    told = {}

    def processes(*_, environment, **__):
        told.update(environment)
        raise UserError("enough")

    monkeypatch.setattr("mmrl_gym.simulator.EnvironmentProcesses", processes)
    with pytest.raises(UserError, match="enough"):
        Gym(num_envs=1, device="cuda:3", python="/bin/false", **PENDULUM, **given)
    assert told["MUJOCO_EGL_DEVICE_ID"] == gpu
