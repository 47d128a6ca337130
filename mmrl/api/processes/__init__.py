"""Child processes that run code of plugins: workers of the judge, environments of simulators, the second process of the
conformance kit.

Each is a new interpreter in its own session, never a fork, since threads and a CUDA context don't survive a fork.
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
"""A fixed order of sets in all processes, so that scores and environments are reproducible."""
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", **SAME_ORDER}
"""Environment variables of processes that run in parallel: one thread each."""
GUARD_S = 2.0
"""Seconds that a guard has to kill the descendants; then it is killed too."""
TAIL = 4000
"""Number of bytes that are kept of the end of stderr."""
SIGNALS = {int(one): one.name for one in signal.Signals}
"""Number -> name. Most real-time signals have none."""


class ChildProcess:
    """A process that calls one function; the end of its stderr is kept."""

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
        guard: bool = False,
        wrapper: Sequence[str] = (),
    ) -> None:
        """program: `module:function`. arguments: of the function, JSON-serialisable. environment: all environment variables of
        the process. file: path of a module that imports only the standard library; `python` then needs no mmrl.
        python: the interpreter, by default this one. path: its `sys.path`, by default its own. pass_fds: file descriptors that it
        inherits. pipes: open unbuffered pipes to its stdin and stdout. stderr: a file to use instead of a pipe that `listen`
        reads. bound: on Linux, kill the process when the thread that made this object ends. guard: have a second process kill
        all descendants with it, also those that left its session; on Linux. wrapper: a command that runs the interpreter, such as
        one that isolates it."""
        self.guard = guard and sys.platform == "linux"
        self.wrapped = bool(wrapper)
        request = {
            "program": program,
            "file": file,
            "arguments": list(arguments),
            "path": None if path is None else [str(folder) for folder in path],
            "parent": os.getpid() if bound and not wrapper else None,
            "guard": self.guard,
        }
        self.popen = subprocess.Popen(
            [*wrapper, python or sys.executable, str(CHILD), json.dumps(request)],
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
        """Read the available stderr and keep its end; False once stderr is closed."""
        data = self.stderr.read(1 << 16)
        self._tail = (self._tail + (data or b""))[-TAIL:]
        return data != b""

    def exit_code(self, patience_s: float) -> int | None:
        """The exit code, negative for a signal; None if the process still runs after `patience_s` seconds."""
        try:
            return self.popen.wait(patience_s)
        except subprocess.TimeoutExpired:
            return None

    def how_it_ended(self) -> str:
        """How an ended process ended, such as `exited with code 1; stderr: ...`."""
        code = self.popen.returncode
        if self.wrapped and code - 128 in SIGNALS:  # as a shell reports a signal
            code = 128 - code
        self.listen()
        text = self._tail.decode(errors="replace")
        crash = text.rfind("Fatal Python error")
        text = " ".join((text[crash : crash + 1000] if crash >= 0 else text[-300:]).split())[:300]
        how = f"was killed by {SIGNALS.get(-code, f'signal {-code}')}" if code < 0 else f"exited with code {code}"
        return how + (f"; stderr: {text}" if text else "")

    def kill(self) -> None:
        """Kill the process and everything that it started in its session; with a guard, all descendants."""
        if not self._killed:
            if self.guard and self.popen.poll() is None:
                self.popen.terminate()
                self.exit_code(GUARD_S)
            with contextlib.suppress(
                ProcessLookupError, PermissionError
            ):  # all have ended; macOS raises EPERM if only zombies are left
                os.killpg(self.pid, signal.SIGKILL)
            self.popen.wait()
            self._killed = True

    def close(self) -> None:
        """Kill the process as `kill` does, and close its pipes."""
        self.kill()
        for pipe in (self.popen.stdin, self.popen.stdout, self.stderr):
            if pipe:
                pipe.close()


def shared_memory(size: int = 0) -> int:
    """A file descriptor of `size` bytes that several processes can map; on Linux in memory, so a full disk doesn't matter."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("mmrl")
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
