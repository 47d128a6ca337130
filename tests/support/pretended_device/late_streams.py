"""Streams of the pretended device that copy as late as CUDA may: when another stream waits for them.

What was computed with a tensor before its copy was waited for has 0xFF in its bytes, which are NaN in floats. The stream that
computes, the default one, computes at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from pretended_device import tensor

ALONE = 2
"""Uses of a storage that one tensor has, while it is counted."""


@dataclass
class Copied:
    """A copy to the device on a stream of its own."""

    to: torch.Tensor | None
    """None once it is done."""
    source: torch.Tensor
    memory: StorageWeakRef

    def do(self) -> None:
        if self.to is not None:
            self.to.copy_(self.source)
        self.to = None

    @property
    def dropped(self) -> bool:
        """Nobody but this has the memory, and it is still to be written."""
        return self.to is not None and torch._C._storage_Use_Count(self.to.untyped_storage()._cdata) <= ALONE


@dataclass(frozen=True)
class Event:
    stream: Stream
    count: int
    """Copies of the stream before it."""


class Stream:
    def __init__(self, streams: Streams) -> None:
        self.streams = streams
        self.copies: list[Copied] = []
        self.waits = False
        """Whether it waits for all that was computed before its next copy."""

    def record_event(self) -> Event:
        return Event(self, len(self.copies))

    def wait_event(self, event: Event) -> None:
        if event.stream is self.streams.computing:
            self.waits = True
        self.streams.look()
        for copy in event.stream.copies[: event.count]:
            copy.do()

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())


@dataclass
class Streams:
    """All streams of the device, and what was wrong with them."""

    faults: list[str] = field(default_factory=list)
    most: int = 0
    """Copies whose memory was held at the same time."""

    def __post_init__(self) -> None:
        self.computing = self.current = Stream(self)
        self.made: list[Stream] = []

    @property
    def copies(self) -> list[Copied]:
        return [copy for stream in self.made for copy in stream.copies]

    @property
    def held(self) -> int:
        """Copies whose memory is held now."""
        return sum(not copy.memory.expired() for copy in self.copies)

    def new(self, device: Any = None) -> Stream:
        self.made.append(Stream(self))
        return self.made[-1]

    @contextmanager
    def inside(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def copy(self, to: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        stream = self.current
        if stream is self.computing:
            return tensor.copy(to, source, non_blocking)
        tensor._transferred(source, non_blocking, up=True)
        if not (non_blocking and source.is_pinned()):
            self.faults.append("the host waited for a copy on a stream of its own")
        if not stream.waits:
            self.faults.append("a copy was written to memory that an earlier computation may still use")
        stream.waits = False
        there = to.inner.detach()
        there.view(torch.uint8).fill_(0xFF)
        stream.copies.append(Copied(there, source, StorageWeakRef(there.untyped_storage())))
        self.most = max(self.most, self.held)
        return to

    @contextmanager
    def functions(self) -> Iterator[None]:
        """Inside, `torch.cuda` has these streams."""
        given = {"Stream": self.new, "current_stream": lambda device=None: self.current, "stream": self.inside}
        compute = tensor.compute

        def computed(func: Any, args: Any, kwargs: Any) -> Any:
            if tensor.operation(func).name == "copy_":
                return self.copy(*args, **kwargs)
            return compute(func, args, kwargs)

        with mock.patch.multiple(torch.cuda, **given), mock.patch.object(tensor, "compute", computed):
            yield

    def look(self) -> None:
        """Take note of memory that was dropped too early."""
        if any(copy.dropped for copy in self.copies):
            self.faults.append("memory was free for other use before the copy to it was done")

    def check(self) -> None:
        """Raise AssertionError if a stream used memory too early or too late."""
        self.look()
        assert not self.faults, "; ".join(sorted(set(self.faults)))
