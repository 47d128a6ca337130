"""Streams and events of the device that is not there, and what would be a race between streams.

Operations are computed at once, in the host's order. Which of them a GPU could run in another order is found by vector clocks, as
in `torch.cuda._sanitizer`: of each other stream, a stream knows how many operations it has waited for. An operation races with an
earlier one on another stream that it has not waited for, if both use the same memory and one writes. Unlike there, memory is that
of all views, and it counts as waiting only what orders streams (events, and `synchronize`), not that the host has read a number.

Memory that is freed may be taken anew by any later operation of the stream that it was allocated on, whatever its size. So that
operation races with those that read or wrote the memory on another stream, unless `record_stream` named it.

Nothing is recorded before a second stream is made.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from pretended_device.waits import Ledger, line


class Race(RuntimeError):
    """Two streams use the same memory in an order that nothing fixes."""


@dataclass(frozen=True, slots=True)
class Access:
    """An operation that used a piece of memory."""

    stream: int
    time: int
    """Number of the stream's operations up to it."""
    what: str
    """The operation and its line."""

    def __str__(self) -> str:
        return f"{self.what} on {'the default stream' if not self.stream else f'stream {self.stream}'}"


@dataclass(eq=False)
class Memory:
    """A storage on the device; it lives as long as the storage, whose attribute it is."""

    stream: Stream
    """Where it was allocated."""
    written: Access | None = None
    read: dict[int, Access] = field(default_factory=dict)
    """Stream -> its last reading since the last writing."""
    recorded: set[int] = field(default_factory=set)
    """Streams given to `record_stream`."""

    def __del__(self) -> None:
        used = [access for access in (self.written, *self.read.values()) if access]
        self.stream.freed.extend(access for access in used if access.stream not in {self.stream.number, *self.recorded})


class Stream:
    """In place of `torch.cuda.Stream`."""

    device = torch.device("cuda", 0)

    def __init__(self, device: Any = None, priority: int = 0) -> None:
        self.number = self.cuda_stream = STREAMS.enter(self)
        self.clock = {self.number: 1}
        """Stream -> number of its operations that have been waited for; its own."""
        self.freed: deque[Access] = deque()
        """What used freed memory of this stream."""

    def wait_event(self, event: Event) -> None:
        with STREAMS.lock:
            for stream, time in event.clock.items():
                self.clock[stream] = max(time, self.clock.get(stream, 0))

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.record_event().synchronize()


class Event:
    """In place of `torch.cuda.Event`; one that was never recorded has happened."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.clock: dict[int, int] = {}

    def record(self, stream: Stream | None = None) -> None:
        with STREAMS.lock:
            self.clock = dict((stream or STREAMS.current()).clock)

    def wait(self, stream: Stream | None = None) -> None:
        (stream or STREAMS.current()).wait_event(self)

    def synchronize(self) -> None:
        STREAMS.ledger.wait("synchronize", "event")
        for stream in STREAMS.all:
            stream.wait_event(self)


class Streams:
    """All streams, and what they do."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.all: list[Stream] = []
        self._thread = threading.local()

    def begin(self, ledger: Ledger) -> None:
        """There is only the default stream."""
        self.ledger, self.all, self._thread = ledger, [], threading.local()
        Stream()

    def enter(self, stream: Stream) -> int:
        """The number of a new stream."""
        with self.lock:
            self.all.append(stream)
            return len(self.all) - 1

    def default(self, device: Any = None) -> Stream:
        return self.all[0]

    def current(self, device: Any = None) -> Stream:
        """Each thread has its own."""
        found: Stream = getattr(self._thread, "stream", self.all[0])
        return found

    @contextmanager
    def on(self, stream: Stream | None) -> Iterator[None]:
        """In place of `torch.cuda.stream`."""
        before = self.current()
        self._thread.stream = stream or before
        try:
            yield
        finally:
            self._thread.stream = before

    def synchronize(self) -> None:
        """All streams have waited for all."""
        for stream in self.all:
            for other in self.all:
                stream.wait_stream(other)

    def operate(
        self, name: str, reads: Sequence[torch.Tensor], writes: Sequence[torch.Tensor], makes: Sequence[torch.Tensor]
    ) -> None:
        """An operation on the current stream. The tensors are those that hold the numbers. Raises Race."""
        if len(self.all) < 2:
            return
        with self.lock:
            stream = self.current()
            stream.clock[stream.number] += 1
            this = Access(stream.number, stream.clock[stream.number], f"{name} ({line()})")
            for tensor in makes:
                if _memory(tensor) is None:
                    while stream.freed:
                        self._ordered(stream, stream.freed.popleft(), this, "may take memory that was freed after")
                    _remember(tensor, Memory(stream, this))
            for tensor in reads:
                memory = self._known(tensor)
                self._ordered(stream, memory.written, this, "reads what was written by")
                memory.read[stream.number] = this
            for tensor in writes:
                memory = self._known(tensor)
                for before in (memory.written, *memory.read.values()):
                    self._ordered(stream, before, this, "writes what was used by")
                memory.written, memory.read = this, {}

    def record(self, tensor: torch.Tensor, stream: Stream) -> None:
        """`tensor.record_stream(stream)`."""
        if len(self.all) > 1:
            self._known(tensor).recorded.add(stream.number)

    def _known(self, tensor: torch.Tensor) -> Memory:
        memory = _memory(tensor)
        if memory is None or memory.stream not in self.all:  # it was made before there were streams, or by an earlier test
            memory = Memory(self.default(), Access(0, 1, "an operation before there was a second stream"))
            _remember(tensor, memory)
        return memory

    def _ordered(self, stream: Stream, before: Access | None, this: Access, how: str) -> None:
        if before is not None and before.time > stream.clock.get(before.stream, 0):
            raise Race(f"{this} {how} {before}, and has not waited for it")


def _memory(tensor: torch.Tensor) -> Memory | None:
    found: Memory | None = getattr(tensor.untyped_storage(), "memory", None)
    return found


def _remember(tensor: torch.Tensor, memory: Memory) -> None:
    tensor.untyped_storage().memory = memory  # type: ignore[attr-defined]


STREAMS = Streams()
