"""The engine's side of a worker process of the judge: the pipes, the shared clock, the cause of its death."""

from __future__ import annotations

import json
import mmap
import os
import pickle
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmrl.api.processes import ENVIRONMENT, SAME_ORDER, ChildProcess, shared_memory

if TYPE_CHECKING:
    from mmrl.judge.messages import Chunk

TRANSFER_S = 10.0
"""Seconds that a chunk may take to reach the worker, before its first case's time begins."""


class Worker(ChildProcess):
    """One worker process, and the chunk it is on."""

    def __init__(
        self, options: Mapping[str, Mapping[str, Any]], memory_mb: int | None, environment: Mapping[str, str], model: bool = False
    ) -> None:
        """options: of each verifier. model: they are models, which may use all threads."""
        self.crew: Any = None
        """Its `mmrl.judge.pool.WorkerGroup`."""
        shared = shared_memory(16)
        try:
            self.clock = memoryview(mmap.mmap(shared, 0)).cast("d")
            """[index of the running case, time.monotonic() of its start]"""
            super().__init__(
                "mmrl.judge.worker:main",
                [shared, memory_mb],
                path=sys.path,
                pass_fds=[shared],
                pipes=True,
                environment={**environment, **(SAME_ORDER if model else ENVIRONMENT)},
            )
        finally:
            os.close(shared)
        assert self.popen.stdin and self.popen.stdout
        self.stdin, self.stdout = self.popen.stdin, self.popen.stdout
        for pipe in (self.stdin, self.stdout):
            os.set_blocking(pipe.fileno(), False)
        self.outbox = memoryview(pickle.dumps(options))
        self.inbox = b""
        self.born = time.monotonic()
        self.ready = self.spent = self.ended = False
        """It has loaded its plugins; it should be replaced; its replies have ended."""
        self.chunk: Chunk | None = None
        self.sent = 0
        """Number of cases in its chunk when it was sent."""

    def send(self, chunk: Chunk, payloads: list[bytes]) -> None:
        self.chunk, self.sent = chunk, len(payloads)
        self.clock[0], self.clock[1] = 0, time.monotonic() + TRANSFER_S
        self.outbox = memoryview(pickle.dumps((chunk.verifier, chunk.careful, payloads)))

    def write(self) -> None:
        """Write as much of the outbox as the pipe takes."""
        try:
            self.outbox = self.outbox[self.stdin.write(self.outbox) or 0 :]
        except OSError:  # it died; `read` will notice
            self.outbox = memoryview(b"")

    def read(self) -> list[tuple[str, Any]]:
        """The replies that have come, each a kind and a body."""
        replies: list[tuple[str, Any]] = []
        if self.ended:  # after an invalid reply the rest can't be trusted
            return replies
        while data := self.stdout.read(2**20):
            *lines, self.inbox = (self.inbox + data).split(b"\n")
            for line in lines:
                try:
                    kind, body = json.loads(line)
                except (ValueError, TypeError):  # a verifier wrote to the pipe
                    self.ended = True
                    return replies
                replies.append((kind, body))
        self.ended |= data is not None
        return replies

    def cause_of_death(self) -> str:
        """What the exit status and stderr say, once the replies have ended."""
        if self.exit_code(0.2) in (None, os.EX_IOERR):
            return "the verifier broke the pipe to the judge"
        return f"the worker {self.how_it_ended()}"
