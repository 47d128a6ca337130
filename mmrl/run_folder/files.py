"""Plain data into files, with nothing torn: a file is appended to by whole lines, or written aside and renamed."""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from mmrl.api.errors import UserError


def to_json_value(value: Any, toml: bool = False) -> Any:
    """A value as JSON can hold it: numbers that are not finite become None, arrays lists, anything unknown its text.
    For TOML, which has no null but has inf, None is left out and such numbers stay."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if toml or math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(k): to_json_value(v, toml) for k, v in value.items() if not (toml and v is None)}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes | bytearray | memoryview):
        return [to_json_value(v, toml) for v in value if not (toml and v is None)]
    if hasattr(value, "tolist"):  # numpy and torch, arrays and scalars
        return to_json_value(value.tolist(), toml)
    return str(value)


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (old, new), where two trees of plain data differ; None stands for a key that is not there."""
    return dict(_differences(old, new, ""))


def _differences(old: Any, new: Any, key: str) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """(dotted key, (old, new)) of every value in which two trees of plain data differ."""
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        old, new = dict(enumerate(old)), dict(enumerate(new))
    if isinstance(old, dict) and isinstance(new, dict):
        if key.endswith(".verifiers") and old.keys() == new.keys() and [*old] != [*new]:  # the first is what evaluations report
            yield key, ([*old], [*new])
        for name in sorted({*old, *new}, key=str):
            yield from _differences(old.get(name), new.get(name), f"{key}.{name}" if key else str(name))
    elif old != new:
        yield key, (old, new)


def line(row: Mapping[str, Any]) -> bytes:
    """One line of a JSONL file. ASCII only, so that a cut can't fall inside a character."""
    return json.dumps(to_json_value(row), allow_nan=False, separators=(",", ":")).encode() + b"\n"


def pretty(values: Mapping[str, Any]) -> bytes:
    """A whole JSON file, for people too."""
    return json.dumps(to_json_value(values), allow_nan=False, indent=2).encode() + b"\n"


def open_regular_file(path: Path) -> BinaryIO:
    """A file of a run folder, to be read. OSError for what is none: a pipe, which would be waited for, a device, or a link, which
    may lead anywhere."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is no plain file", str(path))
    return os.fdopen(descriptor, "rb")


def contents(path: Path) -> bytes:
    """All of such a file."""
    with open_regular_file(path) as file:
        return file.read()


def append_lines(path: Path, data: bytes) -> None:
    """Add whole lines in one write; when it fails half-way, the file is as before."""
    with disk_errors(path), open(path, "ab", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        try:
            if file.write(data) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            with contextlib.suppress(OSError):  # the first failure is the one to tell
                file.truncate(size)
            raise


def replace_file(path: Path, data: bytes) -> None:
    """Write aside, then rename: the old content stays until the new one is complete."""
    aside = path.with_name(f".{path.name}.tmp")
    with disk_errors(path):
        try:
            aside.write_bytes(data)
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turns a failure of the disk or of permissions into a UserError that names `path`."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        cure = "free some space" if full else "mend that"
        raise UserError(f"cannot write {path}: {error.strerror}; {cure}, then go on with --resume") from error
