"""What a run on a device costs its host: waits and copies, each with the line that caused it."""

from __future__ import annotations

import collections
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

ROOT = Path(__file__).parents[3]
OURS = tuple(str(ROOT / folder) + "/" for folder in ("mmrl", "plugins", "sims", "benchmarks", "tests"))
MOVES = (str(Path(__file__).parent) + "/", str(ROOT / "mmrl" / "api" / "transfer.py"))
"""What only moves tensors for others."""
PACKAGES = "/site-packages/"

Kind = Literal["read", "size", "upload", "download", "synchronize"]


class WaitForbidden(Exception):
    """The host would have waited for the device where it must not."""


@dataclass(frozen=True, slots=True)
class Wait:
    """The host waited for the device."""

    kind: Kind
    """read: a number was read. size: a result's size depends on the device's numbers. upload: a copy from memory that isn't
    pinned, or without `non_blocking`. download: a copy to the host. synchronize: `torch.cuda.synchronize`."""
    what: str
    """The operation, such as "nonzero"."""
    line: str
    """Where: the innermost line of this repository, as path:number, and the line of the library that it called, if any."""

    def __str__(self) -> str:
        return f"{self.line}  {self.kind} ({self.what})"


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy between host and device that the host didn't wait for."""

    bytes: int
    up: bool
    line: str


@dataclass
class Seen:
    """Waits and copies, in their order."""

    waits: list[Wait] = field(default_factory=list)
    copies: list[Copy] = field(default_factory=list)

    def __str__(self) -> str:
        found = collections.Counter(str(wait) for wait in self.waits)
        return f"{len(self.waits)} waits\n" + "\n".join(f"{n:5d}  {line}" for line, n in found.most_common())


class Ledger:
    """Records what the host waits for, for whoever counts."""

    def __init__(self) -> None:
        self.open: list[Seen] = []
        self.forbidding = 0

    @contextmanager
    def counting(self) -> Iterator[Seen]:
        """Inside the block, waits and copies are counted."""
        seen = Seen()
        self.open.append(seen)
        try:
            yield seen
        finally:
            self.open.remove(seen)

    @contextmanager
    def no_waits(self) -> Iterator[None]:
        """Inside the block, a wait raises WaitForbidden at its line."""
        self.forbidding += 1
        try:
            yield
        finally:
            self.forbidding -= 1

    def wait(self, kind: Kind, what: str) -> None:
        if not (self.open or self.forbidding):
            return
        wait = Wait(kind, what, line())
        if self.forbidding:
            raise WaitForbidden(str(wait))
        for seen in self.open:
            seen.waits.append(wait)

    def copy(self, bytes: int, up: bool) -> None:
        for seen in self.open:
            seen.copies.append(Copy(bytes, up, line()))


def line() -> str:
    """The innermost line of this repository that is running; with that of the library that it called, if it did."""
    frame, called = sys._getframe(1), ""
    while frame is not None:
        name = frame.f_code.co_filename
        if name.startswith(OURS) and PACKAGES not in name and not name.startswith(MOVES):
            own = f"{Path(name).relative_to(ROOT)}:{frame.f_lineno}"
            return f"{own} via {called}" if called else own
        if PACKAGES in name and not called and not (short := name.split(PACKAGES)[1]).startswith(("torch/", "_pytest/")):
            called = f"{short}:{frame.f_lineno}"
        frame = frame.f_back
    return called or "?"
