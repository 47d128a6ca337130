"""CUDA graphs of policies that act: the many small kernels that follow a call's look at its pictures are started at once.

The steps of a flow and the tokens of an action read what the look has left, random numbers that are functions of the calls, and
weights, and the host decides nothing on the way. So they are captured once for each shape, and replayed on new numbers at the
same addresses. See `mmrl.compute.cuda_graphs`.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from transformers import PreTrainedConfig

from mmrl.api.errors import shorten
from mmrl.compute.cuda_graphs import Capture, CudaCapture, Found, places

MOST = 16
"""Graphs that are kept; the one that was replayed longest ago goes first."""
ROUND = 32
"""Tokens of what a look reads are padded to a multiple of this, where padding is at the end and nothing sees it."""
SIGHTS = 2
"""How often a shape is run without a graph: those of the last environments of a batch seldom come again."""


MOST_SIGHTS = 1000
"""Shapes that are remembered without a graph."""


class CallGraphs:
    """The graphs of a policy's calls, and the tensors that they read."""

    def __init__(self, model: nn.Module, device: torch.device, make_capture: Callable[[], Capture] | None = None) -> None:
        """model: all weights that the calls read. make_capture: None captures on the device, a GPU."""
        self.model, self.device = model, device
        self.make_capture = make_capture or functools.partial(CudaCapture, device)
        self.failure = ""
        """Why nothing can be captured, once that is known."""
        self.captured = 0
        """Number of captures."""
        self.release()

    def __deepcopy__(self, memo: dict[int, Any]) -> CallGraphs:
        """Those of a copy of the policy, whose weights lie elsewhere."""
        return CallGraphs(copy.deepcopy(self.model, memo), self.device, self.make_capture)

    def release(self) -> None:
        """Free the memory of all graphs."""
        self._replays: OrderedDict[Any, Callable[[], Any]] = OrderedDict()
        self._held: dict[tuple[int, torch.dtype], torch.Tensor] = {}
        """(number of a tensor among those that are given, its type) -> memory that all graphs share, as large as the largest."""
        self._sights: Counter[Any] = Counter()
        self._capture: Capture | None = None
        self._weights: tuple[Any, ...] = ()

    def __call__(self, run: Callable[..., Found], *given: Any) -> Found:
        """run(*given), whose results are tensors in any structure. A graph holds for these shapes and plain values; of `run`
        the function counts, and not the object of a method."""
        read = _Given()
        read.add(given)
        key = getattr(run, "__func__", run), tuple(read.form)
        self._look_at_weights()
        if key not in self._replays and not self._captures(key, run, given, read):
            return run(*given)
        self._replays.move_to_end(key)
        self._fill(read.tensors)
        return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, self._replays[key]())

    def _captures(self, key: Any, run: Callable[..., Any], given: Sequence[Any], read: _Given) -> bool:
        """Capture a run if the shape has been seen often enough; whether there is a graph of it now."""
        if len(self._sights) > MOST_SIGHTS:  # of shapes that never came again
            self._sights.clear()
        self._sights[key] += 1
        if self.failure or self._sights[key] <= SIGHTS:
            return False
        self._make_room(read.tensors)
        self._fill(read.tensors)
        places = dict(zip(map(id, read.tensors), self._places(read.tensors), strict=True))
        own = {**places, **{id(value): value for value in read.shared}}

        def again() -> Any:
            return run(*_copied(given, own))  # a run may change what it is given, such as a cache

        try:
            self._capture = self._capture or self.make_capture()
            self._replays[key] = self._capture(again, lambda: None)
        except Exception as error:  # noqa: BLE001  CUDA, its libraries and any model may refuse in any way
            self.release()
            self.failure = f"{type(error).__name__}: {shorten(error, 200)}"
            warnings.warn(
                f"generate.cuda_graphs: a call can't be captured: it is as exact without, but slower ({self.failure})",
                stacklevel=2,
            )
            return False
        self.captured += 1
        if len(self._replays) > MOST:
            self._replays.popitem(last=False)
        return True

    def _make_room(self, tensors: Sequence[torch.Tensor]) -> None:
        """Memory for tensors of these sizes. A graph reads where it read when it was captured, so none outlives a larger one."""
        for i, tensor in enumerate(tensors):
            held = self._held.get((i, tensor.dtype))
            if held is None or held.numel() < tensor.numel():
                self._replays.clear()
                self._held.pop((i, tensor.dtype), None)
                del held
                self._held[i, tensor.dtype] = torch.empty(tensor.numel(), dtype=tensor.dtype, device=tensor.device)

    def _places(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        return [self._held[i, x.dtype][: x.numel()].view(x.shape) for i, x in enumerate(tensors)]

    def _fill(self, tensors: Sequence[torch.Tensor]) -> None:
        for place, tensor in zip(self._places(tensors), tensors, strict=True):
            place.copy_(tensor)

    def _look_at_weights(self) -> None:
        """Drop the graphs if a weight lies elsewhere than when they were captured."""
        now = places(self.model)
        if now != self._weights:
            self._replays.clear()
            self._weights = now


def _copied(given: Sequence[Any], own: Mapping[int, Any]) -> tuple[Any, ...]:
    """A copy of what a run is given, with these objects in place of those with these ids. Raises RuntimeError for a tensor that
    has none: it would keep its numbers for ever."""
    memo, known = dict(own), {id(value) for value in own.values()}
    found = copy.deepcopy(tuple(given), memo)
    if any(isinstance(value, torch.Tensor) and id(value) not in known for value in memo.values()):
        raise RuntimeError("it is given an object whose tensors can't be found")
    return found


class _Given:
    """What a run is given."""

    def __init__(self) -> None:
        self.tensors: list[torch.Tensor] = []
        """Each once."""
        self.shared: list[Any] = []
        """Modules and configurations, of which a graph needs no copy."""
        self.form: list[Any] = []
        """What decides which kernels are started and what they read: shapes, types, which tensors are one, and plain values."""
        self._known: dict[int, int] = {}
        """id of a tensor -> its number among them."""

    def add(self, value: Any) -> None:
        if isinstance(value, torch.Tensor):
            if id(value) not in self._known:
                self._known[id(value)] = len(self.tensors)
                self.tensors.append(value)
            self.form += [value.shape, value.dtype, self._known[id(value)]]
        elif isinstance(value, nn.Module | PreTrainedConfig):
            self.form.append(id(value))
            self.shared.append(value)
        elif isinstance(value, Mapping):
            for name, inner in value.items():
                self.form.append(name)
                self.add(inner)
        elif isinstance(value, list | tuple):
            self.form.append(len(value))
            for inner in value:
                self.add(inner)
        elif is_dataclass(value) and not isinstance(value, type):
            self._add_object(value, [field.name for field in fields(value)])
        elif hasattr(value, "__dict__") and not isinstance(value, type):
            self._add_object(value, list(vars(value)))
        else:
            self.form.append(value)

    def _add_object(self, value: Any, names: Sequence[str]) -> None:
        self.form.append(type(value))
        for name in names:
            self.form.append(name)
            self.add(getattr(value, name))
