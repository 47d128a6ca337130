"""Playground's tasks as they are published; what is lost, refused and drawn. Slow: a process imports JAX, and may compile."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy
import pytest
import torch
from mmrl_playground.simulator import Playground
from mmrl_playground.tasks import MAX_STEPS, TASKS

from mmrl import UserError

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
HERE = Path(__file__).parent
N = 3
ON = torch.ones(N, dtype=torch.bool)
CART = {"task": "CartpoleBalance", "instruction": "keep the pole upright"}


@pytest.fixture(scope="module")
def carts(python: str | None) -> Iterator[Playground]:
    simulator = Playground(num_envs=N, device="cpu", python=python, obs="state", success_return=5.0, **CART)
    yield simulator
    simulator.close()


def actions(steps: int) -> torch.Tensor:
    return torch.rand(steps, N, 1, generator=torch.Generator().manual_seed(0)) * 2 - 1


@pytest.mark.exhaustive  # three minutes, which JAX compiles
def test_it_is_as_published(carts: Playground, python: str | None, tmp_path: Path) -> None:
    """Against a bare batch of Playground: starts, observations, rewards and ends; and the table of tasks against its suite."""
    seeds = [0, 7, 2**31]
    seen = [carts.reset(torch.tensor(seeds)).state]
    moved = [carts.step(action, ON) for action in actions(40)]
    seen += [each.observation.state for each in moved]
    numpy.save(tmp_path / "actions.npy", actions(40).numpy())
    command = [python or sys.executable, HERE / "bare.py", CART["task"], *map(str, seeds)]
    cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path)}
    subprocess.run([*command, tmp_path / "actions.npy", tmp_path / "seen.npz"], check=True, env=os.environ | cache)
    bare = numpy.load(tmp_path / "seen.npz")
    assert (seen[0].numpy() == bare["obs"][0]).all()
    numpy.testing.assert_allclose(torch.stack(seen).numpy(), bare["obs"], rtol=0, atol=1e-6)
    numpy.testing.assert_allclose(torch.stack([each.reward_N for each in moved]).numpy(), bare["reward"], rtol=0, atol=1e-6)
    assert not bare["done"].any() and not any(each.terminated_N.any() for each in moved)
    facts = dict(zip(bare["names"].tolist(), bare["facts"].tolist(), strict=True))
    told = {task.name: [task.dims, pytest.approx(1 / task.control_hz), MAX_STEPS, -1.0, 1.0] for task in TASKS.values()}
    assert facts == told
    assert (carts.action.dims, carts.max_steps) == (1, 1000)


def test_an_episode_is_solved_from_a_return_on(carts: Playground) -> None:
    carts.reset(torch.arange(N))
    total, solved = torch.zeros(N), []
    for _ in range(8):
        moved = carts.step(torch.zeros(N, 1), ON)
        total += moved.reward_N
        assert torch.equal(moved.success_N, total >= 5.0)
        solved.append(bool(moved.success_N.all()))
    assert solved[0] is False and solved[-1] is True


def test_numbers_that_are_not_finite_cost_their_episode_alone(carts: Playground) -> None:
    carts.reset(torch.arange(N))
    beside = [carts.step(torch.zeros(N, 1), ON).observation.state for _ in range(2)]
    carts.reset(torch.arange(N))
    state = carts.snapshot(torch.tensor([1]))
    rows = [row * float("nan") if row.dtype == numpy.float32 else row for row in state["rows"]]
    carts.restore(torch.tensor([1]), {**state, "rows": rows})
    for seen in beside:
        moved = carts.step(torch.zeros(N, 1), ON)
        assert moved.lost_N.tolist() == [False, True, False] and not moved.terminated_N.any()
        assert torch.equal(moved.observation.state[::2], seen[::2])
    again = carts.reset(torch.tensor([1]), torch.tensor([1]))
    assert again.state.isfinite().all() and not carts.step(torch.zeros(N, 1), ON).lost_N.any()


def test_a_process_that_dies_costs_all_episodes_and_is_replaced(carts: Playground) -> None:
    carts.reset(torch.arange(N))
    first = [carts.step(action, ON) for action in actions(3)]
    state = carts.snapshot(torch.arange(N))
    pid = carts._process.pid(0)
    os.kill(pid, signal.SIGKILL)
    with pytest.warns(UserWarning, match="all environments were lost: its process was killed"):
        assert carts.step(torch.zeros(N, 1), ON).lost_N.all()
    with pytest.raises(UserError, match="environment 0 was lost: reset it first"):
        carts.snapshot(torch.arange(N))
    carts.reset(torch.tensor([0]), torch.tensor([0]))
    assert carts.step(actions(1)[0], ON).lost_N.tolist() == [False, True, True]
    carts.reset(torch.arange(N))
    again = [carts.step(action, ON) for action in actions(3)]
    for one, other in zip(first, again, strict=True):
        assert torch.equal(one.observation.state, other.observation.state) and torch.equal(one.reward_N, other.reward_N)
    later = carts.step(actions(1)[0], ON).observation.state
    carts.restore(torch.arange(N), state)
    assert torch.equal(carts.step(actions(1)[0], ON).observation.state, later), "a snapshot outlives the process"


@pytest.mark.usefixtures("drawing")
def test_people_see_the_environments_that_they_ask_for(carts: Playground) -> None:
    carts.reset(torch.arange(N))
    for _ in range(30):
        carts.step(torch.tensor([[1.0], [-1.0], [0.0]]), ON)
    shown = carts.render(torch.tensor([2, 0]))
    assert shown.shape == (2, 256, 256, 3) and not torch.equal(shown[0], shown[1])
    assert torch.equal(carts.render(torch.tensor([0]))[0], shown[1])


def test_bad_calls_are_refused_in_a_line(carts: Playground) -> None:
    carts.reset(torch.arange(N))
    with pytest.raises(UserError, match=r"^the action of environment 1 has NaN: check the policy's output$"):
        carts.step(torch.tensor([[0.0], [float("nan")], [0.0]]), ON)
    with pytest.raises(UserError, match="has no variant 'night'"):
        carts.reset(torch.arange(N), variant="night")
    state = carts.snapshot(torch.arange(2))
    with pytest.raises(
        UserError, match=r"the state doesn't fit 3 environments of CartpoleBalance by jax: restore it in the task"
    ):
        carts.restore(torch.arange(N), state)
    with pytest.raises(UserError, match="the state doesn't fit"):
        carts.restore(torch.arange(2), {**state, "task": "CartpoleSwingup"})


def test_an_unknown_task_ends_the_command_in_a_line(python: str | None) -> None:
    given = ['task="CartpolBalance"', 'instruction="balance"', f'python="{python or sys.executable}"']
    command = [sys.executable, "-m", "mmrl", "check", "playground/env", *(word for each in given for word in ("--set", each))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert "Playground has no task 'CartpolBalance': did you mean CartpoleBalance" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_device_that_jax_has_not_is_refused(python: str | None) -> None:
    with pytest.raises(UserError) as refused:
        Playground(num_envs=1, device="cpu", python=python, obs="state", platform="gpu", **CART)
    assert "JAX has no device for platform = 'gpu'" in str(refused.value) and 'set platform = "cpu"' in str(refused.value)


def test_the_batch_of_a_task_that_is_known(python: str | None, tmp_path: Path) -> None:
    """Blocks, repeated actions, ends, sums of rewards, observations of several parts; snapshots and what is refused."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("MMRL_PLAYGROUND")}
    subprocess.run([python or sys.executable, HERE / "inside.py", tmp_path / "seen.json"], check=True, env=env)
    seen = json.loads((tmp_path / "seen.json").read_text())
    assert seen["facts"] == {"dims": 6, "action": 1, "max_steps": 5, "devices": seen["facts"]["devices"]}
    assert seen["first"]["state"] == [[2, 2], [3, 2], [99, 2]] and seen["first"]["reward"] == [3, 5, 197.5]
    assert seen["first"]["terminated"] == [False, False, True] and seen["first"]["success"] == [False, True, True]
    assert seen["second"]["state"] == [[4, 4], [5, 4], [99, 2]] and seen["second"]["lost"] == [False, False, True]
    assert seen["second"]["reward"] == [7, 9, 0] and seen["second"]["terminated"] == [True, True, False]
    assert seen["idle"]["state"] == [[4, 4], [7, 6], [99, 2]] and seen["idle"]["reward"] == [0, 13, 0]
    assert seen["idle"]["lost"] == [False] * 3 and seen["idle"]["terminated"] == [False, True, False]
    assert seen["after"]["state"] == [[99, 2], [7, 6], [5, 8]] and seen["after"]["lost"] == [True, False, False]
    assert seen["misfit"].startswith("the state doesn't fit 1 environments of Line by jax")
    assert seen["camera"] == "camera = 'side' is not in the task's model: it has eye"
    assert seen["unknown"].startswith("Playground has no task 'CartpolBalance': did you mean CartpoleBalance")
    assert seen["far"].startswith("Playground has no task 'xyz': its registry has AcrobotSwingup, ")
    assert seen["key"].startswith("CartpoleBalance can't be made (") and "no_such" in seen["key"]
    assert seen["impl"] == "config has impl: set the option impl instead"
    assert seen["robot"].startswith("PandaPickCube needs MuJoCo Menagerie, which Playground would clone from GitHub: git clone ")
    assert seen["robot"].endswith("name the folder by the option menagerie or MMRL_PLAYGROUND_MENAGERIE")
    assert seen["folder"].startswith("/no/such, which the option menagerie names for MuJoCo Menagerie, is no folder")
    assert seen["variable"].startswith("/nowhere, which MMRL_PLAYGROUND_MENAGERIE names for MuJoCo Menagerie, is no folder")
    assert seen["empty"].startswith("Go1Getup can't be made (")
    assert not any("\n" in line for line in seen.values() if isinstance(line, str))
