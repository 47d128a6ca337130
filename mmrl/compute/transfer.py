"""From the host to a device, without waiting for it."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch

ALIGNED = 64
"""Bytes: each tensor begins at a multiple of them, as every dtype and kernel may."""


def upload(tensors: Mapping[str, torch.Tensor], device: torch.device, on_host: Collection[str] = ()) -> dict[str, torch.Tensor]:
    """The tensors on `device`, brought there by one copy from pinned memory that runs beside the host: a copy for each, or from
    other memory, would be waited for. Those on the device already, and those named in `on_host`, stay where they are."""
    found = dict(tensors)
    moving = {} if device.type == "cpu" else {k: v for k, v in tensors.items() if v.device.type == "cpu" and k not in on_host}
    if not moving:
        return found
    starts, size = {}, 0
    for name, tensor in moving.items():
        starts[name], size = size, size + -(-tensor.nbytes // ALIGNED) * ALIGNED
    buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    for name, tensor in moving.items():
        _part(buffer, starts[name], tensor).copy_(tensor)
    there = buffer.to(device, non_blocking=True)
    return found | {name: _part(there, starts[name], tensor) for name, tensor in moving.items()}


def _part(buffer: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    return buffer[start : start + like.nbytes].view(like.dtype).view(like.shape)
