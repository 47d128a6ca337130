"""What a pass would compute and keep: it runs on torch's meta device, where tensors have shapes and no numbers, and is counted
operation by operation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mmrl.policies.layers import replaced_forwards
from mmrl.train.plan.alike import Kinds, counted_once
from mmrl.train.plan.counter import Counter, Pass

ATTENTION = torch.nn.functional.scaled_dot_product_attention
MATH = torch.ops.aten._scaled_dot_product_attention_math


class _Fused(torch.autograd.Function):
    """Attention as torch's fused kernels do it: the matrix of all pairs is never kept."""

    @staticmethod
    def forward(ctx: Any, count: Any, query: Any, key: Any, value: Any, mask: Any, by_tokens: bool) -> Any:
        shape = (*query.shape[:-1], value.shape[-1])
        out = torch.empty_like(query) if query.shape == shape else query.new_empty(shape)  # laid out as queries are
        if by_tokens:
            out = query.new_empty(shape[0], shape[2], shape[1], shape[3]).transpose(1, 2)
        if mask is not None and mask.dtype == torch.bool:
            mask = query.new_empty(mask.shape)  # torch adds numbers to scores, and makes them of a mask in each layer
        count(query, key, value)
        ctx.count = count
        ctx.save_for_backward(query, key, value, out, query.new_empty(query.shape[:-1], dtype=torch.float32), mask)
        return out

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # type: ignore[override]
        query, key, value, *_ = ctx.saved_tensors
        for _ in range(2):
            ctx.count(query, key, value)
        return None, torch.empty_like(query), torch.empty_like(key), torch.empty_like(value), None, None


