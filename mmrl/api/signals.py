"""Signals that ask a run to end: Ctrl-C, a termination signal, the end of the terminal."""

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
def on_termination(on_signal: Callable[[int], None]) -> Iterator[dict[int, Any]]:
    """Inside the block, termination signals call `on_signal` with their number and have no other effect. For the main thread.

    Yields the handlers that the end of the block puts back, which the block may change. After the terminal has closed (SIGHUP)
    nothing more is written to it, since each line would raise an error. Under nohup, SIGHUP is ignored.
    """

    def handle(number: int, frame: Any) -> None:
        if number == signal.SIGHUP:
            _leave_terminal()
        on_signal(number)

    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    after: dict[int, Any] = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield after
    finally:
        for number, handler in after.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def defer_interrupt(what: str) -> Iterator[None]:
    """Delay a Ctrl-C inside the block until its end, for code that ignores it or can't be left halfway. A second one acts at
    once.

    what: what the user has to wait for, for the message "stopping when {what}".
    """
    before = signal.getsignal(signal.SIGINT)
    if not callable(before) or threading.current_thread() is not threading.main_thread():  # only that one gets signals
        yield
        return
    interrupted = False

    def handle(number: int, frame: Any) -> None:
        nonlocal interrupted
        interrupted = True
        signal.signal(signal.SIGINT, before)
        write_to_terminal(f"stopping when {what}; {AGAIN}")

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        if not interrupted:
            signal.signal(signal.SIGINT, before)
    if interrupted:
        signal.raise_signal(signal.SIGINT)


def write_to_terminal(line: str) -> None:
    """Write a line to the terminal from a signal handler, which may interrupt other writes."""
    with contextlib.suppress(OSError):
        os.write(2, f"\n{line}\n".encode())


def _leave_terminal() -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for file in (0, 1, 2):
        with contextlib.suppress(OSError):  # it may be closed already
            if stat.S_ISCHR(os.fstat(file).st_mode):  # files and pipes stay open
                os.dup2(null, file)
    os.close(null)
