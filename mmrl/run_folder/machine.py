"""Facts about this environment and this machine, for `mmrl doctor`; `mmrl.ui.doctor` interprets them.

Libraries and drivers are tried in child processes with a timeout, so that a crash or a hang is reported too.
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
"""The JSON that a child process printed, or `{"error": why it failed}`."""

TRY_TORCH = """
import json, torch
from mmrl.compute.devices import remark, why_no_gpu
why = why_no_gpu()
gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if torch.cuda.is_available() else []
remarks = [remark(f"cuda:{i}") for i in range(len(gpus))]
print(json.dumps({"build": torch.version.cuda or torch.version.hip or "cpu", "gpus": gpus, "remarks": remarks, "why": why}))
"""
TRY_TORCHVISION = """
import json
import mmrl  # declares the operators
import torchvision, torchvision.extension
print(json.dumps({"compiled": torchvision.extension._has_ops()}))
"""
TRY_TRANSFORMERS = """
import mmrl
from transformers import AutoModelForImageTextToText, AutoProcessor, Qwen2_5_VLForConditionalGeneration
print("{}")
"""
TRY_SIMULATOR = """
import json, sys
from mmrl.registry.plugins import registry
registry()  # makes plugins available that are files, not installed
from mmrl.registry.importing import load_target
print(json.dumps(load_target(sys.argv[1], "its check")()))
"""


def installed() -> dict[str, str]:
    """Version by distribution name (lower case, dashes)."""
    found = (d.metadata for d in metadata.distributions())  # once for each: `d.name` and `d.version` parse the file again
    return {canonical(m["Name"]): m["Version"] for m in found if m["Name"]}


def extras(dist: str = DISTRIBUTION) -> dict[str, list[Requirement]]:
    """Extra -> its requirements, with those of nested extras; empty if the distribution isn't installed."""
    try:
        declared = metadata.metadata(dist)
    except metadata.PackageNotFoundError:
        return {}
    required = [Requirement(r) for r in declared.get_all("Requires-Dist") or ()]
    own = {
        extra: [r for r in required if r.marker and r.marker.evaluate({"extra": extra}) > r.marker.evaluate({"extra": ""})]
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
    """The requirements of an installed distribution in this environment; extras of mmrl are replaced by their requirements."""
    try:
        required = [Requirement(r) for r in metadata.requires(dist) or ()]
    except metadata.PackageNotFoundError:
        return []
    ours, found = extras(), []
    for r in required:
        if r.marker and not r.marker.evaluate({"extra": ""}):
            continue
        found += [one for extra in sorted(r.extras) for one in ours.get(extra, ())] if canonical(r.name) == DISTRIBUTION else [r]
    return found


def has_pth() -> bool:
    """Whether `python -m mmrl.compute.torchvision --install-pth` was run in this environment."""
    return any((Path(folder) / PTH_NAME).is_file() for folder in sys.path if folder)


def nvidia_gpus(timeout_s: float = 20.0) -> list[str]:
    """Names of the GPUs that NVIDIA's driver lists; empty without a working driver."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return []
    command = [smi, "--query-gpu=name", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except subprocess.TimeoutExpired:
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []
