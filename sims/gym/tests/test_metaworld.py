"""Meta-World in an interpreter of its own: the conformance kit, a solved task, what is refused."""

import mmrl_gym
import pytest
import torch
from mmrl_gym.simulator import Gym

from mmrl import UserError
from mmrl.testing.simulators import check_simulator

(SPEC,) = (spec for spec in mmrl_gym.mmrl_simulators() if spec.id == "gym/metaworld")
BLIND = {"pictures": False, "size": 16}

pytestmark = pytest.mark.slow


@pytest.fixture
def made(metaworld):
    found = []

    def make(num_envs, **options):
        found.append(Gym(num_envs=num_envs, device="cpu", **{"python": metaworld, **SPEC.options, **options}))
        return found[-1]

    yield make
    for each in found:
        each.close()


@pytest.mark.timeout(1800)
def test_it_conforms(metaworld):
    report = check_simulator(SPEC, Gym, n=2, options={"python": metaworld, "size": 64})
    assert report.ok, str(report)
    skipped = {r.name for r in report.results if r.note.startswith("skipped")}
    assert skipped == {"expert_is_in_range", "the_time_limit_is_the_engines"}, "it has no expert, and 500 steps"


def test_the_hand_reaches_the_ball_from_any_start_and_does_so_again(made):
    """The state begins with the hand's place and ends with the ball's, metres; 1 of an action is 0.01 m. Each episode is played
    twice, with another one in between."""
    simulator = made(2, **BLIND)
    assert simulator.max_steps == 500 and simulator.action == SPEC.action
    every, found = torch.tensor([True, True]), {}
    for seeds in ((3, 4), (4, 3), (3, 4)):
        state, states = simulator.reset(torch.tensor(seeds)).state, []
        solved = torch.zeros(2, dtype=torch.bool)
        for _ in range(120):
            gap = state[:, -3:] - state[:, :3]
            moved = simulator.step(torch.cat([(10 * gap).clamp(-1, 1), torch.full((2, 1), -1.0)], 1), every)
            state = moved.observation.state
            states.append(state)
            solved |= moved.success_N
        assert solved.all() and (state[:, -3:] - state[:, :3]).norm(dim=1).max() < 0.05
        for row, seed in enumerate(seeds):
            played = torch.stack(states)[:, row]
            assert torch.equal(found.setdefault(seed, played), played)


def test_pictures_show_the_arm_move(made):
    simulator = made(1, size=64)
    before = simulator.reset(torch.tensor([1])).images["camera"].int()
    for _ in range(4):
        after = simulator.step(torch.tensor([[0.0, 1.0, 1.0, 0.0]]), torch.tensor([True])).observation.images["camera"].int()
    assert before.shape == (1, 64, 64, 3) and before.float().std() > 10
    changed = (before - after).abs().amax(3) > 10
    assert 0.002 < changed.float().mean() < 0.5


@pytest.mark.parametrize(
    "options,why",
    [
        ({"env_id": "Meta-World/MT2"}, "has no environment 'Meta-World/MT2'"),
        ({"success_key": "won"}, None),
        ({"modules": ()}, "has no environment 'Meta-World/MT1': the option modules names those that register some"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(made, options, why):
    if why is None:
        simulator = made(1, **BLIND, **options)
        simulator.reset(torch.tensor([1]))
        with pytest.raises(UserError, match=r"info has no 'won' after a step .it has .*success.*: set success_key") as error:
            simulator.step(torch.zeros(1, 4), torch.tensor([True]))
    else:
        with pytest.raises(UserError, match=why) as error:
            made(1, **BLIND, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("way,cure", [("osmesa", "apt-get install libosmesa6"), ("glfw-3", 'MUJOCO_GL = "osmesa"')])
def test_without_what_draws_it_is_said_what_is_missing(made, tmp_path, way, cure):
    """The library is planted: a file without code, before the real one."""
    for end in ("", ".6", ".8"):
        (tmp_path / f"libOSMesa.so{end}").touch()
    with pytest.raises(UserError, match=rf"Meta-World/MT1 can't render with MUJOCO_GL = '{way}', .*: .*{cure}") as error:
        made(1, size=16, environment={"MUJOCO_GL": way, "LD_LIBRARY_PATH": str(tmp_path)})
    assert "\n" not in str(error.value)
