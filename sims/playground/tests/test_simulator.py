"""What the learner's side does with a batch in another process: rows, indices, losses. The batch here is numpy's."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from mmrl_playground import packages, simulator
from mmrl_playground.simulator import Playground

from mmrl import UserError

ON = torch.ones(3, dtype=torch.bool)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch, tmp_path) -> Iterator[Playground]:
    monkeypatch.syspath_prepend(str(Path(__file__).parent))
    monkeypatch.setattr(simulator, "FACTORY", "numpy_batch:Batch")
    monkeypatch.setattr(packages, "check_installed", lambda: None)
    monkeypatch.delenv(packages.PYTHON, raising=False)
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("JAX_PLATFORMS", raising=False)
    with pytest.warns(UserWarning, match="is compiled, once"):
        made = Playground(num_envs=3, device="cpu", task="Counting", instruction="count", obs="state")
    yield made
    made.close()


def test_each_environment_has_its_own_seed_action_and_row(counts: Playground) -> None:
    assert (counts.action.dims, counts.max_steps, counts.computes_on) == (1, 9, "cpu"), "a simulator on a CPU"
    assert counts.reset(torch.tensor([2, 4, 1])).state.tolist() == [[2], [4], [1]]
    moved = counts.step(torch.tensor([[1.0], [0.5], [7.0]]), torch.tensor([True, False, True]))
    assert moved.observation.state.tolist() == [[3], [4], [2]] and moved.reward_N.tolist() == [3, 0, 2]
    assert moved.observation.instructions == ["count"] * 3 and not moved.truncated_N.any()
    seen = counts.reset(torch.tensor([6, 9]), torch.tensor([2, 0]))
    assert seen.state.tolist() == [[6], [9]]
    later = counts.step(torch.zeros(3, 1), ON)
    assert later.terminated_N.tolist() == later.success_N.tolist() == [True, False, True]
    assert moved.observation.state.tolist() == [[3], [4], [2]], "later steps don't change what was seen"


def test_states_go_where_they_are_put(counts: Playground) -> None:
    counts.reset(torch.tensor([1, 2, 3]))
    state = counts.snapshot(torch.tensor([2, 0]))
    counts.step(torch.ones(3, 1), ON)
    assert counts.restore(torch.tensor([0, 1]), state).state.tolist() == [[3], [1]]
    assert counts.step(torch.zeros(3, 1), ON).observation.state.tolist() == [[3], [1], [4]]


def test_a_dead_process_loses_all_until_each_is_reset(counts: Playground) -> None:
    counts.reset(torch.tensor([1, 2, 3]))
    with pytest.warns(UserWarning, match="all environments were lost: its process exited with code 3"):
        moved = counts.step(torch.tensor([[-1.0], [0.0], [0.0]]), torch.tensor([True, True, False]))
    assert moved.lost_N.tolist() == [True, True, False], "who was not active is told later"
    assert counts.step(torch.zeros(3, 1), torch.tensor([False, False, True])).lost_N.tolist() == [False, False, True]
    with pytest.raises(UserError, match=r"^playground \(Counting\): environment 2 was lost: reset it first$"):
        counts.snapshot(torch.tensor([2]))
    counts.reset(torch.tensor([4]), torch.tensor([1]))
    moved = counts.step(torch.ones(3, 1), ON)
    assert moved.lost_N.tolist() == [True, False, True] and moved.reward_N[1] == 5
    counts.reset(torch.tensor([0, 0]), torch.tensor([0, 2]))
    assert not counts.step(torch.zeros(3, 1), ON).lost_N.any()


def test_a_process_that_is_replaced_by_a_reset_has_lost_the_others(counts: Playground) -> None:
    counts.reset(torch.tensor([1, 2, 3]))
    counts._process._lose(0, "it was killed")
    counts.reset(torch.tensor([5]), torch.tensor([0]))
    assert counts.step(torch.zeros(3, 1), ON).lost_N.tolist() == [False, True, True]
