"""The worker process of one environment: it gets calls over a socket and writes its rows into shared memory.

This file is loaded by its path (`mmrl.api.processes.child`) and imports only the standard library and numpy, so that an
interpreter without mmrl and torch can run it: some simulators need their own environment.
"""

from __future__ import annotations

import mmap
import os
import pickle
import signal
import socket
from typing import Any

from mmrl.api.processes.child import describe_error, is_user_error, load

SIZE = 8
"""Number of bytes that hold the length of the following message."""


def serve(channel_fd: int, memory_fd: int, factory: str, file: str) -> None:
    """Make the environment, send the layout of its arrays, then handle calls until the socket is closed.

    The first message has the factory's options."""
    channel = socket.socket(fileno=channel_fd)
    os.dup2(2, 1)  # prints of the simulator go to stderr
    try:
        environment = load(factory, file)(**pickle.loads(receive(channel)))
        first = environment.reset(0, None)
        layout = {name: (str(array.dtype), array.shape) for name, array in first.items()}
        send(channel, ("ready", layout, dict(environment.facts)))
    except BaseException as error:  # noqa: BLE001  SystemExit too: the parent reports it
        send(channel, ("failed", describe_error(error)))
        os._exit(1)
    import numpy

    offsets, total, row, dims = pickle.loads(receive(channel))
    memory = mmap.mmap(memory_fd, total)

    def array(name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        count = 1
        for length in shape:
            count *= length
        start = offsets[name] + row * count * numpy.dtype(dtype).itemsize
        return numpy.frombuffer(memory, dtype, count, start).reshape(shape)

    rows = {name: array(name, dtype, shape) for name, (dtype, shape) in layout.items()}
    action = array("action", "float32", (dims,))
    while True:
        message = receive(channel)
        if not message:  # the parent closed the socket or died
            os.killpg(os.getpid(), signal.SIGKILL)
        method, arguments = pickle.loads(message)
        try:
            if method == "step":
                arguments = (action.copy(),)
            result = getattr(environment, method)(*arguments)
            if method in ("reset", "step", "restore"):
                _write(rows, result)
                result = None
            answer = ("done", result)
        except BaseException as error:  # noqa: BLE001  the parent counts this environment as lost and reports the reason
            answer = ("refused" if is_user_error(error) else "failed", describe_error(error))
        send(channel, answer)


def send(channel: socket.socket, message: Any) -> None:
    data = message if isinstance(message, bytes) else pickle.dumps(message, 4)
    channel.sendall(len(data).to_bytes(SIZE, "little") + data)


def receive(channel: socket.socket) -> bytes:
    """The next message; empty if the other end is closed."""
    head = _exactly(channel, SIZE)
    return _exactly(channel, int.from_bytes(head, "little")) if head else b""


def _exactly(channel: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        try:
            part = channel.recv(min(count - len(data), 1 << 20))
        except OSError:
            return b""
        if not part:
            return b""
        data += part
    return bytes(data)


def _write(rows: dict[str, Any], result: Any) -> None:
    """Write the environment's row of each array, all or none."""
    if set(result) != set(rows):
        raise ValueError(f"it returned the arrays {sorted(result)}, and at first {sorted(rows)}: return the same names")
    for name, row in rows.items():
        value = result[name]
        if value.shape != row.shape or value.dtype != row.dtype:
            now, before = f"{value.dtype} {list(value.shape)}", f"{row.dtype} {list(row.shape)}"
            raise ValueError(f"its {name} is {now}, and at first it was {before}")
    for name, row in rows.items():
        row[...] = result[name]
