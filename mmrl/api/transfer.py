"""Between the host and a device, with as few waits as there can be: a copy from memory that isn't pinned, or one for each tensor,
is waited for, and so is each copy to the host."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

ALIGNED = 64
"""Bytes: each tensor begins at a multiple of them, as every dtype and kernel may."""


class Pinned:
    """Tensors of the host in one piece of pinned memory: one copy brings them to a device, and the host doesn't wait for it."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        import torch

        starts, size = {}, 0
        for name, tensor in tensors.items():
            starts[name], size = size, size + -(-tensor.nbytes // ALIGNED) * ALIGNED
        self.buffer = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        """uint8 [bytes]."""
        self._parts = {name: (start, _part(self.buffer, start, tensors[name])) for name, start in starts.items()}
        for name, (_, part) in self._parts.items():
            part.copy_(tensors[name])

    def of(self, buffer: torch.Tensor) -> dict[str, torch.Tensor]:
        """The tensors as they lie in a copy of `buffer`, without copying them again."""
        return {name: _part(buffer, start, like) for name, (start, like) in self._parts.items()}


def upload(
    tensors: Mapping[str, torch.Tensor], device: torch.device | str, on_host: Collection[str] = ()
) -> dict[str, torch.Tensor]:
    """The tensors on `device`, brought there from the host by one copy from pinned memory that runs beside it. Those named in
    `on_host` stay where they are."""
    import torch

    found = {k: v if k in on_host or v.device.type == "cpu" else v.to(device) for k, v in tensors.items()}
    moving = {k: v for k, v in found.items() if v.device.type == "cpu" and k not in on_host}
    if not moving or torch.device(device).type == "cpu":
        return found
    pinned = Pinned(moving)
    return found | pinned.of(pinned.buffer.to(device, non_blocking=True))


def upload_one(tensor: torch.Tensor, device: torch.device | str) -> torch.Tensor:
    """See `upload`."""
    return upload({"it": tensor}, device)["it"]


def constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Numbers that never change, on a device: a tensor [len(values)] that is made once, since the host waits whenever one is. All
    callers get the same tensor, so nobody may write to it. It stays for good: a captured graph reads it where it lies."""
    return _constant(values, dtype, device, stream_of(device))


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device, stream: int) -> torch.Tensor:
    import torch

    with torch.inference_mode(False):  # a later pass may have gradients
        return torch.tensor(values, dtype=dtype, device=device)


def download(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors on the host, brought there by one copy. Those that are on it already stay."""
    import torch

    moving = {k: v for k, v in tensors.items() if v.device.type != "cpu"}
    found = dict(tensors)
    if not moving:
        return found
    named = sorted(moving.items(), key=lambda item: -item[1].element_size())  # so that each begins where its dtype may
    buffer = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for _, tensor in named]).cpu()
    start = 0
    for name, tensor in named:
        found[name] = _part(buffer, start, tensor)
        start += tensor.nbytes
    return found


def _part(buffer: torch.Tensor, start: int, like: torch.Tensor) -> torch.Tensor:
    return buffer[start : start + like.nbytes].view(like.dtype).view(like.shape)


def stream_of(device: torch.device) -> int:
    """The current CUDA stream of this thread; 0 elsewhere. A cache of tensors on a device has it in its key: another stream would
    have to wait for what it finds, and when an entry is dropped, its memory would be taken anew while that stream reads it."""
    import torch

    return int(torch.cuda.current_stream(device).cuda_stream) if device.type == "cuda" else 0
