"""A run for tests of clusters: ten quick steps, with an observer that can be slow, or die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import runs

EXTRAS = """
import os
import time

from mmrl import hookimpl


@hookimpl
def mmrl_step_finished(run, step, metrics):
    if os.environ.get("MMRL_TEST_DIES") == str(step):
        os._exit(9)
    time.sleep(float(os.environ.get("MMRL_TEST_SLOW", "0")))
"""
RUN = """
name = "toy"
runs_dir = "runs"
policy = { model = "tiny:qwen2_5_vl:hidden=32,layers=1" }
tasks = [{ id = "toy/colour" }]
stages = [{ kind = "rl", steps = 10, prompts_per_step = 3, group_size = 4, learning_rate = 1e-3 }]
generate = { max_tokens = 6 }
evaluate = { num_prompts = 4 }
checkpoint = { every = 3 }
train = { threads = 1 }
"""


def steps(path: Path) -> int:
    """That were finished so far."""
    try:
        return runs.rows(path)[-1]["step"]
    except (OSError, ValueError, IndexError):
        return 0


def figures(path: Path) -> list[dict[str, Any]]:
    """Of each step, what two ways of computing the same may differ in by rounding."""
    return [
        {k: r["metrics"][k] for k in ("loss", "reward/mean", "entropy", "grad_norm", "length/mean")}
        for r in runs.rows(path)
        if "metrics" in r
    ]
