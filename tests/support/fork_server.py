"""Servers that have imported what is needed, and fork: commands and child processes of tests start at once.

A new interpreter imports torch and transformers for seconds before it does anything. A fork has done that: it has its own working
directory, environment, files, signals and exit code. `forked` asks for them. There is a server for commands, one for child
processes, which need no torch (the larger a process, the longer its fork takes), and one in the interpreter of a simulator.

The processes of one pytest run share the servers. The first that needs one starts it, and it ends when all have closed their
connections.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import gc
import importlib
import importlib.util
import json
import os
import pkgutil
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from typing import Any, NoReturn

ADDRESS = "MMRL_TEST_FORKS"
"""The variable with the folder of the servers' sockets."""
COMMANDS, CHILDREN = "commands", "children"
"""The kinds of servers in this interpreter."""
IMPORTS = {"maniskill": "mani_skill.envs"}
"""What the children import in an environment of its own, by the name of its folder, where it takes ten seconds and can be forked:
robosuite, of LIBERO, can't."""
ALSO = ("mmrl.train.start", "mmrl.train.trackers.tensorboard", "tensorboard.summary.writer.event_file_writer", "mmrl.ui.report")
"""What most commands import, besides torch, a model and the command line."""
ENVIRONMENT = os.environ | {"PYTHONHASHSEED": "0"}
"""Of the servers: as it was before any test, and with an order of sets as in the workers of a judge."""
END_S = 60.0
"""Seconds within which the other processes of a pytest run should end, too."""


def prepare() -> None:
    """Choose the folder, for this process and those that it starts. No server is started."""
    if ADDRESS not in os.environ:
        folder = os.environ[ADDRESS] = tempfile.mkdtemp(prefix="mmrl-forks-")
        me = os.getpid()
        atexit.register(lambda: os.getpid() == me and shutil.rmtree(folder, ignore_errors=True))


