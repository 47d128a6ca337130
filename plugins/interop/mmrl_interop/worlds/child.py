"""The process of other programs' environments. It gets calls as lines of JSON and answers with lines of JSON.

This file is loaded by its path and imports only the standard library, so that an interpreter without mmrl can run it.

A program's environments are a class `Worlds(**options)` with `facts` (plain data) and `open()`, which makes a session: an object
with `start(**where)`, `step(completion)` and `close()`. What these return has `messages` in OpenAI's form with images as data
URLs and may have `gold`, the right next completion; that of `step` also has `reward`, `terminated` and `outcome`.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import functools
import importlib
import importlib.util
import io
import json
import os
import signal
import struct
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from mmrl.api.processes.child import describe_error, is_user_error, load, take_pipes

CLOSE_S = 3.0
"""Seconds that a session has to close."""
LARGEST = 64 * 2**20
"""Largest number of bytes of an answer."""
PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")
"""Modes of PIL that a PNG can have."""
TYPED = "$type"
"""Key of a table of JSON that stands for a value that JSON doesn't have: [the name of its type, text]."""
PLACE = "<image>"
"""What stands in a text where an image belongs."""


class Refused(Exception):
    """An error that the user can fix; the message is one line."""

    plain = True


class Lost(Exception):
    """What an episode needs is gone, which is no fault of the policy's."""


def loaded(name: str) -> Any:
    """The function or class at `path.py:name` or `package.module:name`. Raises Refused for a file that fails, and where there is
    nothing of that name that can be called."""
    place, _, own = name.rpartition(":")
    try:
        module = run_file(place) if place.endswith(".py") else importlib.import_module(place)
    except (Exception, SystemExit) as error:
        why = " ".join(str(error).split())[:200]
        raise Refused(f"{place} can't be loaded ({type(error).__name__}: {why}): correct it") from error
    found = getattr(module, own, None)
    if not callable(found):
        raise Refused(f"{place} has nothing called {own!r} that can be called: correct the name")
    return found


@functools.cache
def run_file(path: str) -> Any:
    """The module of a file, which is run once."""
    sys.path.append(os.path.dirname(os.path.abspath(path)))  # it may import files beside it
    spec = importlib.util.spec_from_file_location(f"mmrl_file_{os.path.basename(path)[:-3]}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def serve(target: str, file: str, options: dict[str, Any]) -> None:
    """Make the worlds and send their facts, then handle calls until the pipe is closed. target: `module:class`, loaded from
    `file`."""
    requests, replies = take_pipes()
    try:
        worlds = load(target, file)(**options)
        _send(replies, {"done": worlds.facts})
    except BaseException as error:  # noqa: BLE001  SystemExit too: the parent reports it
        _send(replies, _failure(error))
        os._exit(1)
    sessions: dict[int, Any] = {}
    for line in requests:
        call = json.loads(line)
        try:
            with _time_limit(call["seconds"]):
                answer = {"done": _call(worlds, sessions, call["session"], call["method"], call["arguments"])}
                if len(json.dumps(answer, default=_plain)) >= LARGEST:
                    raise ValueError(f"its answer has more than {LARGEST // 2**20} MiB")
        except BaseException as error:  # noqa: BLE001  the session is lost, the others go on
            answer = _failure(error)
            _close(sessions, call["session"])
        _send(replies, answer)
    os._exit(0)


def _call(worlds: Any, sessions: dict[int, Any], number: int, method: str, arguments: dict[str, Any]) -> Any:
    if method == "close":
        return _close(sessions, number)
    if method == "start":
        sessions[number] = worlds.open()
    return getattr(sessions[number], method)(**arguments)


def _close(sessions: dict[int, Any], number: int) -> None:
    session = sessions.pop(number, None)
    if session is not None:
        with contextlib.suppress(BaseException), _time_limit(CLOSE_S):
            session.close()


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise TimeoutError in code that runs longer. What hangs outside Python is killed by the parent."""

    def late(*args: Any) -> None:
        raise TimeoutError(f"took longer than {seconds:g} s")

    signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _failure(error: BaseException) -> dict[str, str]:
    return {"refused" if is_user_error(error) else "failed": describe_error(error)}


def _send(replies: int, answer: Any) -> None:
    data = json.dumps(answer, default=_plain).encode() + b"\n"
    while data:
        data = data[os.write(replies, data) :]


def _plain(value: Any) -> Any:
    """Numbers of numpy as those of Python."""
    if hasattr(value, "item") and getattr(value, "size", 1) == 1:
        return value.item()
    raise TypeError(f"{type(value).__name__} is no plain data")


# -- values of tables that JSON doesn't have -------------------------------------------------------------------------------


def to_json(value: Any) -> Any:
    """A value of a table as plain data, from which `from_json` makes it again: dates, times, `Decimal` and bytes, also in lists
    and tables. A time zone becomes its offset. Raises TypeError for anything else that JSON doesn't have."""
    if isinstance(value, Mapping):
        known = {str(key): to_json(own) for key, own in value.items()}
        return {TYPED: ["table", known]} if TYPED in known else known
    if isinstance(value, list | tuple):
        return [to_json(own) for own in value]
    if value is None or isinstance(value, str | int | float):
        return value
    for name, (kind, write, _) in TYPES.items():
        if isinstance(value, kind):
            return {TYPED: [name, write(value)]}
    raise TypeError(f"{type(value).__name__} is no plain data")


def from_json(value: Any) -> Any:
    """The value that `to_json` was given; tuples are lists."""
    if isinstance(value, list):
        return [from_json(own) for own in value]
    if not isinstance(value, dict):
        return value
    if TYPED not in value:
        return {key: from_json(own) for key, own in value.items()}
    name, written = value[TYPED]
    return {key: from_json(own) for key, own in written.items()} if name == "table" else TYPES[name][2](written)


TYPES: dict[str, tuple[type, Callable[[Any], Any], Callable[[Any], Any]]] = {
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),  # a datetime is one, too
    "time": (datetime.time, datetime.time.isoformat, datetime.time.fromisoformat),
    "timedelta": (
        datetime.timedelta,
        lambda took: [took.days, took.seconds, took.microseconds],
        lambda parts: datetime.timedelta(*parts),
    ),
    "decimal": (Decimal, str, Decimal),
    "bytes": (bytes, lambda data: base64.b64encode(data).decode(), base64.b64decode),
}
"""Name -> (type, how it is written, how it is read)."""