class _Grouped(torch.autograd.Function):
    """Products of rows with the weights of their experts, which torch's own on the meta device takes in bfloat16 alone."""

    @staticmethod
    def forward(ctx: Any, count: Any, rows: Any, weights: Any) -> Any:
        count(rows, weights)
        ctx.count, ctx.shape = count, rows.shape
        ctx.save_for_backward(rows if ctx.needs_input_grad[2] else None, weights)
        return rows.new_empty(rows.shape[0], weights.shape[-1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # type: ignore[override]
        weights, found = ctx.saved_tensors[1], []
        rows = weights.new_empty(ctx.shape)
        for each, needed in zip((rows, weights), ctx.needs_input_grad[1:], strict=True):
            if needed:
                ctx.count(rows, weights)
            found.append(torch.empty_like(each) if needed else None)
        return None, *found


class FusedAttention(TorchFunctionMode):
    """In place of torch's attention and grouped products, which on the meta device would be those of no kernel. Where a loop goes
    over experts, all tokens go through the first ones, or all through one, as nobody knows which they choose."""

    def __init__(self, counter: Counter, by_tokens: bool = False, one: bool = False) -> None:
        """by_tokens: the outputs of all heads of a token lie together, as attention by blocks leaves them. one: all tokens go
        through one expert, as often as through several."""
        super().__init__()
        self.counter, self.by_tokens, self.one = counter, by_tokens, one

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch._grouped_mm:
            return _Grouped.apply(self._multiplied, *args[:2])
        if func is torch.nn.functional.one_hot and args[0].is_meta:
            first = torch.arange(args[0].shape[-1]) * (not self.one)
            return func(first.expand(args[0].shape), *args[1:], **kwargs)
        if func in (torch.Tensor.index_add_,) and args[0].is_meta:
            return func(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in args), **kwargs)
        if func is not ATTENTION:
            return func(*args, **kwargs)
        query, key, value = (*args, *(kwargs[name] for name in ("query", "key", "value") if name in kwargs))[:3]
        mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
        if query.shape[:-2] != key.shape[:-2] and not kwargs.get("enable_gqa"):  # one head of keys for all: no kernel takes it
            return MATH(query, key, value, mask, scale=kwargs.get("scale"))[0]
        return _Fused.apply(self._count, query, key, value, mask, self.by_tokens)

    def _multiplied(self, rows: torch.Tensor, weights: torch.Tensor) -> None:
        out = rows.shape[0] * weights.shape[-1]
        self.counter.products.append((2.0 * out * rows.shape[1], float((rows.numel() + out) * rows.element_size())))
        self.counter.operations += 1

    def _count(self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        pairs = math.prod(query.shape[:-1]) * key.shape[-2]
        self.counter.attention += 2.0 * pairs * (query.shape[-1] + value.shape[-1])


@torch.no_grad()
def trace(work: Callable[[], Any], one: bool = False, kinds: Kinds = MappingProxyType({})) -> Pass:
    """Count the operations of `work`, whose tensors are on the meta device, without gradients. one: see `FusedAttention`. kinds:
    of layers of which one is counted for all alike."""
    counter = Counter()
    with counter, FusedAttention(counter, one=one), counted_once(counter, kinds, []):
        work()
    return counter.counted()


@torch.enable_grad()
def trace_both(work: Callable[[], torch.Tensor], layers: Sequence[Any] = ()) -> tuple[Pass, Pass, int]:
    """`trace` with gradients: (the pass, the one backwards from the sum of its result, most bytes that one of the layers
    keeps)."""
    counter, each = Counter(), [0]
    with counter, FusedAttention(counter), _holding([]), _measured(counter, layers, each):
        result = work().sum()
        forward = counter.counted()
        result.backward()  # type: ignore[no-untyped-call]
    both = counter.counted(forward)
    counter.forget()
    return forward, both, max(each)


@torch.enable_grad()
def kept_of(work: Callable[[], torch.Tensor], layers: Sequence[Any] = (), kinds: Kinds = MappingProxyType({})) -> tuple[int, int]:
    """(bytes that the pass keeps for its gradients, most that one of the layers keeps). kinds: see `trace`."""
    counter, each, held = Counter(), [0], list[torch.Tensor]()
    once = counted_once(counter, kinds, held)
    with counter, FusedAttention(counter), _holding(held), once, _measured(counter, layers, each):
        result = work()
        found = counter.now
    counter.forget()
    del result
    return found, max(each)


def _measured(counter: Counter, layers: Sequence[Any], found: list[int]) -> AbstractContextManager[None]:
    """Inside, the bytes that each pass of a layer keeps are noted."""

    def forward(own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        before, out = counter.now, own(*args, **kwargs)
        found.append(counter.now - before)
        return out

    return replaced_forwards(layers, lambda layer: partial(forward, layer.forward))


@torch.enable_grad()
def saved_by(work: Callable[[], torch.Tensor], shared: Sequence[torch.Tensor] = ()) -> int:
    """Bytes that torch keeps of a pass for its gradients, besides weights, on any device. shared: tensors that aren't counted."""
    kept: dict[int, torch.Tensor] = {}

    def keep(saved: torch.Tensor) -> torch.Tensor:
        alone = saved.detach()
        if not _is_weight(saved):
            kept[alone.untyped_storage()._cdata] = alone
        return alone

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda saved: saved):
        result = work()
    left = {each.untyped_storage()._cdata for each in shared}
    found = sum(each.untyped_storage().nbytes() for key, each in kept.items() if key not in left)
    del result
    kept.clear()  # hooks that torch holds hold it
    return found


def _is_weight(kept: torch.Tensor) -> bool:
    base = kept if kept._base is None else kept._base
    return isinstance(base, torch.nn.Parameter)


def _holding(held: list[torch.Tensor]) -> Any:
    """What autograd alone holds, Python can't watch: here `held` has it, too. Without the pass that made it: an output that is
    kept by that pass would hold it, and nobody frees such a circle."""

    def hold(kept: torch.Tensor) -> torch.Tensor:
        held.append(kept.detach())
        return held[-1]

    return torch.autograd.graph.saved_tensors_hooks(hold, lambda kept: kept)
