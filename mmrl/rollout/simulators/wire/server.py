"""`mmrl simulator serve`: simulators of this machine for learners elsewhere."""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping
from typing import Any

from mmrl.api.errors import UserError, display_path
from mmrl.api.processes import ChildProcess
from mmrl.rollout.simulators.wire import handshake
from mmrl.rollout.simulators.wire.frames import Broken, send_frame
from mmrl.rollout.simulators.wire.worker import KEY

WORKER = "mmrl.rollout.simulators.wire.worker:serve"
LOOK_S = 0.2
"""Seconds between two looks at whether a worker still runs."""
MOST_ENVS = 1 << 16
PROGRAMS = ("python",)
"""Options that name a program of the server's machine: a client may not choose it."""
HUNG_UP = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


class Server:
    """Listens for learners, and gives each connection a process with a simulator."""

    def __init__(
        self,
        simulators: Collection[str],
        token: str,
        *,
        host: str,
        port: int,
        options: Mapping[str, Any],
        most: int,
        say: Callable[[str], None],
    ) -> None:
        """simulators: ids that may be asked for. options: of the simulators, which override what a client asks for. most: number
        of connections at once. say: takes a line of the log. Raises UserError if the port can't be used."""
        self.simulators, self.token, self.options, self.most, self.say = frozenset(simulators), token, dict(options), most, say
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            self._listening = socket.create_server((host, port), family=family, backlog=64)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror  # of a name, below 0
            raise UserError(
                f"{host} port {port} can't be listened on: {why}: give another --host or --port, or end what uses it"
            ) from None
        self.address = "{}:{}".format(f"[{host}]" if ":" in host else host, self._listening.getsockname()[1])
        self._key = secrets.token_hex(32)
        self._taken: dict[int, ChildProcess | None] = {}
        """Number of a connection -> its process, once it is started."""
        self._lock, self._closed = threading.Lock(), False

    def serve(self) -> None:
        """Accept connections until `close`."""
        number = 0
        while not self._closed:
            try:
                channel, peer = self._listening.accept()
            except OSError:  # it was closed
                return
            number += 1
            threading.Thread(target=self._welcome, args=(number, channel, f"{peer[0]}:{peer[1]}"), daemon=True).start()

    def close(self) -> None:
        """Stop listening and end all simulators."""
        with self._lock:
            self._closed = True
            for process in self._taken.values():
                if process:
                    process.kill()
        with contextlib.suppress(OSError):
            self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()

    def _welcome(self, number: int, channel: socket.socket, who: str) -> None:
        """Serve one connection to its end."""
        with contextlib.closing(channel):
            try:
                channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                channel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # a machine that is gone closes nothing
                wants = handshake.challenge(channel, self.token)
                if why := self._refusal(number, wants):
                    self.say(f"{who}: refused: {why}")
                    handshake.refuse(channel, why)
                    return
                handshake.accept(channel, wants["proof"])
                allowed = {
                    "simulator": wants["simulator"],
                    "options": {**wants["options"], **self.options},
                    "num_envs": wants["num_envs"],
                    "shared": wants.get("shared") is True,
                }
                self._run(number, channel, who, allowed)
            except (Broken, OSError) as error:
                self.say(f"{who}: not served: {display_path(error)}")
            finally:
                with self._lock:
                    self._taken.pop(number, None)

    def _refusal(self, number: int, wants: Mapping[str, Any]) -> str:
        """Why a client can't be served; empty if it can, which takes one of the places."""
        simulator, options, count = wants.get("simulator"), wants.get("options"), wants.get("num_envs")
        if simulator not in self.simulators:
            return f"simulator {simulator!r:.80} is not served here: there is {', '.join(sorted(self.simulators))}"
        if not isinstance(options, dict) or type(count) is not int or not 1 <= count <= MOST_ENVS:
            return f"num_envs = {count!r:.40} must be a whole number of 1 to {MOST_ENVS}, and options a table"
        for name in PROGRAMS:
            if name in options and name not in self.options:
                return f"option {name!r} names a program of the server's machine: start the server with --set {name}=..."
        with self._lock:
            if len(self._taken) >= self.most:
                return f"all {self.most} places are taken: raise --most, or lower simulate.lanes"
            self._taken[number] = None
        return ""

    def _run(self, number: int, channel: socket.socket, who: str, wants: Mapping[str, Any]) -> None:
        process = start_worker(channel, wants, self._key)
        with self._lock:
            self._taken[number] = process
            if self._closed:
                process.kill()
        self.say(f"{who}: {wants['simulator']}, {wants['num_envs']} environments, process {process.pid}")
        try:
            if watch(process, channel):
                self.say(f"{who}: closed")
            else:
                why = process.how_it_ended()
                self.say(f"{who}: its process {why}")
                with contextlib.suppress(Broken):  # between two messages it is read as the reason
                    send_frame(channel, {"died": f"its process {why}"}, deadline=time.monotonic() + 1)
        finally:
            process.close()


def start_worker(channel: socket.socket, wants: Mapping[str, Any], key: str) -> ChildProcess:
    """Start the process that serves a connection; it inherits the socket, and dies with the thread that started it."""
    return ChildProcess(
        WORKER, [channel.fileno(), dict(wants)], environment={**os.environ, KEY: key}, pass_fds=[channel.fileno()]
    )


def watch(process: ChildProcess, channel: socket.socket | None = None) -> bool:
    """Read what a worker writes to stderr until it ends or, if a channel is given, the client is gone. Returns whether the client
    is gone, or the worker ended with exit code 0."""
    poll = select.poll()
    poll.register(process.stderr, select.POLLIN | select.POLLHUP)
    if channel is not None:
        poll.register(channel, HUNG_UP)
    while process.popen.poll() is None:
        for descriptor, _ in poll.poll(LOOK_S * 1000):
            if channel is not None and descriptor == channel.fileno():
                if process.exit_code(2.0) is None:  # it closes its simulator when it notices, if it still can
                    process.kill()
                return True
            if not process.listen():
                poll.unregister(descriptor)
    return process.popen.returncode == 0
