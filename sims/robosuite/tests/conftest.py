"""robosuite's environments, made by options, in the interpreter that has robosuite; and a file of demonstrations."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the plugin isn't installed

from mmrl_robosuite import packages
from mmrl_robosuite.simulator import Robosuite

from mmrl import UserError
from mmrl.api.simulators.mujoco_rendering import choose

OWN = Path(__file__).parents[3] / ".simulators" / "robosuite"
"""Where `make simulators` puts it."""


@pytest.fixture(scope="session")
def python() -> str | None:
    """The option `python`: None where robosuite is installed here. Skips where it is nowhere."""
    if importlib.util.find_spec("robosuite"):
        return None
    if named := os.environ.get(packages.PYTHON):
        return named
    if (OWN / "installed").is_file():  # written when all of it was
        return str(OWN / "bin" / "python")
    pytest.skip("robosuite is not installed: make simulators")


@pytest.fixture(scope="session")
def pictures(python: str | None) -> None:
    """Skips where nothing renders."""
    try:
        choose("robosuite", "auto", python)
    except UserError as error:
        pytest.skip(str(error))


@pytest.fixture
def made(python: str | None) -> Iterator[Callable[..., Robosuite]]:
    """An instance by its task: `made("lift", 2, size=64)`; closed at the end."""
    found: list[Robosuite] = []

    def make(task: str, num_envs: int, **options: Any) -> Robosuite:
        found.append(Robosuite(num_envs=num_envs, device="cpu", **{"task": task, "max_steps": 400, "python": python, **options}))
        return found[-1]

    yield make
    for each in found:
        each.close()


@pytest.fixture(scope="session")
def demonstrations(python: str | None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two demonstrations of the scripted expert, in a file of robomimic's form, low-dimensional."""
    file = tmp_path_factory.mktemp("demonstrations") / "low_dim.hdf5"
    command = [python or sys.executable, str(Path(__file__).with_name("recorded.py")), str(file)]
    subprocess.run(command, check=True, capture_output=True, timeout=600, env={**os.environ, "MUJOCO_GL": "glx"})
    return file
