"""What asks a run to end: Ctrl-C, a termination signal, a terminal that closes."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def asked_to_end(tell: Callable[[int], None]) -> Iterator[None]:
    """Inside, what asks this process to end is told by its signal's number, and ends nothing by itself. For the main thread.

    A terminal that has closed is not written to any more: each line would be an error. Under nohup its end isn't heard of.
    """

    def hear(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        tell(number)

    asking = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        asking.append(signal.SIGHUP)
    before = {number: signal.signal(number, hear) for number in asking}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leave_terminal() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        with contextlib.suppress(OSError):  # it may have been closed before
            if stat.S_ISCHR(os.fstat(file).st_mode):  # what goes into a file or a pipe still does
                os.dup2(null, file)
    os.close(null)
