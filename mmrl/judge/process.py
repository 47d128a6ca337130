"""One worker process as the engine sees it: pipes, the shared clock, how it died.

It is a fresh interpreter in its own session, never a fork of the engine, whose threads and CUDA context would not survive one.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmrl.judge.messages import Chunk

TRANSFER_S = 10.0
"""Seconds that a chunk may take to reach the worker, before its first case's time begins."""
BOOT = "import json, sys; sys.path[:], args = json.loads(sys.argv[1]); from mmrl.judge.worker import main; main(*args)"
SAME = {"PYTHONHASHSEED": "0"}
"""The same set order everywhere, so that a verifier's score repeats."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **SAME}
"""One thread each, for there are several workers."""


class Worker:
    """One worker process, the chunk it is on, and the last it said on stderr."""

    def __init__(
        self, options: Mapping[str, Mapping[str, Any]], memory_mb: int | None, environment: Mapping[str, str], model: bool = False
    ) -> None:
        """options: of each verifier. model: they are models, which may have all threads."""
        self.crew: Any = None
        """The crew that it belongs to, see `mmrl.judge.pool`."""
        shared = _shared_memory()
        try:
            self.clock = memoryview(mmap.mmap(shared, 16)).cast("d")
            """[index of the running case, time.monotonic() of its start]"""
            self.process = subprocess.Popen(
                [sys.executable, "-c", BOOT, json.dumps([[*map(str, sys.path)], [shared, os.getpid(), memory_mb]])],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=[shared],
                start_new_session=True,
                env={**environment, **(SAME if model else ENVIRONMENT)},
            )
        finally:
            os.close(shared)
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.stdin, self.stdout, self.stderr = self.process.stdin, self.process.stdout, self.process.stderr
        for pipe in (self.stdin, self.stdout, self.stderr):
            os.set_blocking(pipe.fileno(), False)
        self.outbox = memoryview(pickle.dumps(options))
        self.inbox, self.tail = b"", b""
        self.born = time.monotonic()
        self.ready = self.spent = self.ended = self.killed = False
        """It loaded its plugins; it should make way for a fresh one; its replies have ended; so has it."""
        self.chunk: Chunk | None = None
        self.sent = 0
        """How many cases it was sent."""

    def send(self, chunk: Chunk, payloads: list[bytes]) -> None:
        self.chunk, self.sent = chunk, len(payloads)
        self.clock[0], self.clock[1] = 0, time.monotonic() + TRANSFER_S
        self.outbox = memoryview(pickle.dumps((chunk.verifier, chunk.careful, payloads)))

    def write(self) -> None:
        """Write as much of the outbox as the pipe takes."""
        try:
            self.outbox = self.outbox[self.stdin.write(self.outbox) or 0 :]
        except OSError:  # it died; the end of its replies tells
            self.outbox = memoryview(b"")

    def read(self) -> list[tuple[str, Any]]:
        """The replies that have come, each a kind and a body."""
        replies: list[tuple[str, Any]] = []
        if self.ended:  # after nonsense, what follows can't be trusted
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

    def listen(self) -> bool:
        """Read stderr and keep its end; False once it is closed."""
        data = self.stderr.read(2**16)
        self.tail = (self.tail + (data or b""))[-4000:]
        return data != b""

    def kill(self) -> None:
        """End the worker and all processes it started in its session."""
        if not self.killed:
            with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody left; macOS says EPERM when only zombies are
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            self.killed = True

    def close(self) -> None:
        self.kill()
        for pipe in (self.stdin, self.stdout, self.stderr):
            pipe.close()

    def cause_of_death(self) -> str:
        """What the exit status and stderr say, once the replies have ended."""
        try:
            code = self.process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            code = os.EX_IOERR
        if code == os.EX_IOERR:
            return "the verifier broke the pipe to the judge"
        self.listen()
        said = self.tail.decode(errors="replace")
        crash = said.rfind("Fatal Python error")
        said = " ".join((said[crash : crash + 1000] if crash >= 0 else said[-300:]).split())[:300]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"the worker {how}" + (f"; stderr: {said}" if said else "")


def _shared_memory() -> int:
    """A descriptor of 16 bytes that two processes can map; on Linux in memory, where no full disk can hurt."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("mmrl-judge")
    else:
        with tempfile.TemporaryFile() as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, 16)
    return fd
