"""Runs `tests/vllm` in the environment that has vLLM (`make engines`), a process for each model family."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
OWN = ROOT / ".engines" / "vllm" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("family", ["qwen2_5_vl", "qwen3_vl", "qwen2_vl"])
def test_vllm_is_a_sampler_like_our_own(family):
    if not OWN.exists():
        pytest.skip("vLLM's environment is missing: make engines")
    folders = ["tests/vllm/test_parity.py"] + (["tests/vllm/test_runs.py"] if family == "qwen2_5_vl" else [])
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))} | {"MMRL_TEST_FAMILY": family}
    command = [OWN, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *folders]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout[-8000:])
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0 and " passed" in last and "skipped" not in last, done.stderr[-3000:]
