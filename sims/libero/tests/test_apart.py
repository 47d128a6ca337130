"""Runs the shorter of the tests with LIBERO in a process of their own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
SHORTER = "bit_for_bit or bit_equal or future or refused or units or brings_its_scene"


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_libero_in_a_process_of_its_own() -> None:
    if not (HERE.parents[2] / ".simulators" / "libero" / "installed").is_file():
        pytest.skip("LIBERO is not installed: make simulators")
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))}
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-p",
        "no:xdist",
        "-k",
        SHORTER,
        HERE / "test_libero.py",
    ]
    done = subprocess.run(command, env=env, cwd=HERE, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout[-8000:])
    assert done.returncode == 0 and " passed" in done.stdout.splitlines()[-1], done.stdout[-3000:] + done.stderr[-3000:]
