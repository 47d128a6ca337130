"""A rank on a GPU that waits for the others with tensors is woken when one of them has told an error.

It waits inside a CUDA call for a kernel of NCCL's and can't look for errors itself. A thread looks in its place, and aborts NCCL:
the kernels end, and what is asked of NCCL next raises a RuntimeError, at which the rank raises what was told
(`mmrl.compute.rank_errors.shared_errors`). torch tests that an abort in a thread ends such a wait (`test_abort_pg` in its
test_c10d_nccl.py) and calls it experimental. Here it has never run on a GPU: tests put another wait in the place of NCCL's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import distributed

LOOK_S, GRACE_S = 1.0, 3.0
"""Seconds between two looks, and those in which a rank that doesn't wait with tensors raises what was told by itself."""


class Waker:
    """A thread that looks whether an error was told that this rank doesn't raise, and then ends all waits for tensors."""

    def __init__(self, unheard: Callable[[], bool], abort: Callable[[], None]) -> None:
        """unheard: whether an error was told that this rank hasn't raised. abort: ends all waits for tensors, and their groups;
        it is called once."""
        self.unheard, self.abort = unheard, abort
        self.woke = False
        """Whether `abort` was called."""
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._look, name="mmrl-waking", daemon=True)  # an abort may never return
        self._thread.start()

    def _look(self) -> None:
        while not self._stopped.wait(LOOK_S):
            if self.unheard():
                if not self._stopped.wait(GRACE_S) and self.unheard():
                    self.wake()
                return

    def wake(self) -> None:
        """Call `abort`, unless it was called. Not while the thread looks: call `stop` before."""
        if not self.woke:
            self.woke = True
            self.abort()

    def stop(self, patience: float) -> None:
        """Look no more. patience: seconds for an abort that is under way."""
        self._stopped.set()
        self._thread.join(patience)


def abort_nccl() -> None:
    """Abort the NCCL communicators of all process groups of this process, the newest first and as one group, as torch's
    `_abort_process_group` does. Groups of gloo stay."""
    found = list(_nccl_backends())
    if not found:
        return
    found[0]._group_start()
    for backend in reversed(found):
        backend.abort()
    found[0]._group_end()


def _nccl_backends() -> Iterator[Any]:
    """Each once, the oldest first."""
    kind: Any = getattr(distributed, "ProcessGroupNCCL", ())
    seen: set[int] = set()
    for group in list(distributed.distributed_c10d._world.pg_map):
        with contextlib.suppress(RuntimeError):  # a group of the host alone
            backend = group._get_backend(torch.device("cuda"))
            if isinstance(backend, kind) and id(backend) not in seen:
                seen.add(id(backend))
                yield backend
