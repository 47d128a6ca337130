"""Runs `tests/vllm` in the environment that has vLLM (`make engines`), a process for each model family.

The table of all families in the documentation takes ten minutes: run it there when vLLM's version changes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import interpreted_triton

ROOT = Path(__file__).parents[2]
OWN = ROOT / ".engines" / "vllm" / "bin" / "python"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("family", "files"),
    [
        ("qwen2_5_vl", ["test_parity.py", "test_interrupted.py", "test_runs.py"]),
        ("qwen3_vl", ["test_parity.py", "test_interrupted.py"]),
        ("qwen2_vl", ["test_parity.py"]),
        ("qwen2_5_vl", ["test_apart.py", "test_broadcast.py"]),
        ("aya_vision qwen3_5", ["test_families.py"]),
        ("qwen2_audio qwen2_5_omni qwen3_omni_moe", ["test_sounds.py"]),
        ("qwen3_vl_moe", ["test_runner_v2.py"]),
    ],
    ids=lambda of: of if isinstance(of, str) else of[-1].removesuffix(".py"),
)
def test_vllm_is_a_sampler_like_our_own(family, files):
    if not OWN.exists():
        pytest.skip("vLLM's environment is missing: make engines")
    folders = [f"tests/vllm/{name}" for name in files]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "COV_"))} | {"MMRL_TEST_FAMILY": family}
    if files == ["test_runner_v2.py"]:
        env[interpreted_triton.ASKED] = "interpreted"
    command = [OWN, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-k", "not table", *folders]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout[-8000:])
    last = done.stdout.splitlines()[-1]
    assert done.returncode == 0 and " passed" in last and "skipped" not in last, done.stderr[-3000:]
