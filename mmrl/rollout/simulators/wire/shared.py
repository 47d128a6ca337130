"""Arrays past the wire: on one machine a worker writes them into a file in memory, and a message carries the file's name.

Whether both ends are on one machine is tried and not asked: the worker offers a file with random bytes, and an end that finds the
same bytes in a file of its own user is on the same machine, and in the same container.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import secrets
import stat
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy

from mmrl.rollout.simulators.wire.frames import Arrays, Broken, _size

NAME = re.compile(r"mmrl-[0-9a-f]{32}")
ALIGNMENT = 64
LEAST = 1 << 14
"""Smaller messages go over the wire, in bytes."""


def folder() -> Path:
    """The folder for shared files, in memory where the system has one."""
    memory = Path("/dev/shm")
    return memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())


class SharedWriter:
    """The worker's side: a file that grows to the largest message."""

    def __init__(self) -> None:
        self.agreed = False
        """The other end found the offered file."""
        self._path: Path | None = None
        self._map: mmap.mmap | None = None

    def offer(self) -> dict[str, str] | None:
        """A file with random bytes, for `SharedReader.finds`; None if there is no room for one."""
        proof = secrets.token_hex(16)
        if not self._make(len(proof)):
            return None
        assert self._map is not None and self._path is not None
        self._map[:] = proof.encode()
        return {"name": self._path.name, "proof": proof}

    def write(self, arrays: Arrays) -> dict[str, Any] | None:
        """Write a message's arrays. Returns what `SharedReader.read` needs, or None if they should go over the wire."""
        total = sum(-(-array.nbytes // ALIGNMENT) * ALIGNMENT for array in arrays)
        if not self.agreed or total < LEAST:
            return None
        if (self._map is None or len(self._map) < total) and not self._make(total):
            return None
        assert self._map is not None and self._path is not None
        at = 0
        for array in arrays:
            if not array.size:
                continue
            there = numpy.frombuffer(self._map, array.dtype, array.size, at).reshape(array.shape)
            there[...] = array
            at += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
        return {"name": self._path.name, "layout": [[str(array.dtype), list(array.shape)] for array in arrays]}

    def _make(self, size: int) -> bool:
        """Whether the folder has room for another file of this size. A container's /dev/shm may have 64 MB, and writing beyond
        what is there would end the process."""
        self.close()
        self._path = folder() / f"mmrl-{secrets.token_hex(16)}"
        made = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(made, 0, size)
            else:
                os.ftruncate(made, size)
            self._map = mmap.mmap(made, size)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            self.close()
        finally:
            os.close(made)
        return self._map is not None

    def close(self) -> None:
        """Remove the file, unless its reader has; pages in use stay."""
        if self._path is not None:
            with contextlib.suppress(FileNotFoundError):
                self._path.unlink()
        self._path = self._map = None


class SharedReader:
    """The learner's side."""

    def __init__(self) -> None:
        self._name = ""
        self._map: mmap.mmap | None = None

    def finds(self, offer: Any) -> bool:
        """Whether a file offered by `SharedWriter.offer` is on this machine."""
        try:
            proof = offer["proof"]
            found = self._opened(offer["name"])
        except (Broken, KeyError, TypeError):
            return False
        return isinstance(proof, str) and secrets.compare_digest(bytes(found[: len(proof)]), proof.encode())

    def read(self, told: Any) -> list[numpy.ndarray]:
        """Copies of a message's arrays, since the next message overwrites them. Raises Broken."""
        try:
            layout: Sequence[Any] = told["layout"]
            sizes = [_size(*one) for one in layout]
            found = self._opened(told["name"])
        except (KeyError, TypeError, ValueError) as error:
            raise Broken(f"a message's shared arrays can't be read: {error}") from None
        arrays, at = [], 0
        for (dtype, shape), size in zip(layout, sizes, strict=True):
            if at + size > len(found):
                raise Broken("a message's shared arrays are longer than their file")
            read = numpy.frombuffer(found, numpy.uint8, size, at).copy() if size else numpy.empty(0, numpy.uint8)
            arrays.append(read.view(dtype).reshape(shape))
            at += -(-size // ALIGNMENT) * ALIGNMENT
        return arrays

    def _opened(self, name: Any) -> mmap.mmap:
        """The file mapped, and removed from its folder. Raises Broken unless it is a file of this user with such a name."""
        if name == self._name and self._map is not None:
            return self._map
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise Broken(f"a message names {name!r:.60} as its shared file")
        path = folder() / name
        try:
            opened = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise Broken(f"a message's shared file can't be opened: {error.strerror}") from None
        try:
            known = os.fstat(opened)
            if not stat.S_ISREG(known.st_mode) or known.st_uid != os.getuid() or not known.st_size:
                raise Broken("a message's shared file is not a file of this user")
            self._map, self._name = mmap.mmap(opened, known.st_size, prot=mmap.PROT_READ), name
        finally:
            os.close(opened)
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        return self._map
