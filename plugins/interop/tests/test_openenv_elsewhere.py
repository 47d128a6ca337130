"""OpenEnv's server brings a hundred packages, so that it has an interpreter of its own: it runs `test_openenv.py`."""

from __future__ import annotations

import importlib.util
import subprocess
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[3] / ".peers" / "openenv" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("openenv") is not None, reason="test_openenv.py is run by this interpreter")
def test_by_the_interpreter_that_has_it():
    if not PYTHON.exists():
        pytest.skip(f"OpenEnv is not installed in {PYTHON.parents[1]}: make peers")
    command = [str(PYTHON), "-m", "pytest", "-q", "-p", "no:cacheprovider", str(Path(__file__).with_name("test_openenv.py"))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, cwd=Path(__file__).parents[3])
    assert done.returncode == 0 and "10 passed" in done.stdout, done.stdout + done.stderr
