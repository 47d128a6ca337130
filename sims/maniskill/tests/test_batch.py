"""`maniskill/batch` on PhysX's CPU side, with its one environment, and N pretended ones: all but what only a GPU does.

It runs in the engine's process, so where that has no ManiSkill, this file is run by the interpreter that has.
"""

import importlib.util
import re
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace

import mmrl_maniskill
import pytest
import torch
from mmrl_maniskill import environment, rendering
from mmrl_maniskill import simulator as processes
from mmrl_maniskill.batch import Batch, _generators_kept

from mmrl import UserError
from mmrl.testing.sample import other_random_states, random_states

(SPEC,) = [spec for spec in mmrl_maniskill.mmrl_simulators() if spec.id == "maniskill/batch"]
PICK = {"env_id": "PickCube-v1", "instruction": "pick up the cube", "obs": "state", "rendering": "none"}


HERE = importlib.util.find_spec("mani_skill") is not None
here = pytest.mark.skipif(not HERE, reason="ManiSkill is not installed here: test_elsewhere runs this")


@pytest.mark.slow
@pytest.mark.skipif(HERE, reason="the tests below are run by this interpreter")
def test_elsewhere(python):
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=Path(__file__).parents[3],
    )
    skipped = re.search(r"passed, (\d+) skipped", done.stdout)
    assert done.returncode == 0 and skipped and int(skipped[1]) <= 2, (
        done.stdout + done.stderr
    )  # this one; and with a GPU, the next


@here
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused():
    with pytest.raises(UserError, match="needs a CUDA device, not cpu: use maniskill/env"):
        Batch(num_envs=2, device="cpu", **PICK)


@here
def test_one_environment_does_what_that_of_a_process_does(made):
    """The same seed and actions give the same states, rewards and flags as `maniskill/env`, bit for bit."""
    process = made(SPEC, 1, **PICK)
    with other_random_states(3):
        before = random_states()
        batch = Batch(num_envs=1, device="cpu", backend="physx_cpu", **PICK)
        seeds, active = torch.tensor([11]), torch.tensor([True])
        assert torch.equal(batch.reset(seeds).state, process.reset(seeds).state)
        assert (batch.action, batch.max_steps) == (process.action, process.max_steps)
        for step in range(5):
            actions = torch.full((1, 7), 0.2 * step - 0.5)
            one, other = batch.step(actions, active), process.step(actions, active)
            assert torch.equal(one.observation.state, other.observation.state)
            assert torch.equal(one.reward_N, other.reward_N) and one.success_N.dtype == torch.bool
        assert random_states() == before, "the global generators are left alone"
    kept = batch.snapshot(torch.tensor([0]))
    idle = batch.step(torch.full((1, 7), torch.nan), torch.tensor([False]))
    assert torch.equal(idle.observation.state[:, :9], one.observation.state[:, :9]), "it stays where it was"
    for _ in range(3):
        batch.step(torch.ones(1, 7), active)
    shown = batch.restore(torch.tensor([0]), kept)
    assert torch.equal(shown.state[:, :9], one.observation.state[:, :9])
    with pytest.raises(UserError, match="has NaN"):
        batch.step(torch.full((1, 7), torch.nan), active)
    batch.close()
    batch.close()
    with pytest.raises(UserError, match="is closed"):
        batch.reset(seeds)


def test_modes_whose_targets_are_not_restored_are_refused():
    """The arm of a restored start would move on from the target of the episode before."""
    with pytest.raises(UserError, match="doesn't restore the targets of 'pd_ee_target_delta_pose': use maniskill/env"):
        Batch(num_envs=1, device="cpu", backend="physx_cpu", control_mode="pd_ee_target_delta_pose", **PICK)


@pytest.mark.parametrize(
    "options,why",
    [
        ({"num_envs": 0}, "num_envs = 0 must be"),
        ({"size": 0}, "size = 0 must be"),
        ({"size": 2.5}, "size = 2.5 must be"),
        ({"cameras": "base_camera"}, "cameras = 'base_camera' must be a list of names"),
        ({"cameras": (), "obs": "rgb"}, r"cameras = \(\) must be a list of names"),
    ],
)
def test_what_can_not_be_is_refused_as_by_a_process(options, why):
    with pytest.raises(UserError, match=r"maniskill/batch \(PickCube-v1\): " + why) as error:
        Batch(**{"num_envs": 1, "device": "cpu", "backend": "physx_cpu"} | PICK | options)
    assert "\n" not in str(error.value)


def alone(env_id, **options):
    """One environment on a CPU."""
    return Batch(num_envs=1, device="cpu", backend="physx_cpu", **PICK | {"env_id": env_id} | options)


ONE, ON = torch.tensor([0]), torch.tensor([True])


