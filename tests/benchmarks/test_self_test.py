"""The self-test of a GPU: what it says of rows that agree, differ, fail, hang and crash."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mmrl.policies.vlm import tiny
from mmrl.testing.cases import some_of

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "benchmarks"))
ROWS = """
import os, signal, time
from mmrl.api.errors import UserError

def prepare(): pass
def fails(device): raise ValueError("the second line\\nis left out")
def lacks(device): raise UserError("transformers 1.0 doesn't know it: install a newer one")
def hangs(device): time.sleep(99)
def crashes(device): os.kill(os.getpid(), signal.SIGSEGV)

ROWS = {
    "agrees": lambda device: {"loss": (1e-6, 1e-4), "shown": (5.0, float("inf"))},
    "differs": lambda device: {"loss": (1e-6, 1e-4), "gradient": (3e-3, 1e-3)},
    "is nan": lambda device: {"loss": (float("nan"), 1e-4)},
    "fails": fails, "lacks": lacks, "hangs": hangs, "crashes": crashes,
    "goes on": lambda device: {"loss": (0.0, 1e-4)},
}
"""


@pytest.mark.slow
def test_a_row_that_crashes_or_hangs_costs_its_row_alone(tmp_path):
    (tmp_path / "fake_rows.py").write_text(ROWS)
    command = [sys.executable, ROOT / "benchmarks" / "self_test.py", "--device", "cpu", "--jobs", "1", "--rows", "fake_rows"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run([*command, "--row-seconds", "6"], capture_output=True, text=True, env=env, timeout=120)
    assert done.returncode == 1, done.stderr[-2000:]
    found = json.loads(done.stdout)
    states = {name: row["state"] for name, row in found["rows"].items()}
    assert states == {
        "agrees": "ok", "differs": "differs", "is nan": "differs", "fails": "error", "lacks": "skipped", "hangs": "error",
        "crashes": "error", "goes on": "ok",
    }  # fmt: skip
    assert (found["ok"], found["differs"], found["error"], found["skipped"], found["not run"]) == (2, 2, 3, 1, 0)
    assert found["broken"].keys() == {"differs", "is nan", "fails", "hangs", "crashes"}
    assert found["broken"]["differs"] == "gradient 0.003 of 0.001" and found["worst"].startswith("differs: gradient")
    assert found["broken"]["fails"].startswith("ValueError: the second line (fake_rows.py:")
    assert "took more than 6 s" in found["broken"]["hangs"] and "SIGSEGV" in found["broken"]["crashes"]
    assert "differs  differs" in done.stderr and "ok       goes on" in done.stderr


def test_metrics_are_apart_by_the_largest_relative_difference():
    from self_test_rows import _apart

    by, name = _apart({"loss": 2.0, "kl": 1e-6, "same": 0.0}, {"loss": 1.9, "kl": 2e-6, "same": 0.0})
    assert (by, name) == (pytest.approx(0.05), "loss"), "tiny values are compared with 0.01"
    assert _apart({"loss": 1.0}, {"loss": 1.0}) == (0.0, "all metrics")
    with pytest.raises(RuntimeError, match="only one of the two has kl"):
        _apart({"loss": 1.0, "kl": 0.0}, {"loss": 1.0})


CASES = ["GRPO", "acting, tokens", "SmolVLA", "resume", "padded prompts", "self-play"]
CASES += ["family mllama", *(f"family {f}" for f in tiny.FAMILIES)]
LONG = ("gemma3n", "gemma4", "phi4_multimodal")
"""Families whose rows take seconds."""


@pytest.mark.slow
@pytest.mark.parametrize("row", some_of(CASES, set(CASES) - {f"family {family}" for family in LONG}))
def test_a_row_agrees_with_itself_on_the_cpu(row, monkeypatch):
    """Also in bfloat16, which a family may not support by itself."""
    import self_test_rows

    monkeypatch.setenv("MMRL_PLUGIN_FILES", "")
    self_test_rows.prepare()
    found = self_test_rows.ROWS[row]("cpu")
    assert found and all(by <= allowed for by, allowed in found.values()), found


@pytest.mark.slow
def test_a_fault_on_the_device_is_found(monkeypatch):
    """The second model's log-probabilities are off by a thousandth."""
    import self_test_rows

    real, calls = self_test_rows.update, []

    def off(policy, batch):
        logprobs, gradient, seconds = real(policy, batch)
        calls.append(policy)
        return logprobs + (1e-3 if len(calls) == 2 else 0.0), gradient, seconds

    monkeypatch.setattr(self_test_rows, "update", off)
    found = self_test_rows.family("qwen2_5_vl", "cpu")
    wrong = {what for what, (by, allowed) in found.items() if not by <= allowed}
    assert wrong == {"logprobs"}
