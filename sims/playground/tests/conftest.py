"""The plugin, where it isn't installed, and the interpreter that has MuJoCo Playground."""

import ctypes.util
import importlib.util
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))  # where the plugin isn't installed

from mmrl_playground import packages

OWN = Path(__file__).parents[3] / ".simulators" / "playground"
"""Where `make simulators` puts it: it brings JAX."""


@pytest.fixture(scope="session")
def python() -> str | None:
    """The option `python`: None where Playground is installed here. Skips where it is nowhere."""
    if importlib.util.find_spec("mujoco_playground"):
        return None
    if named := os.environ.get(packages.PYTHON):
        return named
    if (OWN / "installed").is_file():  # written when all of it was
        return str(OWN / "bin" / "python")
    pytest.skip("MuJoCo Playground is not installed: make simulators")


@pytest.fixture(scope="session")
def drawing() -> None:
    """Skips where MuJoCo can't draw."""
    if ctypes.util.find_library("OSMesa") is None:
        pytest.skip("libOSMesa is not installed, with which MuJoCo draws without a screen: make system")