@here
@pytest.mark.parametrize("env_id,reward", [("PlugCharger-v1", "sparse"), ("RollBall-v1", "dense")])
def test_a_restored_start_is_the_start(env_id, reward):
    """PlugCharger shows and judges by a goal that only a reset sets; RollBall pays more from when its ball was reached."""
    batch = alone(env_id, reward=reward)
    start, kept = batch.reset(torch.tensor([1])).state, batch.snapshot(ONE)
    still = torch.zeros(1, batch.action.dims)
    wanted = batch.step(still, ON)
    batch.reset(torch.tensor([2]))
    if env_id == "RollBall-v1":
        batch._env.reached_status[:] = 1.0  # as another episode leaves it
    torch.testing.assert_close(batch.restore(ONE, kept).state, start, atol=1e-6, rtol=0)
    found = batch.step(still, ON)
    torch.testing.assert_close(found.observation.state, wanted.observation.state, atol=1e-4, rtol=0)
    torch.testing.assert_close(found.reward_N, wanted.reward_N, atol=1e-4, rtol=0)
    batch.close()


@here
def test_a_task_with_other_things_in_each_sub_scene_is_refused():
    """Its pegs are as long as the seeds say with which the sub-scenes were built, whatever the seed of an episode is."""
    with pytest.raises(UserError, match=r"PegInsertionSide-v1 builds its 'peg' for each sub-scene.*: use maniskill/env") as error:
        alone("PegInsertionSide-v1")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("views,where,refused", [([], [0, 1], False), (["peg"], [0, 1], True), ([], [1], True)])
def test_what_is_built_for_some_sub_scenes_is_found(views, where, refused):
    things = {"cube": SimpleNamespace(_scene_idxs=torch.tensor(where))}
    scene = SimpleNamespace(actor_views=dict.fromkeys(views), articulation_views={}, actors=things, articulations={})
    env = SimpleNamespace(scene=scene, num_envs=2, spec=SimpleNamespace(id="Task-v1"))
    if not refused:
        return environment.check_scenes(env)
    with pytest.raises(environment.Refused, match="builds its 'peg'" if views else "builds its 'cube'"):
        environment.check_scenes(env)


