"""What asks a run to end: Ctrl-C, a termination signal, a terminal that closes."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import threading
from collections.abc import Callable, Iterator
from typing import Any

AGAIN = "Ctrl-C again to stop at once"


@contextlib.contextmanager
def on_termination(tell: Callable[[int], None]) -> Iterator[None]:
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


@contextlib.contextmanager
def defer_interrupt(what: str) -> Iterator[None]:
    """A Ctrl-C within this is heard at its end, for what hears none or can't be left halfway; a second one at once.

    what: the person is told to be waited for.
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():  # which alone hears of it
        yield
        return
    heard = False

    def hear(number: int, frame: Any) -> None:
        nonlocal heard
        heard = True
        signal.signal(signal.SIGINT, before)
        tell(f"stopping when {what}; {AGAIN}")

    signal.signal(signal.SIGINT, hear)
    try:
        yield
    finally:
        if not heard:
            signal.signal(signal.SIGINT, before)
    if heard:
        signal.raise_signal(signal.SIGINT)


def tell(line: str) -> None:
    """Write a line to the terminal from a signal handler, which may have come in the middle of what writes others."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{line}\n".encode())


def _leave_terminal() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        with contextlib.suppress(OSError):  # it may have been closed before
            if stat.S_ISCHR(os.fstat(file).st_mode):  # what goes into a file or a pipe still does
                os.dup2(null, file)
    os.close(null)
