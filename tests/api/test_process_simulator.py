"""`mmrl.api.simulators.processes.simulator`: the conformance kit on an environment in processes
(`tests/support/toy_walk.py`), and what is lost."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from mmrl.api.errors import UserError
from mmrl.api.simulators.processes import EnvironmentProcesses
from mmrl.api.simulators.processes.simulator import ProcessSimulator
from mmrl.api.simulators.types import ActionSpec, Simulation
from mmrl.api.specs import SimulatorSpec
from mmrl.api.types import Prompt
from mmrl.rollout.simulators.demonstrations import as_expert
from mmrl.rollout.simulators.lane import Lane
from mmrl.rollout.simulators.recorded import EpisodeJob
from mmrl.testing.simulators import check_simulator

SPEC = SimulatorSpec(
    id="toy/walk",
    target="toy_walk:Environment",
    cameras=("above",),
    action=ActionSpec(dims=2),
    max_steps=20,
    parts=("near",),
    capabilities=frozenset(("partial-reset", "per-env-seed", "snapshot", "render-cpu")),
    variants=("near",),
)


def walk(num_envs: int, device: str, fragile: bool = False) -> ProcessSimulator:
    workers = EnvironmentProcesses(
        "toy_walk:Environment", {}, num_envs, what="toy/walk", environment={"FRAGILE": "1"} if fragile else {}
    )
    return ProcessSimulator(
        workers,
        instruction="walk to the middle",
        action=ActionSpec(dims=workers.facts["dims"]),
        max_steps=20,
        device=device,
        variants=SPEC.variants,
    )


@pytest.mark.slow
def test_it_conforms() -> None:
    report = check_simulator(SPEC, walk, n=3)
    assert report.ok, str(report)
    assert {r.name for r in report.results if r.note.startswith("skipped")} == {"expert_is_in_range"}


def test_lost_environments_are_told_and_mended() -> None:
    simulator: Any = walk(3, "cpu", fragile=True)
    try:
        simulator.reset(torch.arange(3))
        actions, active = torch.zeros(3, 2), torch.ones(3, dtype=torch.bool)
        assert not simulator.step(actions, active).lost_N.any()
        actions[1] = 1.0
        with pytest.warns(UserWarning, match=r"toy/walk: environment 1 was lost \(loss number 1\): its process was killed"):
            moved = simulator.step(actions, active)
        assert moved.lost_N.tolist() == [False, True, False] and moved.reward_N.isfinite().all()
        with pytest.raises(UserError, match="environment 1 was lost: reset it first"):
            simulator.render(torch.tensor([1]))
        shown = simulator.reset(torch.tensor([1]), torch.tensor([1]))
        fresh = walk(1, "cpu")
        assert torch.equal(shown.state, fresh.reset(torch.tensor([1])).state)
        fresh.close()
        assert not simulator.step(torch.zeros(3, 2), active).lost_N.any()
    finally:
        simulator.close()


class Walk(ProcessSimulator):
    def expert(self) -> torch.Tensor:
        return self._expert()


def test_an_expert_s_process_that_dies_costs_an_episode_which_begins_again(tmp_path: Path) -> None:
    bomb, outcomes = tmp_path / "bomb", {}
    for bombs in (False, True):
        workers = EnvironmentProcesses("toy_walk:Environment", {}, 2, what="toy/walk", environment={"BOMB": str(bomb)})
        simulator: Any = Walk(workers, instruction="walk", action=ActionSpec(dims=2), max_steps=6, device="cpu")
        lane = Lane(simulator, SPEC, Simulation(simulator="toy/walk", reward="own", terminate_on_success=False), 2)
        jobs = [EpisodeJob(prompt=Prompt(id=str(n), messages=[], seed=n), seed=n) for n in range(3)]
        told = pytest.warns(UserWarning, match=r"toy/walk: environment . was lost \(loss number 1\): its process was killed")
        try:
            lane.begin(jobs[:])
            if bombs:
                bomb.touch()
            with told if bombs else nullcontext():
                while envs := lane.active:
                    lane.play(as_expert(lane, envs, lane.shown(envs)), envs)
            lane.tracks()
        finally:
            simulator.close()
        assert (lane.lost, sum(job.tries for job in jobs)) == ((1, 4) if bombs else (0, 3))
        outcomes[bombs] = [(job.outcome, job.track.choices.tolist()) for job in jobs if job.track]
    assert len(outcomes[True]) == 3 and outcomes[True] == outcomes[False], "the episode that was lost is played whole"


@pytest.mark.filterwarnings("error")
def test_each_loss_is_counted_once() -> None:
    """An environment that goes on being asked without a reset is lost, and not lost again."""
    simulator: Any = walk(3, "cpu", fragile=True)
    try:
        simulator.reset(torch.arange(3))
        active = torch.ones(3, dtype=torch.bool)
        dies = torch.zeros(3, 3, 2)
        for env in range(3):
            dies[env, env] = 1.0
        with pytest.warns(UserWarning, match=r"environment 0 was lost \(loss number 1\)"):
            simulator.step(dies[0], active)
        assert simulator.step(torch.zeros(3, 2), active).lost_N.tolist() == [True, False, False], "and no warning"
        with pytest.warns(UserWarning) as told:
            assert simulator.step(dies[1], active).lost_N.tolist() == [True, True, False]
        (only,) = told
        assert "environment 1 was lost (loss number 2)" in str(only.message)
        simulator.reset(torch.arange(2), torch.arange(2))
        with pytest.warns(UserWarning) as told:
            simulator.step(dies[0] + dies[2], active)
        assert sorted(str(w.message).split("loss number ")[1][0] for w in told) == ["3", "4"]
        assert simulator.workers.lost == 4
    finally:
        simulator.close()


def test_wrong_questions_are_refused() -> None:
    simulator: Any = walk(2, "cpu")
    try:
        for ask, why in (
            (lambda: simulator.reset(torch.tensor([1])), r"the seeds of 2 environments must be int64 \[2\]"),
            (
                lambda: simulator.reset(torch.tensor([1]), torch.tensor([2])),
                r"env_ids_n = \[2\] must be from 0 to 1: there are 2 environments",
            ),
            (lambda: simulator.reset(torch.tensor([1, 2]), torch.tensor([0, 0])), "without repetitions"),
            (lambda: simulator.restore(torch.tensor([0, 1]), [[0.0] * 4]), "2 environments can't be put into 1 states"),
            (lambda: simulator.step(torch.zeros(2, 2), torch.ones(2)), "active must be bool"),
        ):
            with pytest.raises(UserError, match=why):
                ask()
    finally:
        simulator.close()
