"""An error that one rank alone meets ends the others too.

The file is also the program of each process: `python test_rank_errors.py RANK FOLDER` plays all cases and writes what came out.
"""

import datetime
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event

import pytest
import torch
from torch import distributed

import forked
from mmrl.api.errors import PluginError, UserError
from mmrl.compute import ranks
from mmrl.compute.rank_errors import shared_errors

pytestmark = pytest.mark.slow


ABORTED = Event()
"""What stands for an abort of NCCL."""
POOL = ThreadPoolExecutor(1)
"""For what goes on beside the main thread of the last case."""


class OwnError(PluginError):
    """Of a plugin, with what can't be sent to another process."""

    def __init__(self, what):
        super().__init__(what)
        self.handle = lambda: what


def alone():
    """The second rank fails, and the first waits for it with objects."""
    if ranks.rank() == 1:
        raise OwnError("task 'birds' failed: mend it")
    ranks.any_rank(False)


def ahead():
    """The first rank fails, and a thread of the second waits for it, for which the main one waits."""
    if ranks.rank() == 0:
        raise UserError("the disk is full: free some space")

    def work():
        with ranks.use_group("ahead"):
            return ranks.any_rank(False)

    with ThreadPoolExecutor(1) as pool:
        pool.submit(work).result()


def all_at_once():
    raise UserError("the rate is too high: lower it")


def nobody():
    assert ranks.run_and_gather(ranks.rank) == [0, 1]


def interrupted():
    """Ctrl-C reaches the second rank alone."""
    if ranks.rank() == 1:
        raise KeyboardInterrupt
    ranks.any_rank(False)


def tensors():
    """The second rank fails, and the first waits for it with tensors, while a thread of the second waits for the first."""
    if ranks.rank() == 0:
        ranks.all_reduce_sum(torch.ones(1))

    def work():
        with ranks.use_group("ahead"):
            ranks.any_rank(False)

    POOL.submit(work)
    raise PluginError("the loss failed: mend it")


def on_gpus():
    """The second rank fails, and the first waits for it inside a call that only an abort ends, as NCCL's do."""
    ranks.wake_by(ABORTED.set)
    if ranks.rank() == 1:
        raise PluginError("the loss failed: mend it")
    assert ABORTED.wait(60), "nothing has ended the wait"
    raise RuntimeError("NCCL communicator was aborted on rank 0")


def all_on_gpus():
    """No rank waits with tensors: what is saved at the end needs NCCL."""
    ranks.wake_by(ABORTED.set)
    raise UserError("the rate is too high: lower it")


def come_of(case):
    """[what the rank raised, whether all ranks came to the end and could gather there once more]."""
    met = None
    ABORTED.clear()
    try:
        with ranks.process_group(on_gpu=False):
            try:
                with shared_errors():  # as a run does, to end with what its ranks do together
                    case()
            finally:
                if case is tensors:
                    POOL.shutdown()
                if ranks.all_ranks_ending():
                    met = ranks.all_gather_object(ranks.rank())
    except (UserError, SystemExit, KeyboardInterrupt) as error:
        return [f"{type(error).__name__}: {error}", met == [0, 1], ABORTED.is_set()]
    return ["", met == [0, 1], ABORTED.is_set()]


# the last leaves a collective that nobody can complete
CASES = (alone, ahead, all_at_once, nobody, interrupted, on_gpus, all_on_gpus, tensors)

if __name__ == "__main__":
    number, folder = int(sys.argv[1]), Path(sys.argv[2])
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=number, world_size=2, timeout=datetime.timedelta(seconds=60))
    torch.save({case.__name__: come_of(case) for case in CASES}, folder / f"{number}.pt")


def test_an_error_of_one_rank_ends_the_others(tmp_path):
    env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.pathsep.join(sys.path)}
    both = [forked.start([str(n), str(tmp_path)], script=__file__, env=env, stderr=subprocess.PIPE) for n in (0, 1)]
    try:
        for rank in both:
            _, said = rank.communicate(timeout=100)
            assert rank.returncode == 0, said[-3000:]
    finally:
        for rank in both:
            rank.kill()
    first, second = ({case: found[:2] for case, found in torch.load(tmp_path / f"{n}.pt").items()} for n in (0, 1))
    quiet = "SystemExit: 2"
    assert first["alone"] == ["PluginError: task 'birds' failed: mend it", True] and second["alone"] == [quiet, True]
    assert first["ahead"] == ["UserError: the disk is full: free some space", True] and second["ahead"] == [quiet, True]
    assert first["all_at_once"][0] == "UserError: the rate is too high: lower it" and second["all_at_once"][0] == quiet
    assert first["nobody"] == second["nobody"] == ["", True], "what was told is over"
    assert first["interrupted"] == second["interrupted"] == ["KeyboardInterrupt: ", True]
    assert first["on_gpus"] == ["PluginError: the loss failed: mend it", True] and second["on_gpus"] == [quiet, True]
    aborted = [{case for case, found in torch.load(tmp_path / f"{n}.pt").items() if found[2]} for n in (0, 1)]
    assert aborted == [{"on_gpus"}] * 2, "the rank that failed has queued what the other doesn't complete"
    assert first["tensors"] == ["PluginError: the loss failed: mend it", True] and second["tensors"] == [quiet, True]
