"""A deadline for simulators in this process: code that hangs here can't be stopped, so the run ends, with one line.

A simulator in a process of its own (`compute.simulators`, `simulate.address`) is killed and replaced instead.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator

GRACE_S = 10.0
"""Seconds behind the deadline at which the run ends even if the simulator lets no Python code run."""
STDERR = 2
"""The file descriptor, as `sys.stderr` may be none."""
LOOK_S = 0.5
"""Seconds between two looks, at most."""


def leave(line: str) -> None:
    """End this process at once, as after bad input: the line on stderr, and exit code 2. Its newest checkpoint stays."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdout.flush()
        sys.stderr.write(f"mmrl: {line}\n")
        sys.stderr.flush()
    os._exit(2)


class Watchdog:
    """Watches the calls of simulators in this process, of several lanes at once."""

    def __init__(self, seconds: float, leave: Callable[[str], None] = leave) -> None:
        """seconds: deadline of a call. leave: is given the line of a call that passed it; of another thread than the call's."""
        self.seconds, self.leave = seconds, leave
        self._calls: dict[int, tuple[float, str]] = {}
        """Number of a call that goes on -> (its deadline of `time.monotonic()`, what it is)."""
        self._armed = -math.inf
        """When the interpreter's timer was set, of `time.monotonic()`."""
        self._numbers = iter(range(2**63))
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    @contextlib.contextmanager
    def watch(self, what: str) -> Iterator[None]:
        """The block must end before the deadline. what: begins the line, such as `step() of simulator 'gym/env'`."""
        with self._lock:
            number, now = next(self._numbers), time.monotonic()
            self._calls[number] = (now + self.seconds, what)
            if now - self._armed > LOOK_S:  # here, since the block may hold Python's lock from its first moment
                self._arm()
            if self._thread is None:
                self._thread = threading.Thread(target=self._look, name="simulator-watchdog", daemon=True)
                self._thread.start()
        self._wake.set()
        try:
            yield
        finally:
            with self._lock:
                del self._calls[number]

    def close(self) -> None:
        """End the watching."""
        self._closed = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def _arm(self) -> None:
        """Set the interpreter's own timer anew. C code that holds Python's lock stops the thread that does so, and the timer ends
        the process with the place where it hangs."""
        self._armed = time.monotonic()
        faulthandler.dump_traceback_later(self.seconds + GRACE_S, exit=True, file=STDERR)

    def _disarm(self) -> None:
        self._armed = -math.inf
        faulthandler.cancel_dump_traceback_later()

    def _look(self) -> None:
        while not self._closed:
            with self._lock:
                going = list(self._calls.values())
                if going:
                    self._arm()
                else:
                    self._disarm()
                    self._wake.clear()
            if not going:
                if not self._closed:  # looked at behind `clear`, so that `close` is not missed
                    self._wake.wait()
                continue
            end, what = min(going)
            if time.monotonic() > end:
                self.leave(
                    f"{what} took longer than simulate.timeout_s = {self.seconds:g} s: raise it, or set compute.simulators = "
                    '"processes", which replaces a simulator that hangs; then go on with --resume'
                )
                break
            time.sleep(min(LOOK_S, max(end - time.monotonic(), 0.01)))
        with self._lock:
            self._disarm()
