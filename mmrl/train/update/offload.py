"""An optimiser's memory in the host: what it keeps of weights is on the device only while they are stepped."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

import torch

from mmrl.compute.devices import CAPTURING
from mmrl.train.update.rules import TABLES, Rule

AT_ONCE = 2**27
"""Weights that are stepped together, unless one alone has more."""


class Offload:
    """Keeps the float32 masters of weights, and the rule's state, in the host's memory, pinned beside a GPU. Masters keep their
    shape and their device, on which gradients are summed, and have no storage there."""

    def __init__(self, rule: Rule, masters: Sequence[torch.Tensor]) -> None:
        """masters: those that aren't the weights themselves."""
        self.rule = rule
        self.device: torch.device = rule.param_groups[0]["params"][0].device
        self.masters = {id(master): self._like(master) for master in masters}
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
                    host = self.states[id(weight), key] = self._like(value)
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

    @staticmethod
    def _like(value: torch.Tensor) -> torch.Tensor:
        return torch.empty_like(value, device="cpu", requires_grad=False, pin_memory=value.is_cuda)
