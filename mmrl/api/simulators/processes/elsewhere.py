"""What another interpreter says of the packages that it has, for `mmrl doctor`."""

from __future__ import annotations

import json
import subprocess

from mmrl.api.errors import shorten


def report_of(python: str, file: str, variable: str, seconds: float) -> dict[str, str]:
    """The JSON object that a file, which imports nothing of mmrl, prints when this interpreter runs it. variable: the environment
    variable that names the interpreter. seconds: timeout. Of an interpreter that can't be asked, `refused` says why."""
    try:
        done = subprocess.run([python, file], capture_output=True, text=True, timeout=seconds)
        return dict(json.loads(done.stdout))
    except (OSError, subprocess.TimeoutExpired, ValueError) as error:
        return {"refused": f"{variable} = {python!r} can't be asked ({shorten(error, 200)}): name an interpreter"}
