"""One worker process as its parent sees it: a socket, its last words, how it died."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrl.api.simulators.processes.child import SIZE, send

CHILD = Path(__file__).with_name("child.py")
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
"""One thread each, for there are several; the same set order everywhere, so that a world repeats."""


class Process:
    """A fresh interpreter in its own session, never a fork, and the socket to it."""

    def __init__(
        self, python: str, request: Mapping[str, Any], options: Mapping[str, Any], environment: Mapping[str, str]
    ) -> None:
        self.channel, theirs = socket.socketpair()
        with theirs:
            asked = {**request, "channel": theirs.fileno(), "parent": os.getpid()}
            self.popen = subprocess.Popen(
                [python, str(CHILD), json.dumps(asked)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                bufsize=0,
                pass_fds=[theirs.fileno(), request["memory"]],
                start_new_session=True,
                env={**os.environ, **ENVIRONMENT, **environment},
            )
        assert self.popen.stderr
        self.stderr = self.popen.stderr
        os.set_blocking(self.stderr.fileno(), False)
        self.ended = False
        """Nothing more will come."""
        self._inbox, self._tail = bytearray(), b""
        with contextlib.suppress(OSError):  # it died at once: waiting for its answer tells
            self.send(dict(options), 10.0)

    def send(self, message: Any, seconds: float) -> None:
        """Raises OSError where the process is dead, or doesn't read for so long."""
        self.channel.settimeout(seconds)
        send(self.channel, message)

    def read(self) -> Any:
        """The answer, once all of it has come; None before, or when the process ended."""
        self.channel.setblocking(False)
        while True:
            try:
                data = self.channel.recv(1 << 20)
            except BlockingIOError:
                break
            except OSError:
                data = b""
            if not data:
                self.ended = True
                break
            self._inbox += data
        if len(self._inbox) < SIZE:
            return None
        end = SIZE + int.from_bytes(self._inbox[:SIZE], "little")
        if len(self._inbox) < end:
            return None
        answer = pickle.loads(self._inbox[SIZE:end])
        del self._inbox[:end]
        return answer

    def listen(self) -> bool:
        """Read stderr and keep its end; False once it is closed."""
        data = self.stderr.read(1 << 16)
        self._tail = (self._tail + (data or b""))[-4000:]
        return data != b""

    def cause_of_death(self) -> str:
        """What the exit status and stderr say of a process whose end of the socket is closed."""
        try:
            code = self.popen.wait(timeout=0.5)
        except subprocess.TimeoutExpired:
            return "its process closed the socket to the engine, or doesn't read from it"
        self.listen()
        said = " ".join(self._tail.decode(errors="replace").split())[-300:]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return f"its process {how}" + (f"; stderr: {said}" if said else "")

    def close(self) -> None:
        """Ends the process, and all that it started in its session."""
        with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody left; macOS says EPERM when only zombies are
            os.killpg(self.popen.pid, signal.SIGKILL)
        self.popen.wait()
        self.channel.close()
        self.stderr.close()


def shared_memory() -> int:
    """A descriptor of memory that several processes can map; on Linux no file, so that nothing is left behind."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("mmrl-workers")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
