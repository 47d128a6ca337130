"""The conformance kit on every task, with states and with pictures, and the plugin's specs."""

import dataclasses

import mmrl_mjx
import pytest
from mmrl_mjx.simulator import Mjx
from mmrl_mjx.tasks import TASKS

from mmrl.testing.simulators import check_simulator

SPECS = {spec.id.partition("/")[2]: spec for spec in mmrl_mjx.mmrl_simulators()}


def blind(task: str) -> mmrl_mjx.SimulatorSpec:
    """What a task is with `obs = "state"`."""
    spec = SPECS[task]
    return dataclasses.replace(spec, cameras=(), capabilities=spec.capabilities - {"render-cpu", "render-gpu"})


@pytest.mark.parametrize("task", ["reach", *(pytest.param(task, marks=pytest.mark.slow) for task in ("pick", "stack", "door"))])
def test_states_conform(task: str) -> None:
    report = check_simulator(blind(task), Mjx, n=2, options={"obs": "state"})
    assert report.ok, str(report)
    assert {r.name for r in report.results if r.note.startswith("skipped")} == {"render_gives_pictures"}


@pytest.mark.slow
def test_pictures_conform() -> None:
    options = {"size": 16, "cameras": ("wrist", "front"), "dims": 4, "reward": "sparse"}
    report = check_simulator(SPECS["pick"], Mjx, n=2, options=options)
    assert report.ok, str(report)
    assert not any(r.note.startswith("skipped") for r in report.results)


def test_the_specs_are_what_the_tasks_are() -> None:
    assert list(SPECS) == list(TASKS)
    for name, task in TASKS.items():
        assert (SPECS[name].parts, SPECS[name].max_steps) == (task.parts, task.max_steps)


def test_the_spec_is_what_the_instance_is(arms) -> None:
    assert arms("reach", 2, dims=7).action == SPECS["reach"].action
    assert arms("reach", 2, dims=7).max_steps == SPECS["reach"].max_steps
    assert arms("reach", 2).action.gripper == 3 and arms("reach", 2).action.units == (0.05, 0.05, 0.05, 1.0)
