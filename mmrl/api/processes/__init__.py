"""Child processes that run code of plugins: workers of the judge, worlds of simulators, the conformance kit's other process.

Each is a fresh interpreter in a session of its own, never a fork: threads and a CUDA context would not survive one.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

CHILD = Path(__file__).with_name("child.py")
SAME_ORDER = {"PYTHONHASHSEED": "0"}
"""The same order of sets everywhere, so that a score or a world repeats."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **SAME_ORDER}
"""For processes that run side by side: one thread each."""
TAIL = 4000
"""Bytes of stderr that are kept."""


class ChildProcess:
    """A process that calls one function, and the end of what it writes to stderr."""

    def __init__(
        self,
        program: str,
        arguments: Sequence[Any] = (),
        *,
        environment: Mapping[str, str],
        file: str | None = None,
        python: str | None = None,
        path: Sequence[str] | None = None,
        pass_fds: Sequence[int] = (),
        pipes: bool = False,
        stderr: IO[bytes] | None = None,
        bound: bool = True,
    ) -> None:
        """program: `module:function`. arguments: for it, as JSON holds them. environment: all variables of the process.
        file: the module's, for a module that imports the standard library alone; `python` may then lack mmrl.
        python: the interpreter, by default this one. path: its `sys.path`, by default its own. pass_fds: descriptors that it
        inherits. pipes: to its stdin and from its stdout, unbuffered. stderr: a file in place of a pipe that `listen` reads.
        bound: on Linux it is killed when the thread ends that makes this."""
        request = {
            "program": program,
            "file": file,
            "arguments": list(arguments),
            "path": None if path is None else [str(folder) for folder in path],
            "parent": os.getpid() if bound else None,
        }
        self.popen = subprocess.Popen(
            [python or sys.executable, str(CHILD), json.dumps(request)],
            stdin=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stdout=subprocess.PIPE if pipes else subprocess.DEVNULL,
            stderr=stderr or subprocess.PIPE,
            bufsize=0,
            pass_fds=pass_fds,
            start_new_session=True,
            env=dict(environment),
        )
        self.pid = self.popen.pid
        stream = self.popen.stderr or stderr
        assert stream
        self.stderr: IO[bytes] = stream
        os.set_blocking(self.stderr.fileno(), False)
        self._tail = b""
        self._killed = False

    def listen(self) -> bool:
        """Read what has come on stderr and keep the end of it; False once it is closed."""
        data = self.stderr.read(1 << 16)
        self._tail = (self._tail + (data or b""))[-TAIL:]
        return data != b""

    def exit_code(self, patience_s: float) -> int | None:
        """Negative for a signal; None where the process still runs after so many seconds."""
        try:
            return self.popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def how_it_ended(self) -> str:
        """Of a process that has ended: `exited with code 1; stderr: ...`."""
        code = self.popen.returncode
        self.listen()
        text = self._tail.decode(errors="replace")
        crash = text.rfind("Fatal Python error")
        text = " ".join((text[crash : crash + 1000] if crash >= 0 else text[-300:]).split())[:300]
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        return how + (f"; stderr: {text}" if text else "")

    def kill(self) -> None:
        """End the process, and all that it started in its session."""
        if not self._killed:
            with contextlib.suppress(
                ProcessLookupError, PermissionError
            ):  # all have ended; macOS says EPERM when only zombies are left
                os.killpg(self.pid, signal.SIGKILL)
            self.popen.wait()
            self._killed = True

    def close(self) -> None:
        """End the process as `kill` does, and close the pipes to it."""
        self.kill()
        for pipe in (self.popen.stdin, self.popen.stdout, self.stderr):
            if pipe:
                pipe.close()


def shared_memory(size: int = 0) -> int:
    """A descriptor of so many bytes that several processes can map; on Linux in memory, so that no full disk can hurt."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("mmrl")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
