"""The device that a run computes on."""

from __future__ import annotations

import torch

from mmrl.api.errors import UserError
from mmrl.compute import ranks
from mmrl.config.sections import PolicyConfig


def resolve_device(policy: PolicyConfig) -> str:
    """The torch device for `policy.device`. Raises UserError if this machine doesn't have it."""
    if policy.device == "auto":
        return f"cuda{ranks.local_device()}" if torch.cuda.is_available() else "cpu"
    if ranks.world_size() > 1 and policy.device.startswith("cuda:"):
        raise UserError(f'policy.device = {policy.device!r} is one GPU, and there are {ranks.world_size()} learners: use "auto"')
    return check_device("policy.device", policy.device)


def check_device(key: str, device: str) -> str:
    """Return the device. Raises UserError if this machine doesn't have it. key: the run-file key, for the message."""
    if device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f'{key} = {device!r}, but torch sees no GPU: use "cpu" or "auto", and see mmrl doctor')
    if device.startswith("cuda:") and int(device[5:]) >= torch.cuda.device_count():
        raise UserError(f"{key} = {device!r}, but there are {torch.cuda.device_count()} GPUs: count from cuda:0")
    return device
