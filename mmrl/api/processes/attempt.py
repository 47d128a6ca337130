"""Run Python code that may crash or hang in a child process with a timeout."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from typing import Any


def try_python(code: str, timeout_s: float, *arguments: str) -> dict[str, Any]:
    """Run `code` in a child process and return the JSON object on the last line that it prints, or `{"error": reason}`, with
    `"timed_out": timeout_s` where there is no answer in time, which on a busy machine is no fault of the code.

    arguments: `sys.argv[1:]` of the code."""
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
        return {"error": f"no answer within {timeout_s:g} s", "timed_out": timeout_s}
    if done.returncode < 0:
        return {"error": f"crashed with {signal.Signals(-done.returncode).name}"}
    if done.returncode:
        return {"error": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}
    last = (done.stdout.strip().splitlines() or [""])[-1]
    try:
        return json.loads(last)
    except ValueError:  # a library may print when the process ends, or end it
        return {"error": f"it ended without an answer, and printed {last[:80]!r} last" if last else "it ended without an answer"}
