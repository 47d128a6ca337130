"""The device that a run computes on."""

from __future__ import annotations

import torch

from mmrl.api.errors import UserError
from mmrl.compute import ranks
from mmrl.config.sections import PolicyConfig


def device_of(policy: PolicyConfig) -> str:
    """The torch device that `policy.device` stands for. Raises UserError when this machine lacks it."""
    if policy.device == "auto":
        return f"cuda{ranks.local_device()}" if torch.cuda.is_available() else "cpu"
    if ranks.count() > 1 and policy.device.startswith("cuda:"):
        raise UserError(f'policy.device = {policy.device!r} is one GPU, and {ranks.count()} learners run: use "auto"')
    return present("policy.device", policy.device)


def present(key: str, device: str) -> str:
    """A device that this machine has; UserError otherwise."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f'{key} = {device!r}, but torch sees no GPU: use "cpu" or "auto", and see mmrl doctor')
    if device.startswith("cuda:") and int(device[5:]) >= torch.cuda.device_count():
        raise UserError(f"{key} = {device!r}, but there are {torch.cuda.device_count()} GPUs: they count from cuda:0")
    return device
