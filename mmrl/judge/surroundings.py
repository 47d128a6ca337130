"""What a verifier may change in its process beyond its case, and how the next chunk of cases is kept from it."""

from __future__ import annotations

import builtins
import gc
import os
import resource
import signal
import sys
import threading

SPARE_DESCRIPTORS = 32
"""Descriptors that a chunk may leave open: libraries open some at their first use."""
LIMITS = {name: number for name, number in vars(resource).items() if name.startswith("RLIMIT_")}


class Surroundings:
    """The folder, environment, `sys.path`, signals, timers and limits of this process, as they were when this was made."""

    def __init__(self) -> None:
        self._folder = os.getcwd()
        self._environment, self._path = dict(os.environ), list(sys.path)
        self._signals = {number: signal.getsignal(number) for number in signal.valid_signals()}
        self._mask = signal.pthread_sigmask(signal.SIG_BLOCK, ())
        self._umask = os.umask(0o022)
        os.umask(self._umask)
        self._builtins = dict(vars(builtins))
        self._limits, self._threads, self._descriptors = _limits(), threading.active_count(), _descriptors()

    def restore(self, model: bool = False) -> bool:
        """Put everything back for the next chunk. False if that isn't possible, so that the process must be replaced: something
        still runs, holds many descriptors, or changed a limit or a builtin function.

        model: the chunk was for a model. What that started or opened may stay: torch compiles in a child process that lives as
        long as this one, and a driver opens its files at the first use. A new process would start the same, and load the model
        again."""
        try:
            moved = os.getcwd() != self._folder
        except FileNotFoundError:  # it was deleted
            moved = True
        if moved:
            os.chdir(self._folder)
        if os.environ != self._environment:
            os.environ.clear()
            os.environ.update(self._environment)
        if sys.path != self._path:
            sys.path[:] = self._path
        os.umask(self._umask)
        for timer in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        for number, handler in self._signals.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        gc.enable()
        return not (self._changed() or (not model and self._left_over()))

    def _left_over(self) -> bool:
        return (
            _has_children() or threading.active_count() > self._threads or _descriptors() > self._descriptors + SPARE_DESCRIPTORS
        )

    def _changed(self) -> bool:
        return _limits() != self._limits or vars(builtins) != self._builtins


def _descriptors() -> int:
    """Number of open descriptors; 0 where the system doesn't list them."""
    return len(os.listdir("/proc/self/fd")) if sys.platform == "linux" else 0


def _limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(number) for name, number in LIMITS.items()}


def _has_children() -> bool:
    """Reap what exited; True if a process that a verifier started is still running."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return False
    return True
