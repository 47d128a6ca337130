"""A sandbox for workers, made by bubblewrap: name spaces of their own, no network, a file system that can only be read.

docs/isolation.md says what holds in it.
"""

from __future__ import annotations

import functools
import glob
import os
import shutil
import subprocess

from mmrl.api.errors import UserError, shorten
from mmrl.judge import system_calls

CURE = "install bubblewrap 0.8 or newer (`apt install bubblewrap`) where unprivileged user name spaces are allowed"
SCRATCH = "/dev/shm"
"""The only folder that can be written in, with a file system of its own in memory."""
SCRATCH_MB = 256
GPUS = ("/dev/nvidia*", "/dev/dri", "/dev/kfd")
PROBE_S = 20.0
"""Seconds that an empty program may take in a sandbox."""


def wrapper(gpu: bool = False) -> list[str]:
    """The command that runs a program in a sandbox, without the program. gpu: GPUs can be used in it. Raises UserError if this
    machine can't make a sandbox."""
    if reason := problem():
        raise UserError(f'judge.isolation = "strict" needs a sandbox, and {reason}: {CURE}')
    return _command(gpu)


@functools.cache
def problem() -> str:
    """Why this machine can't make a sandbox; empty if it can."""
    if not system_calls.supported():
        return "it is made for Linux on x86-64 and 64-bit ARM"
    if not shutil.which("bwrap"):
        return "bubblewrap isn't installed"
    try:
        ended = subprocess.run([*_command(False), "true"], capture_output=True, timeout=PROBE_S, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bubblewrap failed: {shorten(error)[:200]}"
    return "" if ended.returncode == 0 else f"bubblewrap failed: {' '.join(ended.stderr.decode(errors='replace').split())[:200]}"


def _command(gpu: bool) -> list[str]:
    spaces = [f"--unshare-{space}" for space in ("user", "ipc", "pid", "net", "uts")]
    devices = [f"--dev-bind {path} {path}".split() for pattern in GPUS for path in glob.glob(pattern)] if gpu else []
    return [
        *(shutil.which("bwrap") or "bwrap", *spaces, "--disable-userns", "--die-with-parent", "--cap-drop", "ALL"),
        *("--ro-bind", "/", "/", "--dev", "/dev", *(part for device in devices for part in device)),
        *("--size", str(SCRATCH_MB * 2**20), "--tmpfs", SCRATCH, "--proc", "/proc", "--chdir", os.getcwd()),
        *("--setenv", "TMPDIR", SCRATCH, "--setenv", "PYTHONDONTWRITEBYTECODE", "1"),
    ]
