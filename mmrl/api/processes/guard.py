"""A process that watches over a child: whatever the child leaves running is killed with it. Linux only.

Run by its path like `child.py`, so it imports only the standard library.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from pathlib import Path

DEATH_SIGNAL, SUBREAPER = 1, 36
"""Options of prctl."""


def guard() -> None:
    """Go on in a child process. The process that was here becomes its guard and never returns: it ends as the child ends, or when
    it gets SIGTERM or its own parent dies, and kills all descendants first.

    Descendants that left the child's session count too: processes whose parent has died become children of the guard."""
    guard_pid = os.getpid()
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    adopt_orphans()
    child = os.fork()
    if child:
        _watch(child)
    _prctl(DEATH_SIGNAL, signal.SIGKILL)
    if os.getppid() != guard_pid:
        os._exit(1)
    adopt_orphans()  # so that the child sees what was left running, too
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM, signal.SIGCHLD})


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent has died."""
    if sys.platform == "linux":
        _prctl(SUBREAPER, 1)


def _watch(child: int) -> None:
    _prctl(DEATH_SIGNAL, signal.SIGTERM)
    _close_descriptors()
    status = signal.SIGTERM.value  # how waitpid encodes a death by it
    while signal.sigwaitinfo({signal.SIGTERM, signal.SIGCHLD}).si_signo == signal.SIGCHLD:
        if (found := _reaped(child)) is not None:
            status = found
            break
    _kill_descendants()
    if os.WIFEXITED(status):
        os._exit(os.WEXITSTATUS(status))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    number = os.WTERMSIG(status)
    if number != signal.SIGKILL:
        signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
    os.kill(os.getpid(), number)
    os._exit(1)


def _reaped(child: int) -> int | None:
    """Reap all processes that have ended; the status of the child, if it is among them."""
    status = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            if found[0] == child:
                status = found[1]
    return status


def _kill_descendants() -> None:
    """Kill the children, then those who become children thereby, until there are none."""
    while True:
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _close_descriptors() -> None:
    """Close all but stderr: the pipes are the child's, and their ends must be seen when it dies."""
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1):
        os.dup2(null, descriptor)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(int(name))


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value)
