"""Which waits for tensors are aborted, and when."""

from threading import Event
from types import SimpleNamespace

import pytest
import torch
from torch import distributed

from mmrl.compute import waking


class Nccl:
    """Stands for a process group's part on GPUs."""

    def __init__(self, name, said):
        self.name, self.said = name, said

    def abort(self):
        self.said.append(self.name)

    def _group_start(self):
        self.said.append("(")

    def _group_end(self):
        self.said.append(")")


class Group:
    def __init__(self, backend):
        self.backend = backend

    def _get_backend(self, device):
        assert device == torch.device("cuda")
        if self.backend is None:
            raise RuntimeError("No backend type associated with device type cuda")
        return self.backend


def test_all_that_is_ncclss_is_aborted_once_and_nothing_of_gloos(monkeypatch):
    said = []
    first, second = Nccl("first", said), Nccl("second", said)
    groups = [Group(first), Group(None), Group(object()), Group(second), Group(first)]
    monkeypatch.setattr(distributed.distributed_c10d, "_world", SimpleNamespace(pg_map=dict.fromkeys(groups)))
    monkeypatch.setattr(distributed, "ProcessGroupNCCL", Nccl, raising=False)
    waking.abort_nccl()
    assert said == ["(", "second", "first", ")"]
    monkeypatch.delattr(distributed, "ProcessGroupNCCL")
    waking.abort_nccl()
    assert len(said) == 4, "a torch without NCCL has none"


@pytest.mark.parametrize(("looks", "woke"), [([False, True, True], True), ([True, False], False), ([False, False], False)])
def test_a_wait_is_ended_if_the_rank_does_not_raise_the_error_by_itself(looks, woke, monkeypatch):
    monkeypatch.setattr(waking, "LOOK_S", 0.001)
    monkeypatch.setattr(waking, "GRACE_S", 0.001)
    left, aborts, made = list(looks), [], Event()

    def unheard():
        assert made.wait(5)
        if len(left) == 1:
            waker._stopped.set()
        return left.pop(0)

    waker = waking.Waker(unheard, lambda: aborts.append(1))
    made.set()
    waker._thread.join(5)
    assert (waker.woke, aborts) == (woke, [1] * woke) and not waker._thread.is_alive()
    waker.stop(1)
    waker.wake()
    assert aborts == [1], "once, also if the ranks agree on it later"
