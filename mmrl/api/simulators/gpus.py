"""The GPU of a simulator's processes: that of the simulator, where they would all take the machine's first."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from mmrl.api.errors import UserError

if TYPE_CHECKING:
    import torch

CUDA, EGL = "CUDA_VISIBLE_DEVICES", "MUJOCO_EGL_DEVICE_ID"
ANSWER_S = 20.0
"""Timeout in seconds for nvidia-smi."""


def cuda_variables(device: str | torch.device) -> dict[str, str]:
    """Environment variables with which a process sees this GPU alone; none for a CPU."""
    name = _name(device)
    return {} if name is None else {CUDA: name}


def egl_variables(device: str | torch.device) -> dict[str, str]:
    """Environment variables with which MuJoCo draws on this GPU; none for a CPU, and where the user has named one to draw on.
    There is CUDA's too: robosuite wants both to be the same number."""
    name = _name(device)
    if name is None or EGL in os.environ:
        return {}
    if name == "0" and CUDA not in os.environ:  # MuJoCo takes the first that can draw, which a number would forbid
        return {}
    number = name if name.isdigit() else _number(name)
    return {} if number is None else {CUDA: number, EGL: number}


def gpu_index(device: str | torch.device) -> int | None:
    """The number of a GPU among those that this process sees, of the current one if the device has none; None for a CPU."""
    import torch

    device = torch.device(device)
    if device.type != "cuda":
        return None
    return torch.cuda.current_device() if device.index is None else device.index


def _name(device: str | torch.device) -> str | None:
    """What CUDA calls a GPU of this process: its number on the machine or, if this process was given so, the beginning of its
    UUID. None for a CPU."""
    number = gpu_index(device)
    if number is None:
        return None
    named = os.environ.get(CUDA)
    if named is None:
        return str(number)
    names = [name.strip() for name in named.split(",")]
    if number >= len(names) or not names[number]:
        raise UserError(f"there is no {str(device)!r}, as {CUDA} = {named!r}: name more GPUs in it, or use one of these")
    return names[number]


def _number(uuid: str) -> str | None:
    """The number of the GPU whose UUID begins so; None if the driver doesn't tell, as of a part of a GPU, which can't draw."""
    command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, stdin=subprocess.DEVNULL).stdout
    except (OSError, subprocess.TimeoutExpired):
        return None
    return next((str(number) for number, each in enumerate(told.split()) if each.startswith(uuid)), None)
