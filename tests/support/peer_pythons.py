"""LeRobot, in an environment of its own, for the tests that compare with it and for `benchmarks/vla_parity.py`."""

from __future__ import annotations

import atexit
import functools
import json
import os
import subprocess
from pathlib import Path

import torch

HERE = Path(__file__).parent
OWN = HERE.parents[1] / ".peers" / "lerobot"
"""Where `make peers` puts it: its transformers is older than mmrl's."""
INSTALLED = str(OWN / "bin" / "python") if (OWN / "installed").is_file() else ""  # written when all of it was
LEROBOT = os.environ.get("MMRL_LEROBOT_PYTHON") or INSTALLED
MISSING = "LeRobot is not installed: make peers, or MMRL_LEROBOT_PYTHON, a Python with lerobot[pi,smolvla,groot] 0.6.1"

Pairs = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""By name: what mmrl computes and what the peer computes, of one shape."""


@functools.cache
def _server() -> subprocess.Popen[str]:
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    env.pop("PYTHONPATH", None)
    server = subprocess.Popen(
        [LEROBOT, HERE / "lerobot_server.py"], env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(server.kill)
    return server


def lerobot(script: str, function: str, *arguments: object) -> None:
    """Call a function of a script in this folder, by LeRobot's Python. Arguments arrive as text. RuntimeError: what it raised."""
    server = _server()
    assert server.stdin is not None and server.stdout is not None
    print(json.dumps([script, function, *map(str, arguments)]), file=server.stdin, flush=True)
    answer = server.stdout.readline()
    if said := json.loads(answer) if answer else f"{LEROBOT} has ended: what it printed says why":
        raise RuntimeError(said)


def assert_same(pairs: Pairs, **tolerances: tuple[float, float]) -> None:
    """tolerances: absolute and relative ones, of those names whose aren't 1e-5."""
    for name, (ours, theirs) in pairs.items():
        atol, rtol = tolerances.get(name, (1e-5, 1e-5))
        torch.testing.assert_close(ours, theirs, atol=atol, rtol=rtol, msg=lambda said, name=name: f"{name}: {said}")  # type: ignore[misc]
