"""CUDA graphs: kernels that were captured once are started again together, on the addresses with which they were captured.

PyTorch's documentation, CUDA semantics, section CUDA Graphs.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from mmrl.compute.devices import CAPTURING, current_gpu

WARM_UPS = 2
"""Runs before a capture: libraries make what they keep at the first ones, which no capture allows."""
Found = TypeVar("Found")
"""Tensors in any structure."""


class Capture(Protocol):
    """Captures what a function does with tensors."""

    def __call__(self, run: Callable[[], Found], rewind: Callable[[], None]) -> Callable[[], Found]:
        """(a function, one that takes back what a run leaves behind) -> its replay, which returns the same tensors each time.
        Nothing is left of the runs that it takes."""


class CudaCapture:
    """Captures with `torch.cuda.CUDAGraph`. The graphs share a memory pool: each is replayed when nothing that another returned
    is used any more."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, _stream(device)
        self.pool = torch.cuda.graph_pool_handle()
        self.alive = weakref.WeakSet[Any]()
        """The graphs of this pool."""

    def __call__(self, run: Callable[[], Found], rewind: Callable[[], None]) -> Callable[[], Found]:
        with current_gpu(self.device), CAPTURING:
            own = torch.cuda.current_stream()
            try:
                found, graph = self._captured(run, rewind, own)
            finally:
                torch.cuda.set_stream(own)  # a capture that fails leaves its own

        def replay() -> Found:
            graph.replay()
            return found

        return replay

    def _captured(self, run: Callable[[], Found], rewind: Callable[[], None], own: Any) -> tuple[Found, Any]:
        self.stream.wait_stream(own)
        try:
            with torch.cuda.stream(self.stream):  # the capture's own: cuBLAS has a handle for each stream
                for _ in range(WARM_UPS):
                    run()
                    rewind()
        finally:
            own.wait_stream(self.stream)
        if not self.alive:  # a pool whose last graph is gone takes no other as long as a tensor of it is held
            self.pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        # a learner's thread may allocate memory meanwhile
        with torch.cuda.graph(graph, pool=self.pool, stream=self.stream, capture_error_mode="thread_local"):
            found = run()
        self.alive.add(graph)
        return found, graph


@functools.cache
def _stream(device: torch.device) -> Any:
    """The stream of all captures on a device: cuBLAS keeps memory for each stream that it was used on."""
    return torch.cuda.Stream(device)


def places(model: nn.Module) -> tuple[Any, ...]:
    """Where a model's weights lie, and which of its adapters are on: a replay reads where it read when it was captured."""
    tensors = [*model.parameters(), *model.buffers()]
    adapters: list[Any] = [m for m in model.modules() if hasattr(m, "merged_adapters")]
    switches = [(m.disable_adapters, tuple(m.merged_adapters)) for m in adapters]
    return tuple(t.data_ptr() for t in tensors), tuple(switches)
