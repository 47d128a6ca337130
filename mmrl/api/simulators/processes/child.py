"""What runs in a worker process: one environment, driven by messages over a socket; its rows go into shared memory.

This file is loaded by its path (`mmrl.api.processes.child`) and imports the standard library and numpy alone, so that an
interpreter that has neither mmrl nor torch can run it: simulators have needs of their own.
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
"""Bytes that say how long the message is that follows."""


def serve(channel_fd: int, memory_fd: int, factory: str, file: str) -> None:
    """Make the world, send what it shows, then obey until the socket is closed. The first message has the factory's options."""
    channel = socket.socket(fileno=channel_fd)
    os.dup2(2, 1)  # what a simulator prints
    try:
        world = load(factory, file)(**pickle.loads(receive(channel)))
        first = world.reset(0, None)
        layout = {name: (str(array.dtype), array.shape) for name, array in first.items()}
        send(channel, ("ready", layout, dict(world.facts)))
    except BaseException as error:  # noqa: BLE001  SystemExit too: whatever it is, the parent says it
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
        if not message:  # the parent closed it, or is gone
            os.killpg(os.getpid(), signal.SIGKILL)
        method, arguments = pickle.loads(message)
        try:
            if method == "step":
                arguments = (action.copy(),)
            result = getattr(world, method)(*arguments)
            if method in ("reset", "step", "restore"):
                _write(rows, result)
                result = None
            answer = ("done", result)
        except BaseException as error:  # noqa: BLE001  the parent counts this environment as lost and says why
            answer = ("refused" if is_user_error(error) else "failed", describe_error(error))
        send(channel, answer)


def send(channel: socket.socket, message: Any) -> None:
    data = message if isinstance(message, bytes) else pickle.dumps(message, 4)
    channel.sendall(len(data).to_bytes(SIZE, "little") + data)


def receive(channel: socket.socket) -> bytes:
    """The next message; empty where the other end is closed."""
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
    """The environment's row of each array, all or none."""
    if set(result) != set(rows):
        raise ValueError(f"it gave the arrays {sorted(result)}, and at first {sorted(rows)}")
    for name, row in rows.items():
        found = result[name]
        if found.shape != row.shape or found.dtype != row.dtype:
            now, before = f"{found.dtype} {list(found.shape)}", f"{row.dtype} {list(row.shape)}"
            raise ValueError(f"its {name} is {now}, and at first it was {before}")
    for name, row in rows.items():
        row[...] = result[name]
