"""`mmrl train --dry-run` refuses options of simulators and sizes of small policies without making either."""

from __future__ import annotations

import pytest

from mmrl.api.errors import UserError
from mmrl.api.interfaces import Task
from mmrl.api.simulators.types import Simulation
from mmrl.config.load import parse_config
from mmrl.train.checks.run_file import check_simulators
from mmrl.ui.cli import main

RUN = {
    "name": "x",
    "policy": {"kind": "robotics/small", "model": "cnn", "options": {"dims": 4, "size": 64}},
    "tasks": [{"id": "robotics/reach", "options": {"dims": 4, "size": 64}}],
    "stages": [{"kind": "rl", "steps": 1}],
}
TOML = """
name = "x"
policy = {kind = "robotics/small", model = "cnn", options = {dims = 4, size = 64}}
tasks = [{id = "robotics/reach", options = {dims = 4, size = 64}}]
stages = [{kind = "rl", steps = 1}]
evaluate = {num_prompts = 0}
"""


class Acted(Task):
    def __init__(self, **options):
        self.simulation = Simulation(simulator="tabletop/table", options=options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": "64"}, "size = '64' must be a whole number"),
        ({"sise": 64}, "simulator 'tabletop/table' has no option 'sise'. Did you mean 'size'?"),
        ({"device": "cpu"}, "leave out the option 'device', which mmrl gives itself"),
    ],
)
def test_options_of_a_simulator_are_refused_before_one_is_made(options, message):
    config = parse_config(RUN)
    with pytest.raises(UserError) as error:
        check_simulators(config, {"mine": Acted(**options)})
    assert str(error.value).startswith("task 'mine': ") and message in str(error.value) and "\n" not in str(error.value)
    check_simulators(config, {"mine": Acted(size=64)})
    for elsewhere in ({"simulate": {"address": ["host:7420"]}}, {"compute": {"simulators": "actors"}}):
        check_simulators(parse_config(RUN | elsewhere), {"mine": Acted(**options)})  # it may have other packages there


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("policy.options.size=20", "policy.options.size = 20 is too small for three convolutions: give at least 36 pixels"),
        ("policy.model=mlp", "policy.options.state = 0: a perceptron reads only the state"),
        ("policy.options.size=36", ""),
    ],
)
def test_a_dry_run_checks_sizes_of_small_policies(tmp_path, monkeypatch, capsys, setting, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "run.toml").write_text(TOML)
    with pytest.raises(SystemExit) as ended:
        main(["train", "run.toml", "--dry-run", "--set", setting])
    assert ended.value.code == (2 if message else 0) and message in capsys.readouterr().err
