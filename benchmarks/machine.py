"""Description of the machine and packages, for every benchmark's JSON, and what a benchmark has found so far."""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import threading
from importlib.metadata import version
from pathlib import Path
from typing import Any

PARTIAL = "MMRL_BENCH_PARTIAL"
"""Environment variable: the file into which `keep` writes."""
PROFILE = "MMRL_BENCH_PROFILE"
"""Environment variable: the file to which `step_gpu.py` and others append a profile as text."""

_KEEPING = threading.Lock()

if PARTIAL in os.environ:  # a part that takes too long is ended: the log says where it was
    faulthandler.register(signal.SIGTERM, all_threads=False, chain=True)


def machine(*packages: str) -> dict[str, Any]:
    from mmrl.run_folder import manifest

    return manifest.machine() | {"versions": {p: version(p) for p in ("torch", "transformers", *packages)}}


def keep(found: dict[str, Any]) -> None:
    """Writes what is known so far to the file that `gpu_all.py` reads if this process doesn't come to its end. Any thread may."""
    if path := os.environ.get(PARTIAL):
        new = Path(f"{path}.new")
        with _KEEPING:
            new.write_text(json.dumps(found | {"partial": True}))
            new.replace(path)


def profiled(title: str, text: str) -> None:
    """Appends a profile to the file for profiles, if there is one."""
    if path := os.environ.get(PROFILE):
        with open(path, "a") as file:
            file.write(f"== {title}\n{text}\n\n")
