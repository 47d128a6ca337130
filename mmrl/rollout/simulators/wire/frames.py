"""One message on a wire: a head of fixed size, a header in JSON, then raw arrays.

Nothing in a message is executed, and both lengths are bounded before anything is read: a stranger's bytes can cost a closed
connection, and no more.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from collections.abc import Sequence
from typing import Any

import numpy

PROTOCOL = 3
"""Version of this form; the two ends must agree."""
MAGIC = b"mmrl"
HEAD = struct.Struct("<4sHIQ")
"""MAGIC, PROTOCOL, bytes of the header, bytes of the arrays."""
MOST_HEADER = 1 << 20
"""Largest header, in bytes."""
MOST_ARRAYS = 1 << 31
"""Largest sum of a message's arrays, in bytes."""
DTYPES = ("uint8", "bool", "int64", "int32", "float32", "float64", "float16")
MOST_DIMS = 8

Arrays = Sequence[numpy.ndarray]


class Broken(Exception):
    """The other end closed the connection, answered too late or sent something that is no message. In one line."""


class Late(Broken):
    """The other end didn't answer in time."""


def send_frame(channel: socket.socket, header: Any, arrays: Arrays = (), deadline: float | None = None) -> None:
    """Send a message. header: JSON. deadline: of `time.monotonic()`. Raises Broken."""
    layout = [[str(array.dtype), list(array.shape)] for array in arrays]
    text = json.dumps([header, layout], separators=(",", ":")).encode()
    count = sum(array.nbytes for array in arrays)
    if len(text) > MOST_HEADER or count > MOST_ARRAYS:
        raise Broken(f"a message of {len(text)} and {count} bytes is longer than {MOST_HEADER} and {MOST_ARRAYS} allow")
    try:
        _wait_until(channel, deadline)
        channel.sendall(HEAD.pack(MAGIC, PROTOCOL, len(text), count) + text)
        for array in arrays:
            _wait_until(channel, deadline)
            channel.sendall(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8).data)
    except TimeoutError:
        raise Late("it doesn't read what it is sent") from None
    except OSError as error:
        raise Broken(f"the connection was closed ({error.strerror or error})") from None


def receive_frame(
    channel: socket.socket, deadline: float | None = None, most_header: int = MOST_HEADER, most_arrays: int = MOST_ARRAYS
) -> tuple[Any, list[numpy.ndarray]]:
    """(header, arrays, which are writable). deadline: of `time.monotonic()`. Raises Broken."""
    magic, protocol, header_bytes, array_bytes = HEAD.unpack(_exactly(channel, HEAD.size, deadline).tobytes())
    if magic != MAGIC:
        raise Broken(f"the other end is no simulator of mmrl: its message begins with {magic!r}")
    if protocol != PROTOCOL:
        raise Broken(f"the other end speaks version {protocol} of the wire, and this one {PROTOCOL}: install one mmrl on both")
    if header_bytes > most_header or array_bytes > most_arrays:
        raise Broken(f"a message of {header_bytes} and {array_bytes} bytes is longer than {most_header} and {most_arrays} allow")
    text = _exactly(channel, header_bytes, deadline)
    try:
        header, layout = json.loads(bytes(text))
        sizes = [_size(*one) for one in layout]
    except (ValueError, TypeError, RecursionError) as error:
        raise Broken(f"a message's header can't be read: {' '.join(str(error).split())[:100]}") from None
    if sum(sizes) != array_bytes:
        raise Broken(f"a message has {array_bytes} bytes of arrays, and its header lists {sum(sizes)}")
    arrays = []
    for (dtype, shape), size in zip(layout, sizes, strict=True):
        arrays.append(_exactly(channel, size, deadline).view(dtype).reshape(shape))
    return header, arrays


def _size(dtype: Any, shape: Any) -> int:
    """Bytes of an array. Raises ValueError for a dtype or shape that no message has."""
    if dtype not in DTYPES or not isinstance(shape, list) or len(shape) > MOST_DIMS:
        raise ValueError(f"an array of {dtype!r:.40} and {shape!r:.40}")
    count = numpy.dtype(dtype).itemsize
    for length in shape:
        if type(length) is not int or not 0 <= length <= MOST_ARRAYS:
            raise ValueError(f"an array of the shape {shape!r:.60}")
        count *= length
    return count


def _exactly(channel: socket.socket, count: int, deadline: float | None) -> numpy.ndarray:
    """uint8 [count]: the next bytes. Memory is taken by what arrives, not by what was announced."""
    data = numpy.empty(count, numpy.uint8)
    view, got = data.data, 0
    try:
        while got < count:
            _wait_until(channel, deadline)
            read = channel.recv_into(view[got:])
            if not read:
                raise Broken("the connection was closed")
            got += read
    except TimeoutError:
        raise Late("it didn't answer") from None
    except OSError as error:
        raise Broken(f"the connection was closed ({error.strerror or error})") from None
    return data


def _wait_until(channel: socket.socket, deadline: float | None) -> None:
    if deadline is None:
        channel.settimeout(None)
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    channel.settimeout(left)
