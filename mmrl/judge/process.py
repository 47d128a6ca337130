"""The engine's side of a worker process of the judge: the pipes, the progress, the memory, the cause of its death."""

from __future__ import annotations

import itertools
import mmap
import os
import pickle
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mmrl.api.processes import ENVIRONMENT, SAME_ORDER, ChildProcess, shared_memory
from mmrl.api.processes.tree import resident_bytes
from mmrl.compute.crossing import Fault
from mmrl.judge.messages import LONGEST_REPLY, BadReply, Ready, Scores, parse

if TYPE_CHECKING:
    from mmrl.judge.messages import Chunk

TRANSFER_S = 10.0
"""Seconds that a chunk may take to reach the worker, before its first case's time begins."""
MARGIN = 1.25
"""A worker is killed when it occupies this many times its memory limit: at the limit itself, what it allocates is refused."""


class Worker(ChildProcess):
    """One worker process, and the chunk it is on."""

    def __init__(
        self,
        options: Mapping[str, Mapping[str, Any]],
        memory_mb: int | None,
        environment: Mapping[str, str],
        model: bool = False,
        wrapper: Sequence[str] = (),
    ) -> None:
        """options: of each verifier. model: they are models, which may use all threads. wrapper: see
        `mmrl.api.processes.sandbox`."""
        self.crew: Any = None
        """Its `mmrl.judge.pool.WorkerGroup`."""
        self.memory_mb = memory_mb
        shared = shared_memory(8)
        try:
            self._progress = memoryview(mmap.mmap(shared, 0)).cast("q")
            super().__init__(
                "mmrl.judge.worker:main",
                [shared, memory_mb, bool(wrapper)],
                path=sys.path,
                pass_fds=[shared],
                pipes=True,
                environment={**environment, **(SAME_ORDER if model else ENVIRONMENT)},
                guard=not wrapper,
                wrapper=wrapper,
            )
        finally:
            os.close(shared)
        assert self.popen.stdin and self.popen.stdout
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout
        for pipe in (self.stdin, self.stdout):
            os.set_blocking(pipe.fileno(), False)
        self.outbox = memoryview(pickle.dumps(options))
        self._inbox = bytearray()
        self.born = time.monotonic()
        self.ready = self.spent = self.ended = self.broken = False
        """It has loaded its plugins; it should be replaced; its replies have ended; one of them wasn't what it owed."""
        self.chunk: Chunk | None = None
        self.sent = 0
        """Number of cases in its chunk when it was sent."""
        self.at, self.since = 0, 0.0
        """Index of the running case, and when the engine saw that it runs, by the engine's clock."""
        self._serials, self._serial = itertools.count(), -1
        self._taken = self._measured = 0.0

    def send(self, chunk: Chunk, payloads: list[bytes]) -> None:
        self.chunk, self.sent, self._serial = chunk, len(payloads), next(self._serials)
        self._progress[0] = self.at = 0
        self.since = time.monotonic() + TRANSFER_S
        self.outbox = memoryview(pickle.dumps((self._serial, chunk.verifier, chunk.careful, payloads)))

    def write(self) -> None:
        """Write as much of the outbox as the pipe takes."""
        try:
            self.outbox = self.outbox[self.stdin.write(self.outbox) or 0 :]
        except OSError:  # it died; `read` will notice
            self.outbox = memoryview(b"")
        if not self.outbox:
            self.since = time.monotonic()

    def read(self) -> Iterator[Ready | Fault | Scores]:
        """The replies that have come. The first that isn't what the worker owes ends them."""
        while not self.ended and (data := self.stdout.read(2**20)) is not None:
            self.ended = not data or (b"\n" not in data and len(self._inbox) + len(data) > LONGEST_REPLY)
            self._inbox += data
            *lines, self._inbox = self._inbox.split(b"\n") if b"\n" in data else (self._inbox,)
            for line in lines:
                missing = len(self.chunk.indices) if self.chunk else 0
                try:
                    yield parse(line, not self.ready, self._serial if self.chunk else -1, missing)
                except BadReply:  # a verifier wrote to the pipe
                    self.ended = self.broken = True
                    return
                self.since = time.monotonic()

    def observe(self) -> None:
        """See which case runs, or of a model, which call. A verifier that writes the number itself gets the time of one case more
        than its chunk has, at most."""
        if self.at < self._progress[0] <= self.sent:
            self.at, self.since = self._progress[0], time.monotonic()

    def excess_memory(self, every_s: float) -> str:
        """What to say if the worker and its descendants occupy too much; measured no more often than `every_s`, on Linux."""
        now = time.monotonic()
        if self.memory_mb is None or now - self._measured < every_s or sys.platform != "linux":
            return ""
        self._measured = now
        limit = MARGIN * self.memory_mb * 2**20
        if resident_bytes(self.pid, int(self._taken + limit)) <= self._taken + limit:
            return ""
        return f"took more memory than its limit of {self.memory_mb} MB"

    def loaded(self) -> None:
        """Its imports are over: what it occupies now doesn't count for a case."""
        self.ready = True
        if sys.platform == "linux":
            self._taken = resident_bytes(self.pid, 0)

    def cause_of_death(self) -> str:
        """What the exit status and stderr say, once the replies have ended."""
        if self.exit_code(0.2) in (None, os.EX_IOERR):
            return "the verifier broke the pipe to the judge"
        return f"the worker {self.how_it_ended()}"
