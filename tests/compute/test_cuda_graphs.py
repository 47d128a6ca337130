"""Captures of CUDA graphs: their pool, their stream, and what is left behind by one that fails."""

import contextlib
import gc
from types import SimpleNamespace

import pytest
import torch

from mmrl.compute import cuda_graphs
from mmrl.compute.devices import CAPTURING


class Gpu:
    """torch.cuda as a capture uses it; the k-th capture fails where `fails` has k."""

    def __init__(self, fails=()):
        self.fails, self.handles, self.streams, self.current, self.begun = fails, 0, 0, "own", 0
        self.pools = []

    def graph_pool_handle(self):
        self.handles += 1
        return self.handles

    def Stream(self, device):
        self.streams += 1
        return SimpleNamespace(wait_stream=lambda other: None, device=device)

    def current_stream(self):
        return SimpleNamespace(wait_stream=lambda other: None, name=self.current)

    def set_stream(self, stream):
        self.current = stream.name

    def stream(self, stream):
        return contextlib.nullcontext()

    class CUDAGraph:
        def replay(self): ...

    @contextlib.contextmanager
    def graph(self, graph, pool, stream, capture_error_mode):
        self.pools.append(pool)
        self.begun += 1
        self.current = "the capture's"
        if self.begun in self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")  # torch leaves its stream then
        yield
        self.current = "own"


@pytest.fixture
def gpu(monkeypatch):
    def made(**options):
        found = Gpu(**options)
        for name in ("graph_pool_handle", "Stream", "current_stream", "set_stream", "stream", "CUDAGraph", "graph"):
            monkeypatch.setattr(torch.cuda, name, getattr(found, name))
        monkeypatch.setattr(cuda_graphs, "current_gpu", lambda device: contextlib.nullcontext())
        cuda_graphs._stream.cache_clear()
        return found

    yield made
    cuda_graphs._stream.cache_clear()


def capture(captures):
    return captures(lambda: torch.zeros(1), lambda: None)


def test_a_pool_of_which_no_graph_is_left_is_not_used_again(gpu):
    """PyTorch refuses it as long as a tensor of it is held, such as the logits of the last replay."""
    seen = gpu()
    captures = cuda_graphs.CudaCapture(torch.device("cuda:1"))
    replays = [capture(captures), capture(captures)]
    assert len({*seen.pools}) == 1
    replays.pop()
    replays.append(capture(captures))
    assert len({*seen.pools}) == 1, "a graph of it is left"
    replays.clear()
    gc.collect()
    capture(captures)
    assert len({*seen.pools}) == 2
    cuda_graphs.CudaCapture(torch.device("cuda:1"))
    assert seen.streams == 1, "cuBLAS keeps memory for each"


def test_a_capture_that_fails_leaves_the_threads_own_stream(gpu):
    seen = gpu(fails={1})
    captures = cuda_graphs.CudaCapture(torch.device("cuda"))
    with pytest.raises(RuntimeError, match="not permitted"):
        capture(captures)
    assert seen.current == "own" and not CAPTURING.locked()
    capture(captures)
    assert seen.current == "own"
