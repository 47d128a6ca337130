"""Several learners on one machine: each is this very command in a process of its own. Across machines that is torchrun's work, or
Ray's (`mmrl.compute.cluster`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence

from mmrl.api.errors import UserError
from mmrl.api.processes.child import on_death_of_parent
from mmrl.api.signals import on_termination

GRACE_S = 60.0
"""How long the others have to end by themselves after one has failed."""
CROWD = 16
"""Processes that a core may serve; more would take the machine down before they learn anything."""
LAUNCHED = "MMRL_LAUNCHED"
"""Set in the environment of ranks that this started, which says itself which of them died."""
RANK_LOST_EXIT_CODE = 3
"""The exit code of such a rank that can't reach the others: why is theirs to say."""


def is_rank() -> bool:
    """Whether somebody started this process as one of several."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_main_process() -> bool:
    """Whether this process is the one that people hear from."""
    return os.environ.get("RANK", "0") == "0" or not is_rank()


def launch(learners: int, arguments: Sequence[str], on_gpu: bool = True) -> int:
    """Run `mmrl ARGUMENTS` in so many processes that find each other, and wait for them; returns the exit code. on_gpu: each
    wants a GPU, if this machine has any.

    Ctrl-C, a termination signal and the end of the terminal reach all of them; none outlives this process. UserError where this
    machine is too small for so many.
    """
    import torch
    from torch import distributed

    if on_gpu and torch.cuda.is_available() and torch.cuda.device_count() < learners:
        raise UserError(
            f"compute.learners = {learners}, and this machine has {torch.cuda.device_count()} GPUs: lower it, or start the run "
            "on several machines with torchrun or --cluster"
        )
    check_process_count(f"compute.learners = {learners}", learners)
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # on a port that was free
    shared = {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "WORLD_SIZE": str(learners),
        "LOCAL_WORLD_SIZE": str(learners),
        LAUNCHED: "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // learners))),
    }
    command = [sys.executable, "-m", "mmrl", *arguments]
    ranks: list[subprocess.Popen[bytes]] = []
    with _passed_on(ranks) as asked:
        for number in range(learners):
            own = {**os.environ, **shared, "RANK": str(number), "LOCAL_RANK": str(number)}
            ranks.append(
                subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_this)
            )
        return _wait(ranks, asked)


def check_process_count(what: str, processes: int) -> None:
    """UserError where so many processes are more than this machine's cores can serve. what: begins it."""
    cores = os.cpu_count() or 1
    if processes > CROWD * cores:
        raise UserError(
            f"{what}: {processes} processes are too many for the {cores} cores of this machine: ask for fewer, or use several "
            "machines (docs/scale.md)"
        )


def _wait(ranks: Sequence[subprocess.Popen[bytes]], asked: Sequence[int]) -> int:
    """asked: the signals that were passed on to them so far. After a second Ctrl-C those that don't hear it are killed in the
    end, after a third at once."""
    try:
        while (
            all(rank.poll() in (None, 0) for rank in ranks)
            and any(rank.poll() is None for rank in ranks)
            and asked.count(signal.SIGINT) < 2
        ):
            time.sleep(0.05)
        for number, rank in enumerate(ranks):
            if (rank.returncode or 0) < 0 and -rank.returncode not in asked:
                name = signal.Signals(-rank.returncode).name
                sys.stderr.write(f"mmrl: rank {number} was ended by {name}: the others end too; --resume goes on\n")
        until = time.monotonic() + GRACE_S
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < until and asked.count(signal.SIGINT) < 3:
            time.sleep(0.05)
    finally:
        left = [rank for rank in ranks if rank.poll() is None]
        for rank in left:
            rank.kill()
        for rank in ranks:
            rank.wait()
    if left:
        sys.stderr.write(f"mmrl: {len(left)} of the ranks didn't end by themselves and were killed; --resume goes on\n")
    codes = [rank.returncode for rank in ranks]
    if asked.count(signal.SIGINT) > 1 and any(codes):
        return 130
    if set(codes) <= {0, RANK_LOST_EXIT_CODE} and any(codes):
        sys.stderr.write("mmrl: the ranks can't reach each other any more: --resume goes on from the newest checkpoint\n")
    return next((code if code > 0 and code != RANK_LOST_EXIT_CODE else 2 for code in sorted(codes) if code), 0)


@contextlib.contextmanager
def _passed_on(ranks: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Signals to this process go to the ranks, which are in sessions of their own: each of them hears of Ctrl-C once. Yields
    those that did."""
    asked: list[int] = []

    def tell(number: int) -> None:
        asked.append(number)
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.send_signal(number)

    with on_termination(tell):
        yield asked


def _end_with_this() -> None:
    """On Linux a rank hears of it when the process that started it is gone, however that ended."""
    on_death_of_parent(signal.SIGTERM)
