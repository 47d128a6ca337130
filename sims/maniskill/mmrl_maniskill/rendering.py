"""Chooses the device that renders: a GPU, else a software driver for Vulkan, else none. Each is tried in a separate process."""

from __future__ import annotations

import functools
import os
import warnings
from dataclasses import dataclass, field
from pathlib import Path

from mmrl import UserError
from mmrl.api.simulators.processes import EnvironmentProcesses

PROBE_S = 120.0
"""Timeout in seconds for the first pictures of a device, as some drivers hang forever."""
DRIVERS = (
    "/usr/share/vulkan/icd.d/lvp_icd*.json",
    "/etc/vulkan/icd.d/lvp_icd*.json",
    "/usr/lib*/chromium/vk_swiftshader_icd.json",
)
"""Paths of software drivers: Mesa's lavapipe, Chromium's SwiftShader."""
VARIABLES = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES")
CURE = "apt-get install libvulkan1 chromium, whose SwiftShader renders in software; or mesa-vulkan-drivers, version 25 or later"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rung:
    """A way to render."""

    rendering: str
    """`gpu`, `gpu:1` for that one, `software` or `none`."""
    environment: dict[str, str] = field(default_factory=dict)
    """Environment variables that processes need before they import sapien."""
    driver: str = ""
    """The driver's file, or why the others were skipped."""


def choose(wanted: str, pictures: bool, python: str | None = None, seconds: float = PROBE_S, gpu: int | None = None) -> Rung:
    """The first rung that works. wanted: `auto`, `gpu`, `software` or `none`. pictures: whether pictures are needed, not only
    states. seconds: timeout for each device. gpu: number of the GPU; None is the first.

    Raises UserError if the wanted device doesn't work. Warns if `auto` skips a device that doesn't work.
    """
    if wanted == "none":
        if pictures:
            raise UserError('rendering = "none" gives no pictures: set obs = "state", or rendering = "auto"')
        return Rung(rendering="none")
    tried: list[str] = []
    for rung in _rungs(wanted, gpu):
        why = _probe(rung.rendering, tuple(sorted(rung.environment.items())), python, seconds)
        if why is None:
            if tried:
                warnings.warn(f"maniskill renders with {rung.driver}: {'; '.join(tried)}", stacklevel=2)
            return rung
        tried.append(f"{rung.driver} doesn't work ({why})")
    found = "; ".join(tried) or "no GPU and no software driver for Vulkan was found"
    if pictures or wanted != "auto":
        raise UserError(f"maniskill can't render: {found}: {CURE}" + ('; or set obs = "state"' if pictures else ""))
    warnings.warn(f"maniskill gives states but no pictures: {found}: {CURE}", stacklevel=2)
    return Rung(rendering="none", driver=found)


def _rungs(wanted: str, gpu: int | None) -> list[Rung]:
    """The rungs to try, the fastest first. gpu: see `choose`."""
    named = next((os.environ[name] for name in VARIABLES if os.environ.get(name)), None)
    rungs = []
    if wanted in ("auto", "gpu") and (wanted == "gpu" or any(Path("/dev").glob("nvidia[0-9]*"))):
        rungs.append(Rung(rendering="gpu" if gpu is None else f"gpu:{gpu}", driver="the GPU"))
    if wanted in ("auto", "software"):
        files = [named] if named else [str(p) for pattern in DRIVERS for p in sorted(Path("/").glob(pattern.lstrip("/")))]
        rungs += [
            Rung(rendering="software", environment={VARIABLES[0]: file, "LP_NUM_THREADS": "1"}, driver=file) for file in files
        ]
    return rungs


@functools.cache
def _probe(rendering: str, environment: tuple[tuple[str, str], ...], python: str | None, seconds: float) -> str | None:
    """Why a rung doesn't work, or None."""
    try:
        EnvironmentProcesses(
            "mmrl_maniskill.devices:Probe",
            {"rendering": rendering},
            1,
            what=rendering,
            python=python,
            environment=dict(environment),
            start_s=seconds,
            tries=1,
        ).close()
    except UserError as error:
        return str(error).removeprefix(f"{rendering} can't be made: ")
    return None
