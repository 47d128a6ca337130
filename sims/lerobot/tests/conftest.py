"""The plugin, where it isn't installed, and the interpreter that has LeRobot."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1]))
OWN = Path(__file__).parents[3] / ".peers" / "lerobot"
"""Where `make peers` puts it."""


@pytest.fixture(scope="session")
def lerobot() -> str:
    if not (OWN / "installed").is_file():  # written when all of it was
        pytest.skip("LeRobot is not installed: make peers")
    return str(OWN / "bin" / "python")
