"""The manifest of a run: versions, plugins, git, machine. Imports nothing heavy."""

from __future__ import annotations

import datetime
import functools
import os
import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any


def manifest(seed: int) -> dict[str, Any]:
    """The content of `manifest.json`."""
    from mmrl import __version__
    from mmrl.registry import plugins

    return {
        "mmrl": __version__,
        "python": platform.python_version(),
        "packages": _packages(),
        "plugins": [{"name": p.name, "dist": p.dist, "version": p.version} for p in plugins.registry().plugins],
        "git": git(),
        "machine": machine(),
        "seed": seed,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
    }


@functools.cache
def _packages() -> dict[str, str]:
    """Versions of all installed distributions, cached, as this reads hundreds of files."""
    from mmrl.run_folder.machine import installed

    return dict(sorted(installed().items()))


def git() -> dict[str, Any]:
    """`{"commit", "dirty"}` of the current folder; both None outside a repository. Untracked files don't make it dirty."""
    commit = _output("git", "rev-parse", "HEAD")
    status = _output("git", "status", "--porcelain", "--untracked-files=no") if commit else None
    return {"commit": commit, "dirty": None if status is None else bool(status)}


def machine() -> dict[str, Any]:
    """`{"system", "cpu", "cores", "memory_mb", "gpus"}`; cores are those this process may use."""
    from mmrl.run_folder.machine import nvidia_gpus

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {"system": platform.platform(), "cpu": _cpu(), "cores": cores, "memory_mb": memory // 2**20, "gpus": nvidia_gpus()}


def _cpu() -> str:
    info = Path("/proc/cpuinfo")
    names = (
        [
            line.partition(":")[2].strip()
            for line in info.read_text(errors="replace").splitlines()
            if line.startswith("model name")
        ]
        if info.exists()
        else []
    )
    return names[0] if names else platform.processor() or platform.machine()


def _output(*command: str) -> str | None:
    """A program's output, or None if it is missing, slow or fails."""
    if not shutil.which(command[0]):
        return None
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
