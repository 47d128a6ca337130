"""Start several learners on one machine: each is this command in its own process. For several machines use torchrun or Ray
(`mmrl.compute.cluster`).
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
"""Seconds for the other ranks to end by themselves after one has failed."""
CROWD = 16
"""Largest number of processes per core; more would overload the machine."""
LAUNCHED = "MMRL_LAUNCHED"
"""Environment variable of ranks that `launch` started; `launch` reports which of them died."""
RANK_LOST_EXIT_CODE = 3
"""Exit code of such a rank if it can't reach the others, which report the reason."""


def is_rank() -> bool:
    """Whether this process was started as one of several ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def is_main_process() -> bool:
    """Whether this process is the first rank, which writes to the terminal."""
    return os.environ.get("RANK", "0") == "0" or not is_rank()


def launch(learners: int, arguments: Sequence[str], on_gpu: bool = True) -> int:
    """Run `mmrl ARGUMENTS` in `learners` connected processes and wait for them; returns the exit code. on_gpu: each needs a GPU,
    if this machine has any.

    Ctrl-C, a termination signal and the end of the terminal are passed on to all of them; they end with this process. Raises
    UserError if this machine is too small.
    """
    import torch
    from torch import distributed

    if on_gpu and torch.cuda.is_available() and torch.cuda.device_count() < learners:
        raise UserError(
            f"compute.learners = {learners}, and this machine has {torch.cuda.device_count()} GPUs: lower it, or start the run "
            "on several machines with torchrun or --cluster"
        )
    check_process_count(f"compute.learners = {learners}", learners)
    store = distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # on a free port
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
    with _forward_signals(ranks) as signals:
        for number in range(learners):
            own = {**os.environ, **shared, "RANK": str(number), "LOCAL_RANK": str(number)}
            ranks.append(
                subprocess.Popen(command, env=own, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_end_with_this)
            )
        return _wait(ranks, signals)


def check_process_count(what: str, processes: int) -> None:
    """Raise UserError if there are too many processes for this machine's cores. what: begins the message."""
    cores = os.cpu_count() or 1
    if processes > CROWD * cores:
        raise UserError(
            f"{what}: {processes} processes are too many for the {cores} cores of this machine: ask for fewer, or use several "
            "machines (docs/scale.md)"
        )


def _wait(ranks: Sequence[subprocess.Popen[bytes]], signals: Sequence[int]) -> int:
    """Wait for the ranks and return the exit code. signals: those that were passed on so far; it grows meanwhile. After a second
    Ctrl-C, ranks that don't end within `GRACE_S` are killed; after a third, at once."""
    try:
        while (
            all(rank.poll() in (None, 0) for rank in ranks)
            and any(rank.poll() is None for rank in ranks)
            and signals.count(signal.SIGINT) < 2
        ):
            time.sleep(0.05)
        for number, rank in enumerate(ranks):
            if (rank.returncode or 0) < 0 and -rank.returncode not in signals:
                name = signal.Signals(-rank.returncode).name
                sys.stderr.write(f"mmrl: rank {number} was ended by {name}: the others end too; continue with --resume\n")
        until = time.monotonic() + GRACE_S
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < until and signals.count(signal.SIGINT) < 3:
            time.sleep(0.05)
    finally:
        left = [number for number, rank in enumerate(ranks) if rank.poll() is None]
        for number in left:
            ranks[number].kill()
        for rank in ranks:
            rank.wait()
    if left:
        names = ", ".join(map(str, left))
        sys.stderr.write(f"mmrl: ranks that didn't end by themselves were killed: {names}; continue with --resume\n")
    codes = [rank.returncode for rank in ranks]
    if signals.count(signal.SIGINT) > 1 and any(codes):
        return 130
    if set(codes) <= {0, RANK_LOST_EXIT_CODE} and any(codes):
        sys.stderr.write("mmrl: the ranks can't reach each other any more: continue from the newest checkpoint with --resume\n")
    return next((code if code > 0 and code != RANK_LOST_EXIT_CODE else 2 for code in sorted(codes) if code), 0)


@contextlib.contextmanager
def _forward_signals(ranks: Sequence[subprocess.Popen[bytes]]) -> Iterator[list[int]]:
    """Pass signals to this process on to the ranks. The ranks are in their own sessions, so each gets a Ctrl-C only once. Yields
    the list of passed signals, which grows."""
    signals: list[int] = []

    def tell(number: int) -> None:
        signals.append(number)
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.send_signal(number)

    with on_termination(tell):
        yield signals


def _end_with_this() -> None:
    """On Linux, have the kernel send SIGTERM to a rank when the process that started it ends."""
    on_death_of_parent(signal.SIGTERM)
