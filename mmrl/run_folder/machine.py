"""Facts about this environment and this machine, for `mmrl doctor`; what they mean is judged in `mmrl.ui.doctor`.

Libraries and drivers are tried in child processes with a deadline: one that crashes or hangs is a fact like any other.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from mmrl.compute.torchvision import PTH_NAME
from mmrl.registry.distributions import DISTRIBUTION, canonical

Facts = Mapping[str, Any]
"""What a child process printed, or `{"error": why it did not}`."""

TRY_TORCH = """
import json, torch
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
print(json.dumps({"build": torch.version.cuda or torch.version.hip or "cpu", "gpus": gpus}))
"""
TRY_TORCHVISION = """
import json
from mmrl.compute.torchvision import prepare_torchvision
prepare_torchvision()
import torchvision, torchvision.extension
print(json.dumps({"compiled": torchvision.extension._has_ops()}))
"""
TRY_TRANSFORMERS = """
from mmrl.compute.torchvision import prepare_torchvision
prepare_torchvision()
from transformers import AutoModelForImageTextToText, AutoProcessor, Qwen2_5_VLForConditionalGeneration
print("{}")
"""
TRY_SIMULATOR = """
import json, sys
from mmrl.registry.plugins import registry
registry()  # what a plugin's file has, which isn't installed
from mmrl.registry.importing import load_target
print(json.dumps(load_target(sys.argv[1], "its check")()))
"""


def installed() -> dict[str, str]:
    """Version by distribution name (lower case, dashes)."""
    found = (d.metadata for d in metadata.distributions())  # once for each: `d.name` and `d.version` parse the file again
    return {canonical(m["Name"]): m["Version"] for m in found if m["Name"]}


def extras(dist: str = DISTRIBUTION) -> dict[str, list[Requirement]]:
    """What each extra of an installed distribution asks for, with the extras that it names; empty where it is not installed."""
    try:
        declared = metadata.metadata(dist)
    except metadata.PackageNotFoundError:
        return {}
    asked = [Requirement(r) for r in declared.get_all("Requires-Dist") or ()]
    own = {
        extra: [r for r in asked if r.marker and r.marker.evaluate({"extra": extra}) > r.marker.evaluate({"extra": ""})]
        for extra in declared.get_all("Provides-Extra") or ()
    }

    def flat(wanted: Iterable[Requirement]) -> Iterator[Requirement]:
        for r in wanted:
            if canonical(r.name) == canonical(dist):
                yield from flat(one for extra in sorted(r.extras) for one in own.get(canonical(extra), ()))
            else:
                yield r

    return {extra: list(flat(wanted)) for extra, wanted in own.items()}


def requirements(dist: str) -> list[Requirement]:
    """What an installed distribution asks for in this environment, with what the extras of mmrl bring that it names."""
    try:
        asked = [Requirement(r) for r in metadata.requires(dist) or ()]
    except metadata.PackageNotFoundError:
        return []
    ours, found = extras(), []
    for r in asked:
        if r.marker and not r.marker.evaluate({"extra": ""}):
            continue
        found += [one for extra in sorted(r.extras) for one in ours.get(extra, ())] if canonical(r.name) == DISTRIBUTION else [r]
    return found


def has_pth() -> bool:
    """Whether `python -m mmrl.compute.torchvision --install-pth` was run in this environment."""
    return any((Path(folder) / PTH_NAME).is_file() for folder in sys.path if folder)


def nvidia_gpus(timeout_s: float = 20.0) -> list[str]:
    """The GPUs that NVIDIA's driver lists; none without a driver that works."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    command = [smi, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []
