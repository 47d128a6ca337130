"""A stand-in for a CUDA graph on the CPU: the operations of a capture are run again on the very tensors of the capture.

As in a CUDA graph, nothing of Python runs in a replay: numbers of the host stay what they were, operations read the addresses
that they read then, weights that were replaced are still the old ones, and what the capture returned is overwritten. Reading a
number from a tensor is refused, as a capture on a GPU refuses to wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

READS = {torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default, torch.ops.aten.equal.default}


class Recorder(TorchDispatchMode):
    """Records the operations inside; (function, arguments, keyword arguments, results) each."""

    def __init__(self) -> None:
        super().__init__()
        self.tape: list[tuple[Any, tuple[Any, ...], dict[str, Any], list[Any]]] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in READS:
            raise RuntimeError(f"operation not permitted when stream is capturing: {function}")
        found = function(*args, **(kwargs or {}))
        self.tape.append((function, args, kwargs or {}, tree_leaves(found)))
        return found


class RecordedCapture:
    """See `cuda_graphs.Capture`."""

    def __init__(self, warm_ups: int = 2) -> None:
        self.warm_ups, self.replays = warm_ups, 0

    def __call__(self, step: Callable[[], torch.Tensor], rewind: Callable[[], None]) -> Callable[[], torch.Tensor]:
        for _ in range(self.warm_ups):
            step()
            rewind()
        with Recorder() as recorder:
            logits = step()
        rewind()  # a capture on a GPU runs nothing

        def replay() -> torch.Tensor:
            self.replays += 1
            for function, args, kwargs, results in recorder.tape:
                for old, new in zip(results, tree_leaves(function(*args, **kwargs)), strict=True):
                    if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                        old.copy_(new)
            return logits

        return replay
