"""LeRobot's environments in its own interpreter, and a hub repository's, against LeRobot's own calls."""

import json
import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import mmrl_lerobot
import numpy
import pytest
import torch
from mmrl_lerobot.simulator import LeRobot

from mmrl import UserError
from mmrl.api.simulators.types import ActionSpec
from mmrl.testing.simulators import check_simulator

HERE = Path(__file__).parent
(SPEC,) = mmrl_lerobot.mmrl_simulators()
PUSHT = {"env": "pusht", "instruction": "push the T onto its place"}
COMMIT = "a" * 40
HUB = '''
import gymnasium
import numpy

class Line(gymnasium.Env):
    """Go to a place on a line; the picture shows where it is."""
    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"
    eye = gymnasium.spaces.Box(0, 255, (24, 32, 3), numpy.uint8)
    observation_space = gymnasium.spaces.Dict({
        "pixels": gymnasium.spaces.Dict({"top": eye, "side": eye}),
        "agent_pos": gymnasium.spaces.Box(-10, 10, (1,), numpy.float64),
        "environment_state": gymnasium.spaces.Box(-10, 10, (1,), numpy.float64),
    })
    action_space = gymnasium.spaces.Box(-2, 2, (1,), numpy.float32)
    _max_episode_steps = 9

    def __init__(self, goal):
        self.goal, self.task_description = goal, f"go to {goal}"
        self.init_state_id = 0  # as in LeRobot's LIBERO, where a reset begins from the next of the published states

    def see(self):
        picture = numpy.zeros((24, 32, 3), numpy.uint8)
        picture[:, int(16 + self.place)] = (255, 128, 7)
        return {"pixels": {"top": picture, "side": picture[::-1] + 1}, "agent_pos": numpy.array([self.place]),
                "environment_state": numpy.array([float(self.goal)])}

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.place = float(self.np_random.uniform(-1, 1)) + self.init_state_id % 3 * 0.001
        self.init_state_id += 1
        return self.see(), {}

    def step(self, action):
        self.place += float(action[0])
        there = abs(self.place - self.goal) < 0.5
        return self.see(), -abs(self.place - self.goal), there, False, {"is_success": there}

    def render(self):
        return self.see()["pixels"]["top"]

def make_env(n_envs=1, use_async_envs=False):
    vector = lambda goal: gymnasium.vector.SyncVectorEnv(
        [lambda: Line(goal)] * n_envs, autoreset_mode=gymnasium.vector.AutoresetMode.SAME_STEP)
    return {"line": {3: vector(3), 5: vector(-5)}}
'''
BARE = """
import json, sys, numpy, torch
from lerobot.envs.factory import make_env, make_env_config
from lerobot.envs.utils import preprocess_observation
vector = make_env(make_env_config("pusht"), n_envs=1)["pusht"][0]
obs, _ = vector.reset(seed=[7])
rows = []
for action in json.load(sys.stdin):
    obs, reward, *_ = vector.step(numpy.array([action], numpy.float32))
    seen = preprocess_observation(obs)
    picture = (seen["observation.image"][0] * 255).round().byte()
    rows.append([seen["observation.state"][0].tolist(), float(reward[0]), picture.sum(dim=(1, 2)).tolist()])
print(json.dumps(rows))
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hub(tmp_path_factory):
    """A cache of the hub with a repository that makes environments."""
    folder = tmp_path_factory.mktemp("hf") / "hub" / "models--me--line"
    for path, text in {
        "refs/main": COMMIT,
        f"snapshots/{COMMIT}/env.py": HUB,
        f"snapshots/{COMMIT}/bad.py": "import absent",
    }.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    return {"HF_HOME": str(folder.parents[1]), "HF_HUB_OFFLINE": "1"}


@pytest.fixture(scope="module")
def pusht(lerobot):
    simulator = LeRobot(num_envs=2, device="cpu", python=lerobot, **PUSHT)
    yield simulator
    simulator.close()


@pytest.fixture(scope="module")
def line(lerobot, hub):
    simulator = LeRobot(
        num_envs=2, device="cpu", env="me/line", trust_remote_code=True, python=lerobot, environment=hub, units=(2.0,)
    )
    yield simulator
    simulator.close()


def test_it_is_what_lerobot_gives(pusht, lerobot):
    actions = numpy.random.default_rng(0).uniform(-1, 1, (4, 2)).astype("float32")
    bare = subprocess.run(
        [lerobot, "-c", BARE], input=json.dumps(((actions + 1) * 256).tolist()), capture_output=True, text=True, check=True
    )
    first = pusht.reset(torch.tensor([7, 8]))
    assert pusht.action == ActionSpec(dims=2, units=(256.0, 256.0), offsets=(256.0, 256.0)), "a policy gives PushT's own pixels"
    assert pusht.max_steps == 300 and first.instructions == [PUSHT["instruction"]] * 2
    assert first.images["image"].shape == (2, 96, 96, 3) and first.state.shape == (2, 2)
    for action, (state, reward, sums) in zip(actions, json.loads(bare.stdout.splitlines()[-1]), strict=True):
        moved = pusht.step(torch.tensor(numpy.stack([action, action])), torch.tensor([True, True]))
        assert moved.observation.state[0].tolist() == pytest.approx(state, abs=1e-3)
        assert moved.reward_N[0].item() == pytest.approx(reward, abs=1e-6)
        assert moved.observation.images["image"][0].sum(dim=(0, 1), dtype=torch.int64).tolist() == sums


def test_a_hub_repository_s_tasks_are_played(line):
    first = line.reset(torch.tensor([4, 5]))
    assert first.instructions == ["go to 3", "go to -5"] and line.max_steps == 9
    assert sorted(first.images) == ["side", "top"] and first.state[:, 1].tolist() == [3.0, -5.0]
    top = first.images["top"][0]
    assert sorted(map(tuple, top.reshape(-1, 3).unique(dim=0).tolist())) == [(0, 0, 0), (255, 128, 7)], "the very pixels"
    seen, active, won = first, torch.tensor([True, True]), torch.zeros(2, dtype=torch.bool)
    for _ in range(6):
        gap = seen.state[:, 1] - seen.state[:, 0]
        moved = line.step((gap / 2).clamp(-1, 1)[:, None], active)
        ended, seen, won = moved.terminated_N & active, moved.observation, won | moved.success_N
        assert torch.equal(ended, moved.success_N & active)
        assert (seen.state[ended, 0] - seen.state[ended, 1]).abs().lt(0.5).all(), (
            "what ended it, and not the next episode's start"
        )
        active = active & ~ended
    assert won.all()


def test_it_repeats_and_goes_back(line):
    generator = torch.Generator().manual_seed(1)
    actions = torch.rand(3, 2, 1, generator=generator) * 0.4 - 0.2

    def play():
        seen = [line.reset(torch.tensor([10, 11]))]
        seen += [line.step(each, torch.tensor([True, True])).observation for each in actions]
        return seen

    once, kept = play(), line.snapshot(torch.tensor([0, 1]))
    for a, b in zip(once, play(), strict=True):
        assert torch.equal(a.state, b.state) and all(torch.equal(a.images[c], b.images[c]) for c in a.images)
    line.reset(torch.tensor([12, 13]))
    back = line.restore(torch.tensor([0, 1]), kept)
    assert torch.equal(back.state, once[-1].state) and back.instructions == once[0].instructions


def test_it_conforms(lerobot, hub):
    options = {"python": lerobot, "environment": hub, "env": "me/line", "trust_remote_code": True, "tasks": [1]}
    report = check_simulator(replace(SPEC, cameras=("side", "top")), LeRobot, n=2, options=options)
    assert report.ok, str(report)


REFUSED = [
    ({"env": "pushd"}, "LeRobot has no environment 'pushd': choose one of aloha, "),
    ({"env": "pusht", "config": {"tusk": 1}}, "pusht refuses its config .*tusk"),
    ({"env": "pusht", "tasks": [1]}, "pusht has 1 tasks, and no task 1"),
    ({"env": "vlabench"}, "LeRobot can't make vlabench"),
    ({"env": "me/line"}, "me/line is code of a hub repository, which would run here: read it, then set trust_remote_code"),
    ({"env": "me/line:bad.py", "trust_remote_code": True}, "LeRobot can't make me/line:bad.py .*'absent' is not installed"),
    ({"env": "me/absent", "trust_remote_code": True}, "LeRobot can't make me/absent"),
]


def test_what_can_not_be_made_is_one_line(lerobot, hub):
    """In one process, as importing LeRobot takes ten seconds."""
    command = [lerobot, HERE / "refused.py", Path(mmrl_lerobot.__file__).with_name("environment.py")]
    told = json.dumps([options for options, _ in REFUSED])
    done = subprocess.run(command, input=told, capture_output=True, text=True, env={**os.environ, **hub}, check=True)
    said = [json.loads(line) for line in done.stdout.splitlines() if line.startswith(('"', "null"))]
    for (_, why), message in zip(REFUSED, said, strict=True):
        assert re.search(why, message) and "\n" not in message and len(message) < 500


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"env": "pusht", "pictures": False, "state": False}, "so there is no observation"),
        ({"env": "pusht", "python": None}, "no LeRobot here: set python to an interpreter that has it"),
        ({"env": "pusht", "python": "/no/such"}, "is no program"),
    ],
)
def test_what_can_not_be_is_one_line(options, why):
    with pytest.raises(UserError, match=why) as error:
        LeRobot(num_envs=1, device="cpu", **options)
    assert "\n" not in str(error.value)


def test_an_instruction_that_nobody_gives_is_told(lerobot):
    simulator = LeRobot(num_envs=1, device="cpu", env="pusht", python=lerobot)
    try:
        with pytest.raises(UserError, match="doesn't say in words what is to be done: set instruction"):
            simulator.reset(torch.tensor([1]))
    finally:
        simulator.close()


@pytest.mark.parametrize("given,gpu", [({}, "7"), ({"environment": {"MUJOCO_EGL_DEVICE_ID": "0"}}, "0")])
def test_what_mujoco_draws_by_egl_is_drawn_on_the_simulator_s_gpu(monkeypatch, given, gpu):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    monkeypatch.delenv("MUJOCO_EGL_DEVICE_ID", raising=False)
    told = {}

    def processes(*_, environment, **__):
        told.update(environment)
        raise UserError("enough")

    monkeypatch.setattr("mmrl_lerobot.simulator.EnvironmentProcesses", processes)
    with pytest.raises(UserError, match="enough"):
        LeRobot(num_envs=1, device="cuda:3", python="/bin/false", **PUSHT, **given)
    assert told["MUJOCO_EGL_DEVICE_ID"] == gpu
