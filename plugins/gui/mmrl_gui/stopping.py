"""Ctrl-C and a termination signal, noted while something must not be torn apart."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Iterator

from mmrl.api.signals import on_termination, tell


class Stop:
    """What a person or a scheduler asked for. Signals are noted up to as many as are borne; one more raises KeyboardInterrupt."""

    def __init__(self) -> None:
        self.number = 0
        """The signal that came first; 0 while none has."""
        self._count = 0
        self._borne = 0

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Meanwhile signals come here. For the main thread alone."""
        with on_termination(self._hear):
            yield

    @contextlib.contextmanager
    def bearing(self, count: int) -> Iterator[None]:
        """Meanwhile so many signals are noted and no more; sys.maxsize notes all."""
        before, self._borne = self._borne, count
        try:
            yield
        finally:
            self._borne = before

    def check(self) -> None:
        """Raises KeyboardInterrupt where a signal came: here nothing is torn apart."""
        if self.number:
            raise KeyboardInterrupt

    def _hear(self, number: int) -> None:
        self.number = self.number or number
        self._count += 1
        if self._count > self._borne:
            self._borne = sys.maxsize  # what is cleared away now is not interrupted again
            raise KeyboardInterrupt
        if self._count == 1:
            tell("stopping after this action; once more to stop at once")


def deaf() -> None:
    """What is closed while this process ends is not interrupted any more."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


__all__ = ["Stop", "deaf"]