@functools.cache
def connection(kind: str, python: str = sys.executable, environment: tuple[tuple[str, str], ...] = ()) -> socket.socket:
    """This process's connection to a server, which is started if there is none. environment: variables besides `ENVIRONMENT`."""
    prepare()
    address = os.path.join(os.environ[ADDRESS], kind)
    here = _connected(address)
    if here is None:
        if PROCESS:  # the server would have its pipes, and go on for other processes after its end
            raise RuntimeError(f"a forked process can't start the server of {kind}: `forked.start` does")
        process = subprocess.Popen(
            [python, __file__, kind, address],
            env=ENVIRONMENT | dict(environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        while (here := _connected(address)) is None:  # until it, or that of another process, listens
            time.sleep(0.01)
        atexit.register(process.wait, END_S)  # called after the next line's
    atexit.register(here.close)
    return here


def _connected(address: str) -> socket.socket | None:
    here = socket.socket(socket.AF_UNIX)
    try:
        here.connect(address)
    except (FileNotFoundError, ConnectionRefusedError):
        here.close()
        return None
    return here


def ask(server: socket.socket, request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Have a process forked that gets these descriptors; the last is where its pid and wait status are written, a line each."""
    data = json.dumps(request).encode()
    socket.send_fds(server, [len(data).to_bytes(4, "little")], descriptors)
    server.sendall(data)


# -- in the server ----------------------------------------------------------------------------------------------------------


def serve(listener: socket.socket) -> None:
    """Fork a process for each request until all connections are closed. In a fork it returns."""
    ended, wake = os.pipe()
    os.set_blocking(ended, False)
    os.set_blocking(wake, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake)
    clients: list[socket.socket] = []
    running: dict[int, int] = {}
    """Process -> where its status is told."""
    while True:
        ready = select.select([listener, ended, *clients], [], [])[0]
        if ended in ready:
            os.read(ended, 1 << 16)
            _tell_ended(running)
        for client in [one for one in clients if one in ready]:
            head, descriptors, _, _ = socket.recv_fds(client, 4, 16)
            if not head:
                clients.remove(client)
                client.close()
                if not clients:
                    return
                continue
            data = _received(client, int.from_bytes(head, "little"))
            if (pid := os.fork()) == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for one in (listener, *clients):
                    one.close()
                for descriptor in (ended, wake, *running.values()):
                    os.close(descriptor)
                _become(json.loads(data), descriptors)
                return
            for descriptor in descriptors[:-1]:
                os.close(descriptor)
            running[pid] = descriptors[-1]
        if listener in ready:
            clients.append(listener.accept()[0])


def prepare_commands() -> None:
    """Import what commands need."""
    import torch

    from mmrl.policies.vlm import tiny
    from mmrl.ui import cli

    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # forks would wait forever for OpenMP's threads, which stay here
    tiny.build(hidden=32, layers=1)  # brings the modules of a model and its processor
    torch.set_num_threads(threads)
    for module in (*(found.name for found in pkgutil.walk_packages(cli.__path__, "mmrl.ui.cli.")), *ALSO):
        importlib.import_module(module)


def prepare_children() -> None:
    """Import what workers of a judge need, but for the plugins."""
    import mmrl.judge.worker  # noqa: F401
    from mmrl.registry.distributions import installed

    installed()  # Python remembers which distributions there are


def prepare_elsewhere() -> None:
    """Import what the environments of this interpreter's simulator need."""
    importlib.import_module(IMPORTS[os.path.basename(sys.prefix)])


def _received(client: socket.socket, length: int) -> bytes:
    data = b""
    while len(data) < length:
        data += client.recv(length - len(data))
    return data


def _tell_ended(running: dict[int, int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        told = running.pop(pid)
        with contextlib.suppress(BrokenPipeError):
            os.write(told, f"{status}\n".encode())
        os.close(told)


def _become(request: dict[str, Any], descriptors: Sequence[int]) -> None:
    """Set up the forked process as the request says, and tell its pid. numbers: of its descriptors."""
    *files, told = _above(descriptors, max(request["numbers"]) + 1)
    for number, descriptor in zip(request["numbers"], files, strict=True):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.setsid()
    os.write(told, f"{os.getpid()}\n".encode())  # from now on the session can be killed
    os.close(told)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    faulthandler.register(signal.SIGUSR2, file=2, all_threads=True)
    PROCESS.update(request)


def _above(descriptors: Sequence[int], least: int) -> list[int]:
    """The descriptors under numbers of at least `least`; the given ones are closed."""
    import fcntl

    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, least) for descriptor in descriptors]
    for descriptor in descriptors:
        os.close(descriptor)
    return moved


PROCESS: dict[str, Any] = {}
"""In a fork, what it was asked to be."""


def run_child() -> int:
    """What `python mmrl/api/processes/child.py REQUEST` does."""
    sys.stderr = os.fdopen(2, "w", 1, "utf-8", closefd=False)
    spec = importlib.util.spec_from_file_location("mmrl_child", PROCESS["script"])  # by its path: mmrl may be missing here
    assert spec and spec.loader
    child = sys.modules["mmrl_child"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(child)
    child.main(PROCESS["child"] | {"parent": PROCESS["child"]["parent"] and os.getppid()})
    return 0


def run_command() -> int:
    """The exit code of `mmrl`, or of a script."""
    import forked
    from mmrl.ui.cli import main

    forked.own_terminal(PROCESS["terminal"])
    forked.fork_children()
    entries = [entry for entry in PROCESS["env"].get("PYTHONPATH", "").split(os.pathsep) if entry]
    sys.path[:] = [PROCESS["cwd"], *entries, *(entry for entry in sys.path if entry not in entries)]
    sys.argv = PROCESS["command"]
    sys.stdin, sys.stdout = (
        os.fdopen(0, "r", closefd=False),
        os.fdopen(1, "w", -1 if not os.isatty(1) else 1, "utf-8", closefd=False),
    )
    sys.stderr = os.fdopen(2, "w", 1, "utf-8", closefd=False)
    try:
        if script := PROCESS["script"]:
            sys.path.insert(0, os.path.dirname(script))
            runpy.run_path(script, run_name="__main__")
        else:
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


def main(kind: str, address: str) -> None:
    """Serve; then, in a fork, be what was asked for."""
    with socket.socket(socket.AF_UNIX) as listener:
        try:
            listener.bind(address)
        except OSError:
            return  # another process was faster
        listener.listen()
        {COMMANDS: prepare_commands, CHILDREN: prepare_children}.get(kind, prepare_elsewhere)()
        gc.collect()
        gc.freeze()  # so that a collection doesn't copy all pages into each fork
        serve(listener)
    if "child" in PROCESS:
        end(run_child())
    if PROCESS:
        end(run_command())
    os.unlink(address)


if __name__ == "__main__":
    import forked  # noqa: F401  as long as its folder is on the path

    sys.path.pop(0)  # this folder, whose modules no command should see
    main(*sys.argv[1:])
