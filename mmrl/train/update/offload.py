"""An optimiser's memory in the host: what it keeps of weights is on the device only while they are stepped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from mmrl.compute.devices import CAPTURING
from mmrl.train.update.rules import TABLES, Rule

AT_ONCE = 2**27
"""Weights that are stepped together, unless one alone has more."""
ROOM = 2**30
"""Most bytes of pinned memory that tensors share. torch rounds what is pinned up to a power of two: alone, the masters and means
of a 3B would take 64 GiB for 42."""
ALIGNED = 64
"""Tensors begin at multiples of this many bytes."""


class Offload:
    """Keeps the float32 masters of weights, and the rule's state, in the host's memory, pinned beside a GPU. Masters keep their
    shape and their device, on which gradients are summed, and have no storage there."""

    def __init__(self, rule: Rule, masters: Sequence[torch.Tensor]) -> None:
        """masters: those that aren't the weights themselves."""
        self.rule = rule
        weights = [weight for group in rule.param_groups for weight in group["params"]]
        self.device: torch.device = weights[0].device
        self.host = HostMemory(self.device.type == "cuda", min(ROOM, sum(_room(4 * weight.numel()) for weight in weights)))
        self.masters = {id(master): self.host.like(master) for master in masters}
        self.states: dict[tuple[int, str], torch.Tensor] = {}
        self.leave(masters)

    def pieces(self, weights: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
        """The weights in groups that are stepped together."""
        piece: list[torch.Tensor] = []
        for weight in weights:
            if piece and sum(w.numel() for w in piece) + weight.numel() > AT_ONCE:
                yield piece
                piece = []
            piece.append(weight)
        if piece:
            yield piece

    @contextlib.contextmanager
    def fetched(self, weights: Sequence[torch.Tensor]) -> Iterator[None]:
        """Inside, what is kept of these weights is on the device, and the rule steps no others."""
        own = {id(weight) for weight in weights}
        groups = [(group, group["params"]) for group in self.rule.param_groups]
        self.enter(weights)
        for group, everything in groups:
            group["params"] = [weight for weight in everything if id(weight) in own]
        try:
            yield
        finally:
            for group, everything in groups:
                group["params"] = everything
            self.leave(weights)

    @torch.no_grad()
    def enter(self, weights: Sequence[torch.Tensor]) -> None:
        """Bring what is kept of these weights to their device."""
        for weight in weights:
            if (host := self.masters.get(id(weight))) is not None:
                weight.untyped_storage().resize_(weight.numel() * weight.element_size())
                weight.copy_(host, non_blocking=True)
            held = self.rule.state.get(weight, {})
            for key in [key for key in held if (id(weight), key) in self.states]:
                held[key] = held[key].to(weight.device, non_blocking=True, copy=True)

    @torch.no_grad()
    def leave(self, weights: Sequence[torch.Tensor]) -> None:
        """Move it to the host. Whoever reads it there waits first: see `wait`."""
        for weight in weights:
            if (host := self.masters.get(id(weight))) is not None:
                host.copy_(weight, non_blocking=True)
                weight.untyped_storage().resize_(0)
            held = self.rule.state.get(weight, {})
            for key, value in list(held.items()):
                # a count is no tensor or of one number; paged tensors leave a full device by themselves
                if key in TABLES or not torch.is_tensor(value) or value.ndim == 0 or value.device != weight.device:
                    continue
                host = self.states.get((id(weight), key))
                if host is None:
                    host = self.states[id(weight), key] = self.host.like(value)
                host.copy_(value, non_blocking=True)
                held[key] = host

    def values(self, master: torch.Tensor) -> torch.Tensor:
        """A master's numbers, in the host's memory if they are there."""
        return self.masters.get(id(master), master)

    def wait(self) -> None:
        """Wait for copies to the host."""
        if self.device.type == "cuda":
            with CAPTURING:
                torch.cuda.synchronize(self.device)


class HostMemory:
    """Tensors in the host's memory, many in one piece of it."""

    def __init__(self, pinned: bool, size: int) -> None:
        """size: bytes of a piece. Tensors of more than half of it have pieces of their own."""
        self.pinned, self.size = pinned, size
        self.piece_B = torch.empty(0, dtype=torch.uint8)
        self.end = 0
        """Bytes of the piece that are taken."""

    def like(self, value: torch.Tensor) -> torch.Tensor:
        """A contiguous tensor of its shape and dtype, with any numbers."""
        count = value.numel() * value.element_size()
        if 2 * count > self.size:
            return torch.empty(value.shape, dtype=value.dtype, pin_memory=self.pinned)
        if self.end + count > len(self.piece_B):
            self.piece_B, self.end = torch.empty(self.size, dtype=torch.uint8, pin_memory=self.pinned), 0
        found = self.piece_B[self.end : self.end + count].view(value.dtype).view(value.shape)
        self.end += _room(count)
        return found


def _room(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED
