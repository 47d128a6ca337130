"""The plugin, where it isn't installed, and the interpreter that has Meta-World."""

import ctypes.util
import importlib.util
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
SIMULATORS = Path(__file__).parents[3] / ".simulators"
OWN = SIMULATORS / "metaworld"
"""Where `make simulators` puts it: it wants numpy below 2."""


@pytest.fixture(scope="session")
def metaworld() -> str | None:
    """The option `python`: None where Meta-World is installed here. Skips where it is nowhere, or can't draw."""
    here = importlib.util.find_spec("metaworld") is not None
    if not here and not (OWN / "installed").is_file():  # written when all of it was
        pytest.skip("Meta-World is not installed: make simulators")
    if ctypes.util.find_library("OSMesa") is None:
        pytest.skip("libOSMesa is not installed, with which MuJoCo draws without a screen: make system")
    return None if here else str(OWN / "bin" / "python")


@pytest.fixture(scope="session")
def families() -> str:
    """The interpreter that has families of environments. Skips where there is none, or MuJoCo can't draw."""
    if not (SIMULATORS / "gym" / "installed").is_file():
        pytest.skip("the families of Gymnasium's environments are not installed: make simulators")
    if ctypes.util.find_library("OSMesa") is None:
        pytest.skip("libOSMesa is not installed, with which MuJoCo draws without a screen: make system")
    return str(SIMULATORS / "gym" / "bin" / "python")
