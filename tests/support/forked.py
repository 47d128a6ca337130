"""The command line and child processes as forks of a server that has imported what they need, see `fork_server`.

What is about imports, or about variables that only a new interpreter reads, starts one.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import fork_server

READ_AT_START = ("PYTHON", "LC_", "LANG", "HF_", "TRANSFORMERS", "TORCH", "OMP", "RAY", "CUDA")
"""Beginnings of the names of variables that a running interpreter doesn't read again."""
READ_ELSEWHERE = ("MS_", "VK_", "LP_", "MUJOCO_", "PYOPENGL_", "LIBERO_", "SDL_", "PYGAME_")
"""The same for the libraries of simulators."""
FOLDERS_ELSEWHERE = ("MS_ASSET_DIR", "LIBERO_CONFIG_PATH")
"""Of these, such as a test sets for itself."""
SET_BY_LIBRARIES = {
    *("TORCHINDUCTOR_CACHE_DIR", "TORCHINDUCTOR_COMPILE_THREADS", "PYTHONBREAKPOINT"),
    *("RAY_CLIENT_MODE", "RAY_USAGE_STATS_ENABLED", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"),
}
"""Variables that torch, vLLM and Ray set when they are imported or started; a new interpreter would set its own."""


def start(
    arguments: Sequence[str],
    *,
    cwd: str | Path = ".",
    env: Mapping[str, str] | None = None,
    stdin: int | None = subprocess.DEVNULL,
    stdout: int | None = None,
    stderr: int | None = None,
    terminal: bool = False,
    script: str | None = None,
) -> Forked | subprocess.Popen[str]:
    """`python -m mmrl ARGUMENTS`, with the interface of `subprocess.Popen` in text mode.

    script: a file, for `python SCRIPT ARGUMENTS`. stdin, stdout, stderr: as of Popen: PIPE, DEVNULL, STDOUT for stderr, a
    descriptor, or None for ours. terminal: stdin is a terminal, which the process controls. Ctrl-C interrupts it, also where the
    suite itself runs in the background.
    """
    env = dict(os.environ if env is None else env)
    if other_at_start(env) - {"PYTHONHASHSEED"} or importlib.util.find_spec("torch") is None:
        program = ["-m", "mmrl"] if script is None else [script]
        return subprocess.Popen(
            [sys.executable, *program, *arguments], cwd=cwd, env=env, stdin=stdin, stdout=stdout, stderr=stderr, text=True,
            start_new_session=True, preexec_fn=functools.partial(own_terminal, terminal),
        )  # fmt: skip
    fork_server.connection(fork_server.CHILDREN)  # for the command, whose judge asks for children
    command = [script or "mmrl", *arguments]
    request = {"command": command, "script": script, "cwd": str(Path(cwd).resolve()), "env": env, "terminal": terminal}
    return Forked(fork_server.connection(fork_server.COMMANDS), command, request, (stdin, stdout, stderr))


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
        server: socket.socket,
        args: Sequence[str],
        request: dict[str, Any],
        files: Sequence[int | IO[bytes] | None],
        pass_fds: Sequence[int] = (),
        binary: bool = False,
    ) -> None:
        """server: the connection to it. files: stdin, stdout and stderr. binary: its pipes have no encoding and no buffer."""
        self.args, self.returncode = args, None
        ours: list[IO[Any] | None] = []
        theirs: list[int] = []
        opened: list[int] = []
        for number, file in enumerate(files):
            pipe = None
            if file == subprocess.PIPE:
                read, write = os.pipe()
                inner, outer = (read, write) if number == 0 else (write, read)
                opened.append(inner)
                theirs.append(inner)
                mode = "w" if number == 0 else "r"
                pipe = os.fdopen(outer, f"{mode}b", 0) if binary else os.fdopen(outer, mode, encoding="utf-8")
            elif file == subprocess.DEVNULL:
                opened.append(os.open(os.devnull, os.O_RDWR))
                theirs.append(opened[-1])
            elif file == subprocess.STDOUT:
                theirs.append(theirs[1])
            else:
                theirs.append(number if file is None else file if isinstance(file, int) else file.fileno())
            ours.append(pipe)
        self.stdin, self.stdout, self.stderr = ours
        self._status, status = os.pipe()
        fork_server.ask(server, request | {"numbers": [0, 1, 2, *pass_fds]}, [*theirs, *pass_fds, status])
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
                late = subprocess.TimeoutExpired(self.args, timeout or 0.0)
                late.add_note(self._state({pipe: bytes(found[pipe]) for pipe in open_}))
                raise late
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

    def _state(self, said: Mapping[IO[Any], bytes]) -> str:
        """Why its pipes may still be open: where its threads are, and which processes have them. said: what came of each."""
        lines = [f"exit code {self.poll()}"]
        if self.returncode is None:
            os.kill(self.pid, signal.SIGUSR2)  # `fork_server` has faulthandler write the stacks
            time.sleep(1)
        for pipe, data in said.items():
            inode = os.fstat(pipe.fileno()).st_ino
            for link in Path("/proc").glob("[0-9]*/fd/*"):
                with contextlib.suppress(OSError):  # it ended meanwhile, or isn't ours
                    if os.readlink(link) == f"pipe:[{inode}]" and link.parts[2] != str(os.getpid()):
                        command = Path("/proc", link.parts[2], "cmdline").read_bytes().replace(b"\0", b" ")[:200]
                        lines.append(f"{pipe.name} is open in process {link.parts[2]}: {command.decode(errors='replace')}")
            if select.select([pipe], [], [], 0)[0]:
                data += os.read(pipe.fileno(), 1 << 20)
            lines.append(f"{pipe.name}: {data.decode(errors='replace')[-8000:]}")
        return "\n".join(lines)

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


