"""Python code that is tried in a child process with a deadline: one that crashes or hangs is a fact like any other."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any


def try_python(code: str, timeout_s: float, *arguments: str) -> dict[str, Any]:
    """The JSON object on the last line that `code` prints in a child process, or `{"error": why there is none}`."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", code, *arguments],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"no answer within {timeout_s:g} s"}
    if done.returncode < 0:
        return {"error": f"crashed with {signal.Signals(-done.returncode).name}"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    return json.loads(done.stdout.strip().splitlines()[-1])
