"""One world's process as its parent sees it: the socket to it, how it died."""

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
    """A process with a world, and the socket to it."""

    def __init__(
        self,
        python: str,
        path: Sequence[str] | None,
        world: tuple[str, str],
        memory: int,
        options: Mapping[str, Any],
        environment: Mapping[str, str],
    ) -> None:
        """python, path: see `ChildProcess`. world: `module:factory` and the file of the module. memory: the descriptor of what
        holds the rows. options: for the factory."""
        self.channel, theirs = socket.socketpair()
        with theirs:
            super().__init__(
                "mmrl.api.simulators.processes.child:serve",
                [theirs.fileno(), memory, *world],
                file=str(SERVING),
                python=python,
                path=path,
                pass_fds=[theirs.fileno(), memory],
                environment={**os.environ, **ENVIRONMENT, **environment},
            )
        self.ended = False
        """Nothing more will come."""
        self._inbox = bytearray()
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

    def cause_of_death(self) -> str:
        """What the exit status and stderr say of a process whose end of the socket is closed."""
        if self.exit_code(0.5) is None:
            return "its process closed the socket to the engine, or doesn't read from it"
        return f"its process {self.how_it_ended()}"

    def close(self) -> None:
        """End the process, and all that it started in its session."""
        super().close()
        self.channel.close()
