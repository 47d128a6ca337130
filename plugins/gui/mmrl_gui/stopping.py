"""Deferred handling of Ctrl-C and termination signals."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

from mmrl.api.signals import on_termination, write_to_terminal


class Stop:
    """Requests to stop. Signals are deferred up to a limit; one more raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.number = 0
        """The first signal; 0 before one."""
        self._count = 0
        self._borne = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Handle signals inside this context. For the main thread only. If there was one, this process is ending, and further
        ones are ignored: a mask of the main thread would leave them to other threads."""
        with on_termination(self._hear) as after:
            try:
                yield
            finally:
                if self.number:
                    after.update(dict.fromkeys(after, signal.SIG_IGN))

    @contextlib.contextmanager
    def bearing(self, count: int) -> Iterator[None]:
        """Inside this context `count` signals are deferred; sys.maxsize defers all."""
        before, self._borne = self._borne, count
        try:
            yield
        finally:
            self._borne = before

    def check(self) -> None:
        """Raises KeyboardInterrupt if there was a signal. Call it where an interruption is safe."""
        if self.number:
            raise KeyboardInterrupt

    def _hear(self, number: int) -> None:
        self.number = self.number or number
        self._count += 1
        if self._count > self._borne:
            self._borne = sys.maxsize  # the cleanup is not interrupted again
            raise KeyboardInterrupt
        if self._count == 1:
            write_to_terminal("stopping after this action; once more to stop at once")


def ignore_signals() -> None:
    """Ignore signals while this process ends."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


__all__ = ["Stop", "ignore_signals"]
