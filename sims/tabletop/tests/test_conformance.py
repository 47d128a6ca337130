"""The conformance kit on every task, and the plugin's spec."""

import mmrl_tabletop
import pytest
from mmrl_tabletop.settings import TASKS
from mmrl_tabletop.table import Table

from mmrl.testing.simulators import check_simulator

(SPEC,) = mmrl_tabletop.mmrl_simulators()
OPTIONS = {
    "plain": {},
    "everything": {"cameras": ("front", "wrist", "top"), "noise": 4.0, "light": 0.3, "textures": 4, "samples": 2, "alike": True},
    "four dims": {"dims": 4, "distractors": 3, "expert_slop": 0.6},
}


LONG = [*((task, "plain") for task in TASKS if task != "reach")]
LONG += [("put-on", "everything"), ("push", "four dims"), ("stack", "four dims")]


@pytest.mark.parametrize("task,options", [("reach", "plain"), *(pytest.param(*case, marks=pytest.mark.slow) for case in LONG)])
def test_conformance(task: str, options: str) -> None:
    report = check_simulator(SPEC, Table, options={"task": task, "size": 24} | OPTIONS[options])
    assert report.ok, str(report)
    assert not any(r.note.startswith("skipped") for r in report.results)


def test_the_spec_is_what_the_instance_is() -> None:
    table = Table(num_envs=1, device="cpu")
    assert table.action == SPEC.action and table.max_steps == SPEC.max_steps
    assert Table(num_envs=1, device="cpu", dims=4).action.gripper == 3
    assert SPEC.variants == mmrl_tabletop.VARIANTS and len(set(SPEC.variants)) == 13
