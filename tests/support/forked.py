"""The command line in a process of its own that starts at once: forked from a server that has imported what training needs.

A new interpreter imports torch and transformers for seconds before it does anything. A fork has done that: it has its own working
directory, environment, files, signals and exit code. What is about imports, or about variables that only a new interpreter reads,
starts one.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NoReturn

ALSO = ("mmrl.train.start", "mmrl.train.trackers.tensorboard", "tensorboard.summary.writer.event_file_writer", "mmrl.ui.report")
"""What most commands import, besides torch, a model and the command line."""
PYTHONPATH = {k: v for k, v in os.environ.items() if k == "PYTHONPATH"}
"""As it was before any test."""
READ_AT_START = ("PYTHON", "LC_", "LANG", "HF_", "TRANSFORMERS", "TORCH", "OMP", "RAY", "CUDA")
"""Beginnings of the names of variables that a running interpreter doesn't read again."""


def start(
    arguments: Sequence[str],
    *,
    cwd: str | Path = ".",
    env: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    terminal: bool = False,
) -> Forked | subprocess.Popen[str]:
    """`python -m mmrl ARGUMENTS`, with the interface of `subprocess.Popen` in text mode.

    stdin, stdout, stderr: as of Popen: PIPE, DEVNULL, STDOUT for stderr, a descriptor, or None for ours. terminal: stdin is a
    terminal, which the process controls. Ctrl-C interrupts it, also where the suite itself runs in the background.
    """
    env = dict(os.environ if env is None else env)
    different = {k for k in env.keys() | os.environ.keys() if env.get(k) != os.environ.get(k)} - {"PYTHONPATH"}
    if any(name.startswith(READ_AT_START) for name in different) or importlib.util.find_spec("torch") is None:
        return subprocess.Popen(
            [sys.executable, "-m", "mmrl", *arguments], cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=True,
            start_new_session=True, preexec_fn=functools.partial(_own, terminal),
        )  # fmt: skip
    return Forked(arguments, Path(cwd).resolve(), env, (stdin, stdout, stderr), terminal)


