"""`maniskill/batch` on PhysX's CPU side, with its one environment: all but what only a GPU does.

It runs in the engine's process, so where that has no ManiSkill, this file is run by the interpreter that has.
"""

import importlib.util
import subprocess
from pathlib import Path

import mmrl_maniskill
import pytest
import torch
from mmrl_maniskill.batch import Batch

from mmrl import UserError
from mmrl.testing.sample import other_random_states, random_states

(SPEC,) = [spec for spec in mmrl_maniskill.mmrl_simulators() if spec.id == "maniskill/batch"]
PICK = {"env_id": "PickCube-v1", "instruction": "pick up the cube", "obs": "state", "rendering": "none"}


HERE = importlib.util.find_spec("mani_skill") is not None


@pytest.mark.slow
@pytest.mark.skipif(HERE, reason="the tests below are run by this interpreter")
def test_elsewhere(python):
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "does_what or without_a_gpu", __file__],
        capture_output=True,
        text=True,
        timeout=280,
        cwd=Path(__file__).parents[3],
    )
    assert done.returncode == 0 and ("2 passed" in done.stdout or "1 passed, 1 skipped" in done.stdout), done.stdout + done.stderr


@pytest.mark.skipif(not HERE, reason="ManiSkill is not installed here: test_elsewhere runs this")
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_is_refused():
    with pytest.raises(UserError, match="needs a CUDA device, not cpu: use maniskill/env"):
        Batch(num_envs=2, device="cpu", **PICK)


@pytest.mark.skipif(not HERE, reason="ManiSkill is not installed here: test_elsewhere runs this")
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