class Scenes:
    """A task with N sub-scenes and the seeding of ManiSkill 3.0, without physics. A start is drawn by all of ManiSkill's
    generators."""

    _enhanced_determinism, _batched_rng_backend, _obs_mode = False, "numpy:random_state", "state"

    def __init__(self, num_envs):
        self.num_envs, self.device, self.control_freq, self._main_seed = num_envs, torch.device("cpu"), 20, None
        self.spec, self._sensors, self.seen = SimpleNamespace(id="Task-v1"), {}, 0
        bounds = torch.ones(7)
        self.single_action_space = SimpleNamespace(shape=(7,), low=-bounds, high=bounds)
        controllers = {"gripper": SimpleNamespace(config=None, single_action_space=SimpleNamespace(shape=(7,)))}
        self.agent = SimpleNamespace(
            controller=SimpleNamespace(controllers=controllers, single_action_space=SimpleNamespace(shape=(7,)))
        )
        self.scene = SimpleNamespace(actor_views={}, articulation_views={}, actors={}, articulations={})
        self.place, self.goals = torch.zeros(num_envs), {"place": torch.zeros(num_envs, 2)}
        self.sizes = torch.arange(num_envs)
        """Not of the sub-scenes, however many there are."""
        self._elapsed_steps = torch.zeros(num_envs, dtype=torch.int32)
        self.reset(seed=list(range(num_envs)))

    def reset(self, seed=None, options=None):
        from mani_skill.envs.sapien_env import BaseEnv

        ids = (options or {}).get("env_idx", torch.arange(self.num_envs))
        BaseEnv._set_main_rng(self, seed)
        BaseEnv._set_episode_rng(self, seed, ids)
        with torch.random.fork_rng(enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(self._episode_seed[0])
            self.place[ids] = torch.rand(len(ids)) + torch.from_numpy(self._batched_episode_rng[ids].uniform()).float()
            self.goals["place"][ids] = torch.rand(len(ids), 2)
        self._elapsed_steps[ids] = 0
        return self.get_obs({}), {}

    def get_info(self):
        return {}

    def get_obs(self, info):
        self.seen += self._obs_mode == "state"
        return torch.cat([self.place[:, None], self.goals["place"], self.sizes[:, None]], 1)

    def get_state_dict(self):
        return {"actors": {"cube": self.place[:, None].clone()}}

    def set_state_dict(self, state, ids):
        mask = torch.zeros(self.num_envs, dtype=torch.bool)
        mask[ids] = True
        self.place[mask] = state["actors"]["cube"][:, 0]


@pytest.fixture
def scenes(monkeypatch):
    """`scenes(8)`: a batch with 8 sub-scenes."""
    monkeypatch.setattr(environment, "made", lambda env_id, num_envs, *_, **options: (Scenes(num_envs), 50))
    monkeypatch.setattr(Batch, "_check_gpu", lambda self: None)
    return lambda num_envs: Batch(num_envs=num_envs, device="cpu", **PICK)


@here
def test_a_start_is_that_of_its_seed_wherever_and_among_how_many(scenes):
    """A joint reset and ManiSkill's own seeds for later sub-scenes would give others."""
    (wanted,) = scenes(1).reset(torch.tensor([5])).state[:, :3]
    found = scenes(4).reset(torch.tensor([7, 5]), torch.tensor([1, 3])).state[:, :3]
    assert torch.equal(found[1], wanted) and not torch.equal(found[0], wanted)


@here
def test_several_starts_are_restored_at_once_and_in_their_order(scenes):
    batch = scenes(4)
    starts = batch.reset(torch.arange(4)).state[:, :3].clone()
    kept = batch.join([batch.snapshot(torch.tensor([env])) for env in (2, 0, 2)])
    batch.reset(torch.arange(10, 14))
    sizes = batch._env.sizes.clone()
    found = batch.restore(torch.tensor([3, 1, 0]), kept).state[:, :3]
    assert torch.equal(found, starts[[2, 0, 2]])
    assert torch.equal(batch._env.sizes, sizes), "a constant of as many rows stays what it was"
    with pytest.raises(UserError, match="2 environments can't be put into 3 states"):
        batch.restore(torch.tensor([0, 1]), kept)


@here
@pytest.mark.parametrize("num_envs", [8, 64])
def test_the_work_of_a_start_does_not_grow_with_the_environments(scenes, monkeypatch, num_envs):
    """One generator for each seed, and one observation of all for each call."""
    import numpy

    batch, real, generators = scenes(num_envs), numpy.random.RandomState, []
    monkeypatch.setattr(numpy.random, "RandomState", lambda *seed: generators.append(seed) or real(*seed))
    some, batch._env.seen = torch.arange(4), 0
    batch.reset(some, some)
    assert (len(generators), batch._env.seen) == (4, 1)
    batch.restore(some + 4, batch.join([batch.snapshot(some[[env]]) for env in range(4)]))
    assert (len(generators), batch._env.seen) == (4, 2)


@here
@pytest.mark.parametrize("device", ["cuda:1", "cuda"])
def test_it_is_on_the_gpu_it_is_told(monkeypatch, device):
    """Without a number, SAPIEN takes the machine's first GPU, and torch the current one."""
    import gymnasium
    import mani_skill.envs.sapien_env as sapien_env
    import sapien

    asked, tried = [], []

    def make(*_, sim_backend, render_backend, **options):
        backend = sapien_env.parse_sim_and_render_backend(sim_backend, render_backend)
        raise AssertionError(f"{backend.device} {backend.sim_device} {backend.render_device} {backend.sim_backend}")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 1)
    monkeypatch.setattr(Batch, "_check_gpu", lambda self: None)
    monkeypatch.setattr(rendering, "_probe", lambda kind, *_: tried.append(kind))
    monkeypatch.setattr(sapien, "Device", lambda name: asked.append(name) or name)
    monkeypatch.setattr(gymnasium, "make", make)
    with pytest.raises(UserError, match=r"cuda:1 cuda:1 cuda:1 physx_cuda$"):
        Batch(num_envs=2, device=device, env_id="PickCube-v1", instruction="", rendering="gpu")
    assert set(asked) == {"cuda:1"} and tried == ["gpu:1"]


@pytest.mark.parametrize("device,where", [("cuda:1", "gpu:1"), ("cpu", "gpu")])
def test_processes_render_on_the_gpu_they_are_told(monkeypatch, device, where):
    class Seen(Exception):
        pass

    def started(factory, options, *_, **__):
        raise Seen(options["rendering"])

    monkeypatch.setattr(rendering, "_probe", lambda kind, *_: None)
    monkeypatch.setattr(processes, "EnvironmentProcesses", started)
    with pytest.raises(Seen, match=f"^{where}$"):
        processes.ManiSkill(num_envs=1, device=device, env_id="PickCube-v1", instruction="", rendering="gpu", python="python")


def test_lanes_take_turns_with_the_global_generators():
    """Another lane that begins while this one draws would seed its generators anew, and keep them as they are then."""
    torch.manual_seed(11)
    wanted = torch.rand(2)
    found, inside = {}, {11: threading.Event(), 22: threading.Event()}

    def lane(seed, other):
        with _generators_kept():
            torch.manual_seed(seed)
            inside[seed].set()
            inside[other].wait(0.1)  # as long as the other one may need to come between
            found[seed] = torch.rand(2)

    before = random_states()
    lanes = [threading.Thread(target=lane, args=seeds) for seeds in ((11, 22), (22, 11))]
    lanes[0].start()
    inside[11].wait()
    lanes[1].start()
    for each in lanes:
        each.join()
    assert torch.equal(found[11], wanted) and random_states() == before