def run(
    arguments: Sequence[str], *, input: str | None = None, timeout: float = 120, **options: Any
) -> subprocess.CompletedProcess[str]:
    """The same to its end, with what it printed. input: of stdin."""
    stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
    process = start(arguments, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
    try:
        out, err = process.communicate(input, timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(["mmrl", *arguments], process.returncode, out, err)


class Forked:
    """A process that the server has forked; what is used of `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        cwd: Path,
        env: Mapping[str, str],
        files: tuple[int | None, int | None, int | None],
        terminal: bool,
    ) -> None:
        self.args, self.returncode = ["mmrl", *arguments], None
        ours: list[IO[str] | None] = []
        theirs: list[int] = []
        opened: list[int] = []
        for number, file in enumerate(files):
            pipe = None
            if file == subprocess.PIPE:
                read, write = os.pipe()
                inner, outer = (read, write) if number == 0 else (write, read)
                opened.append(inner)
                theirs.append(inner)
                pipe = os.fdopen(outer, "w" if number == 0 else "r", encoding="utf-8")
            elif file == subprocess.DEVNULL:
                opened.append(os.open(os.devnull, os.O_RDWR))
                theirs.append(opened[-1])
            else:
                theirs.append(theirs[1] if file == subprocess.STDOUT else number if file is None else file)
            ours.append(pipe)
        self.stdin, self.stdout, self.stderr = ours
        self._status, status = os.pipe()
        request = json.dumps({"arguments": list(arguments), "cwd": str(cwd), "env": dict(env), "terminal": terminal}).encode()
        server = _server()
        socket.send_fds(server, [len(request).to_bytes(4, "little")], [*theirs, status])
        server.sendall(request)
        for descriptor in (*opened, status):
            os.close(descriptor)
        self._said = b""
        while b"\n" not in self._said:
            if not (said := os.read(self._status, 64)):
                raise RuntimeError("the server of forks has ended: what it printed says why")
            self._said += said
        self.pid = int(self._said.split(b"\n")[0])

    def poll(self) -> int | None:
        if self.returncode is None and select.select([self._status], [], [], 0)[0]:
            self._read_status()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._status], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            self._read_status()
        assert self.returncode is not None
        return self.returncode

    def _read_status(self) -> None:
        while more := os.read(self._status, 64):
            self._said += more
        os.close(self._status)
        self.returncode = os.waitstatus_to_exitcode(int(self._said.split(b"\n")[1]))

    def communicate(self, input: str | None = None, timeout: float | None = None) -> tuple[str | None, str | None]:
        """(stdout, stderr), of the pipes among them."""
        if self.stdin:
            with contextlib.suppress(BrokenPipeError):
                if input:
                    self.stdin.write(input)
                self.stdin.close()
        end = None if timeout is None else time.monotonic() + timeout
        found = {pipe: bytearray() for pipe in (self.stdout, self.stderr) if pipe}
        open_ = set(found)
        while open_:
            left = None if end is None else max(0.0, end - time.monotonic())
            ready = select.select(list(open_), [], [], left)[0]
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            for pipe in ready:
                data = os.read(pipe.fileno(), 1 << 16)
                found[pipe] += data
                if not data:
                    open_.remove(pipe)
        self.wait(None if end is None else max(0.0, end - time.monotonic()))
        out, err = (found[pipe].decode() if pipe else None for pipe in (self.stdout, self.stderr))
        for pipe in found:
            pipe.close()
        return out, err

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ended a moment ago
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> Forked:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe:
                pipe.close()
        self.wait()


@functools.cache
def _server() -> socket.socket:
    """The connection to this process's server, which ends with it."""
    here, there = socket.socketpair()
    process = subprocess.Popen(
        [sys.executable, __file__, str(there.fileno())],
        env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"} | PYTHONPATH,  # the first test may have set its own
        pass_fds=[there.fileno()],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    there.close()

    def end() -> None:
        here.close()
        process.wait(10)

    atexit.register(end)
    return here


# -- in the server ----------------------------------------------------------------------------------------------------------


def serve(connection: socket.socket) -> None:
    """Fork a process for each request until the other side closes the connection."""
    from mmrl.policies.vlm import tiny
    from mmrl.ui import cli

    tiny.build(hidden=32, layers=1)  # brings the modules of a model and its processor
    for module in (*(found.name for found in pkgutil.walk_packages(cli.__path__, "mmrl.ui.cli.")), *ALSO):
        importlib.import_module(module)
    gc.collect()
    gc.freeze()  # so that a collection doesn't copy all pages into each fork
    ended, wake = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    running: dict[int, int] = {}
    """Process -> where its status is told."""
    while True:
        ready = select.select([connection, ended], [], [])[0]
        if ended in ready:
            os.read(ended, 1 << 16)
            _tell_ended(running)
        if connection not in ready:
            continue
        head, descriptors, _, _ = socket.recv_fds(connection, 4, 4)
        if not head:
            return
        length, data = int.from_bytes(head, "little"), b""
        while len(data) < length:
            data += connection.recv(length - len(data))
        *files, status = descriptors
        pid = os.fork()
        if pid == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            connection.close()
            for descriptor in (ended, wake, status, *running.values()):
                os.close(descriptor)
            become(json.loads(data), files)
            return
        for descriptor in files:
            os.close(descriptor)
        os.write(status, f"{pid}\n".encode())
        running[pid] = status


def _tell_ended(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        told = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(told, f"{status}\n".encode())
        os.close(told)


def become(request: dict[str, Any], files: Sequence[int]) -> None:
    """Set up the forked process as the request says."""
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
    for descriptor in files:
        os.close(descriptor)
    os.setsid()
    _own(request["terminal"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    entries = [entry for entry in request["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [request["cwd"], *entries, *(entry for entry in sys.path if entry not in entries)]
    sys.argv = ["mmrl", *request["arguments"]]
    sys.stdin, sys.stdout = (
        os.fdopen(0, "r", closefd=False),
        os.fdopen(1, "w", -1 if not os.isatty(1) else 1, "utf-8", closefd=False),
    )
    sys.stderr = os.fdopen(2, "w", 1, "utf-8", closefd=False)


def command() -> int:
    """The exit code of `mmrl`."""
    from mmrl.ui.cli import main

    try:
        main(prog_name="mmrl")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else 0 if ended.code is None else 1
    return 0


def end(code: int) -> NoReturn:
    """What an interpreter does at its end, but for taking apart all modules, which takes a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _own(terminal: bool) -> None:
    """A suite that a script has put into the background ignores Ctrl-C, and hands that on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if terminal:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


if __name__ == "__main__":
    sys.path.pop(0)  # this folder, whose modules no command should see
    before = len(sys.argv)
    serve(socket.socket(fileno=int(sys.argv[1])))
    if sys.argv[0] == "mmrl":
        end(command())
