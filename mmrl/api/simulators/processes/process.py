"""The parent's side of an environment's process: the socket to it, and how it ended."""

from __future__ import annotations

import contextlib
import os
import pickle
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.api.processes import ENVIRONMENT, ChildProcess
from mmrl.api.simulators.processes.child import SIZE, send

SERVING = Path(__file__).with_name("child.py")


class Process(ChildProcess):
    """A process with an environment, and the socket to it."""

    def __init__(
        self,
        python: str,
        path: Sequence[str] | None,
        factory: tuple[str, str],
        memory: int,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> None:
        """python, path: see `ChildProcess`. factory: `module:function` and the file of the module. memory: file descriptor of the
        shared memory. options: of the factory."""
        self.channel, theirs = socket.socketpair()
        with theirs:
            super().__init__(
                "mmrl.api.simulators.processes.child:serve",
                [theirs.fileno(), memory, *factory],
                file=str(SERVING),
                python=python,
                path=path,
                pass_fds=[theirs.fileno(), memory],
                environment={**os.environ, **ENVIRONMENT, **environment},
            )
        self.ended = False
        """The process has closed its end of the socket."""
        self._inbox = bytearray()
        with contextlib.suppress(OSError):  # it died at once: `read` notices that
            self.send(dict(options), 10.0)

    def send(self, message: Any, seconds: float) -> None:
        """Raises OSError if the process is dead or doesn't read within `seconds`."""
        self.channel.settimeout(seconds)
        send(self.channel, message)

    def read(self) -> Any:
        """The reply, once it has arrived completely; None before that, or if the process ended."""
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

    def cause_of_death(self) -> str:
        """How a process ended whose end of the socket is closed, with its exit status and stderr."""
        if self.exit_code(0.5) is None:
            return "its process closed the socket to the engine, or doesn't read from it"
        return f"its process {self.how_it_ended()}"

    def close(self) -> None:
        """Kill the process and everything that it started in its session, and close the socket."""
        super().close()
        self.channel.close()