def own_terminal(terminal: bool) -> None:
    """A suite that a script has put into the background ignores Ctrl-C, and hands that on."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if terminal:
        import fcntl
        import termios

        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


# -- child processes of mmrl ------------------------------------------------------------------------------------------------


@functools.cache
def fork_children() -> None:
    """From now on `mmrl.api.processes.ChildProcess` is a fork, where a new interpreter would be as the server is."""
    from mmrl.api import processes

    processes.subprocess = SimpleNamespace(**{**vars(subprocess), "Popen": _child})


def _child(args: Sequence[str], *, env: Mapping[str, str], **options: Any) -> Forked | subprocess.Popen[bytes]:
    """Instead of `subprocess.Popen`, as `ChildProcess` calls it."""
    from mmrl.api.processes import CHILD

    if [str(arg) for arg in args[1:-1]] == [str(CHILD)] and (server := _server(args[0], env)):
        request = {"child": json.loads(args[-1]), "script": str(CHILD), "cwd": os.getcwd(), "env": dict(env)}
        if (request["child"]["path"] is None) == (args[0] != sys.executable):
            files = [options[name] for name in ("stdin", "stdout", "stderr")]
            return Forked(server, args, request, files, options["pass_fds"], binary=True)
    return subprocess.Popen(args, env=env, **options)


def _server(python: str, env: Mapping[str, str]) -> socket.socket | None:
    """That which a new interpreter would be like; None if there is none."""
    if other_at_start(env):
        return None
    if python == sys.executable:
        return fork_server.connection(fork_server.CHILDREN)
    own = env.items() - fork_server.ENVIRONMENT.items()
    read = tuple(sorted((name, value) for name, value in own if name.startswith(READ_ELSEWHERE)))
    name = Path(python).parents[1].name
    if name not in fork_server.IMPORTS or fork_server.PROCESS or any(name in FOLDERS_ELSEWHERE for name, _ in read):
        return None
    kind = f"{name}-{zlib.crc32(repr((python, read)).encode()):08x}"
    return fork_server.connection(kind, python, read)


def other_at_start(env: Mapping[str, str]) -> set[str]:
    """Names of the variables by which a new interpreter would not be as a server is, but for its path."""
    names = {name for name in env.keys() | fork_server.ENVIRONMENT.keys() if name.startswith(READ_AT_START)}
    return {name for name in names - {"PYTHONPATH", *SET_BY_LIBRARIES} if env.get(name) != fork_server.ENVIRONMENT.get(name)}
