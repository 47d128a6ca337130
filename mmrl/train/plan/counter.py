"""Counts of a pass, operation by operation."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

aten = torch.ops.aten
TAKING = (aten.embedding.default, aten.index.Tensor, aten.index_select.default, aten.gather.default)
"""Operations that read of their input as much as they write."""
DETACHED = aten.detach.default


@dataclass(frozen=True, slots=True, kw_only=True)
class Pass:
    """The counts of a pass."""

    products: tuple[tuple[float, float], ...]
    """Of each matrix product and convolution: floating-point operations, and bytes that it reads and writes."""
    attention: float
    """Floating-point operations of fused attention."""
    moved: float
    """Bytes that the other operations read and write."""
    operations: int
    """Those that Python starts, views among them."""
    kept: int
    """Bytes that are still there at its end, besides weights: for the backward pass, if there are gradients."""
    peak: int
    """Most bytes that are there at once, besides weights."""

    @property
    def flops(self) -> float:
        return sum(flops for flops, _ in self.products) + self.attention

    def then(self, other: Pass, times: int = 1) -> Pass:
        """This pass, and then another so many times."""
        return Pass(
            products=self.products + other.products * times,
            attention=self.attention + other.attention * times,
            moved=self.moved + other.moved * times,
            operations=self.operations + other.operations * times,
            kept=other.kept,
            peak=max(self.peak, other.peak),
        )


class Counter(TorchDispatchMode):
    """Counts operations, and the bytes of storages while they are there."""

    def __init__(self) -> None:
        super().__init__()
        """`operations` counts views, `kernels` doesn't."""
        self.products: list[tuple[float, float]] = []
        self.attention = self.moved = 0.0
        self.operations = self.kernels = self.now = self.peak = 0
        self._held: dict[int, Any] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        made = [x for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        own = {x.untyped_storage()._cdata for x in given}
        fresh = [x for x in made if x.untyped_storage()._cdata not in own]
        self.operations += func.namespace != "prim" and func is not DETACHED  # views, too: Python starts them alike
        if fresh or func._schema.is_mutable:  # a view computes nothing
            self.kernels += 1
            whole = [] if func in TAKING else given  # of a table, what is taken is read
            size = float(sum(x.numel() * x.element_size() for x in (*whole, *made, *(made if func in TAKING else ()))))
            if func._overloadpacket is aten.linalg_solve_triangular:
                self.products.append((float(args[1].numel() * args[0].shape[-1]), size))
            elif count := flop_registry.get(func._overloadpacket):
                self.products.append((float(count(*args, **(kwargs or {}), out_val=out)), size))
            else:
                self.moved += size
        for x in fresh:
            self._hold(x.untyped_storage())
        return out

    def _hold(self, storage: Any) -> None:
        key, size = storage._cdata, storage.nbytes()
        if key in self._held:
            return
        self.now += size
        self.peak = max(self.peak, self.now)
        self._held[key] = weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.now -= size
        del self._held[key]

    def counted(self, before: Pass | None = None) -> Pass:
        """What was counted so far, or since another pass. Bytes are of the whole."""
        return Pass(
            products=tuple(self.products[len(before.products) if before else 0 :]),
            attention=self.attention - (before.attention if before else 0.0),
            moved=self.moved - (before.moved if before else 0.0),
            operations=self.operations - (before.operations if before else 0),
            kept=self.now,
            peak=self.peak,
        )

    def there(self) -> frozenset[int]:
        """Keys of the storages that are there."""
        return frozenset(self._held)

    def forget(self) -> None:
        """Stop watching what is still there."""
        for watch in self._held.values():
            watch.detach()
