"""Pictures of micro-batches on their way to a GPU: those of the next come over while the present one is computed."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import torch

from mmrl.api.transfer import Pinned

AT_ONCE = 2
"""Micro-batches whose pictures are on the device at a time."""


class Prefetcher:
    """Keeps the pictures of micro-batches in pinned memory of the host and brings them to the device when they are read.

    Reading those of a micro-batch also starts the copy of the next one's, on a stream of its own, and drops those of others. So
    passes read micro-batches in the order in which they were added; another order is as right, and waits for its copies. Of two
    micro-batches both stay, and no pass after the first copies anything. On a CPU everything stays as it is.
    """

    def __init__(self, device: torch.device, on_host: Collection[str] = ()) -> None:
        """on_host: names of what a model reads on the host."""
        self.device, self.on_host = device, on_host
        self._pinned: list[Pinned] = []
        self._copies: dict[int, _Copy] = {}
        self._stream: torch.cuda.Stream | None = None

    def add(self, media: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
        """The media of the next micro-batch, to be read where they are needed. What is on the device already stays there."""
        moving = {name: x for name, x in media.items() if x.device.type == "cpu" and name not in self.on_host}
        if self.device.type != "cuda" or not moving:
            return media
        self._pinned.append(Pinned(moving))
        return _Media(self, len(self._pinned) - 1, {name: None if name in moving else x for name, x in media.items()})

    def read(self, number: int) -> dict[str, torch.Tensor]:
        """What was added as this number, on the device; the current stream waits for it, and the host doesn't."""
        first = min(number, max(0, len(self._pinned) - AT_ONCE))
        self._copies = {n: copy for n, copy in self._copies.items() if first <= n < first + AT_ONCE}
        for n in range(number, min(number + AT_ONCE, len(self._pinned))):
            if n not in self._copies:
                self._copies[n] = self._start(self._pinned[n])
        found = self._copies[number]
        torch.cuda.current_stream(self.device).wait_event(found.done)
        return found.tensors

    def _start(self, pinned: Pinned) -> _Copy:
        """Memory is taken from the stream that computes: once it is dropped, that stream has it for what it computes next,
        however far ahead of the device the host is."""
        self._stream = self._stream or torch.cuda.Stream(self.device)
        there = torch.empty(len(pinned.buffer), dtype=torch.uint8, device=self.device)
        computing = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(computing)  # which may still use that memory for something else
        with torch.cuda.stream(self._stream):
            there.copy_(pinned.buffer, non_blocking=True)
        return _Copy(pinned.of(there), self._stream.record_event(), computing)


@dataclass(frozen=True, slots=True)
class _Copy:
    tensors: dict[str, torch.Tensor]
    done: torch.cuda.Event
    computing: torch.cuda.Stream
    """Whose memory it is."""

    def __del__(self) -> None:
        self.computing.wait_event(self.done)  # so what is dropped unread isn't overwritten while it is still being written


class _Media(Mapping[str, torch.Tensor]):
    """Media of one micro-batch. Their names are known without them."""

    def __init__(self, prefetcher: Prefetcher, number: int, known: Mapping[str, torch.Tensor | None]) -> None:
        """known: name -> what isn't brought over, None for what is."""
        self._prefetcher, self._number, self._known = prefetcher, number, known

    def __getitem__(self, name: str) -> torch.Tensor:
        found = self._known[name]
        return self._prefetcher.read(self._number)[name] if found is None else found

    def __iter__(self) -> Iterator[str]:
        return iter(self._known)

    def __len__(self) -> int:
        return len(self._known)