# -- what the programs' own modules make their observations of --------------------------------------------------------------


def message(text: str, images: Sequence[Any] = (), role: str = "user", place: str = PLACE) -> dict[str, Any]:
    """A message whose images stand in their places in the text, or before it if it has none."""
    pieces = text.split(place) if images else [text]
    if len(pieces) == 1 and images:
        pieces = [*[""] * len(images), text]
    if len(pieces) != len(images) + 1:
        raise ValueError(f"the text has {len(pieces) - 1} {place}, and there are {len(images)} images")
    parts: list[dict[str, Any]] = []
    for number, piece in enumerate(pieces):
        if piece:
            parts.append({"type": "text", "text": piece})
        if number < len(images):
            parts.append({"type": "image_url", "image_url": {"url": picture(images[number])}})
    return {"role": role, "content": parts}


def picture(image: Any) -> str:
    """The data URL of a PIL image, or of an array uint8 [H, W], [H, W, 3] or [H, W, 4]."""
    if hasattr(image, "save") and hasattr(image, "mode"):
        (image if image.mode in PNG_MODES else image.convert("RGB")).save(buffer := io.BytesIO(), "PNG")
        data = buffer.getvalue()
    else:
        data = _png(image)
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def _png(image: Any) -> bytes:
    """The PNG of an array; by hand, since an interpreter with a game may have no Pillow."""
    shape, kind = tuple(getattr(image, "shape", ())), str(getattr(image, "dtype", type(image).__name__))
    channels = 1 if len(shape) == 2 else shape[2] if len(shape) == 3 else 0
    if channels not in (1, 3, 4) or 0 in shape or kind != "uint8":
        raise ValueError(f"an image must be a PIL image or an array uint8 [H, W, 3], not {kind} {list(shape)}")
    rows = image.reshape(shape[0], -1)
    head = struct.pack(">IIBBBBB", shape[1], shape[0], 8, {1: 0, 3: 2, 4: 6}[channels], 0, 0, 0)
    chunks = [(b"IHDR", head), (b"IDAT", zlib.compress(b"".join(b"\0" + row.tobytes() for row in rows), 6)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data)) for name, data in chunks
    )
