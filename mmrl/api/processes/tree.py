"""The memory of a process and of its descendants, and their time in line for a processor, measured from outside. Linux only."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterator
from pathlib import Path

GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
"""What reading /proc raises for a process that ended meanwhile."""


def tree(pid: int) -> Iterator[int]:
    """The process and its descendants."""
    yield pid
    with contextlib.suppress(*GONE):
        for task in os.listdir(f"/proc/{pid}/task"):
            for child in _read(f"/proc/{pid}/task/{task}/children").split():
                yield from tree(int(child))


def resident_bytes(pid: int, limit: int) -> int:
    """Bytes of memory that a process and its descendants occupy, shared maps included.

    A page that several of them share counts in each, unless that would exceed `limit` bytes: then each counts its part."""
    found = list(tree(pid))
    total = sum(int((_read(f"/proc/{p}/statm") or "0 0").split()[1]) for p in found) * mmap.PAGESIZE
    return total if total <= limit else sum(_proportional(p) for p in found)


def queued_s(pid: int) -> float:
    """Seconds that the processes of a tree, each by its main thread, could have run but waited for a processor; 0 where Linux
    doesn't count them."""
    found = [_read(f"/proc/{p}/schedstat").split() for p in tree(pid)]
    return sum(int(fields[1]) for fields in found if len(fields) == 3) / 1e9


def _proportional(pid: int) -> int:
    lines = _read(f"/proc/{pid}/smaps_rollup").splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:")), 0)


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except GONE:
        return ""
