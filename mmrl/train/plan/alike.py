"""Layers that do alike, of which one is counted for all: a call of a layer, with arguments like those of an earlier call of its
kind, adds to the counts what the earlier one added, and computes nothing."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from mmrl.policies.layers import replaced_forwards
from mmrl.train.plan.counter import Counter, Pass

Kinds = Mapping[torch.nn.Module, Hashable]
"""Layers, and what is equal of those that do alike."""
PLAIN = (str, int, float, type(None), torch.dtype, torch.device)
"""Types of arguments that are told apart by their value."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Call:
    """What a call of a layer added to a counter."""

    added: Pass
    kernels: int
    kept: int
    """Bytes that are still there at its end, besides its outputs."""
    peak: int
    """Most bytes that were there at once, besides those of before."""
    outputs: tuple[tuple[Any, ...] | None, ...]
    """Shape, strides and type of each, and whether it has gradients; None for what is no tensor."""
    layout: TreeSpec
    held: tuple[int, ...]
    """Which tensors are kept for the backward pass, by their place among its arguments and outputs."""


class _Like(torch.autograd.Function):
    """A tensor without numbers, which has gradients if `source` has them."""

    @staticmethod
    def forward(ctx: Any, source: torch.Tensor, shape: Any, strides: Any) -> torch.Tensor:
        ctx.save_for_backward(source)  # of no bytes: a checkpoint, with what it was given, lives as long as what is saved in it
        return source.new_empty_strided(shape, strides)


def counted_once(counter: Counter, kinds: Kinds, held: list[torch.Tensor]) -> AbstractContextManager[None]:
    """Inside, one of all calls that are alike is computed. held: what autograd keeps, to which they add."""
    known: dict[Hashable, _Call] = {}

    def forward(layer: torch.nn.Module, own: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        told = _told((*args, *kwargs.values()))
        key = (kinds[layer], tuple(kwargs), told, torch.is_grad_enabled())
        given = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if key in known:
            return _again(counter, known[key], given, held)
        out, call = _noted(counter, partial(own, *args, **kwargs), given, held)
        if told and call and any(map(is_without_numbers, given)):
            known[key] = call
        return out

    return replaced_forwards([*kinds], lambda layer: partial(forward, layer, layer.forward))


def _noted(
    counter: Counter, work: Callable[[], Any], given: list[torch.Tensor], held: list[torch.Tensor]
) -> tuple[Any, _Call | None]:
    """(what `work` returns; its call, or None if it returns anything but whole new tensors without numbers)."""
    before, kernels, there, keeps = counter.counted(), counter.kernels, counter.there(), len(held)
    counter.peak = before.kept
    out = work()
    added = counter.counted(before)
    counter.peak = max(before.peak, added.peak)
    leaves, layout = tree_flatten(out)
    made = [x for x in leaves if x is not None]
    if not all(_is_whole(x) for x in made) or len({_key(x) for x in made} - there) < len(made):
        return out, None
    keys = {_key(x) for x in held[keeps:]}
    call = _Call(
        added=added,
        kernels=counter.kernels - kernels,
        kept=added.kept - before.kept - sum(x.untyped_storage().nbytes() for x in made),
        peak=added.peak - before.kept,
        outputs=tuple(None if x is None else (tuple(x.shape), x.stride(), x.dtype, x.requires_grad) for x in leaves),
        layout=layout,
        held=tuple(i for i, x in enumerate([*given, *made]) if _key(x) in keys),
    )
    return out, call


def _again(counter: Counter, call: _Call, given: list[torch.Tensor], held: list[torch.Tensor]) -> Any:
    """What a call like this one returns."""
    source, before = next(filter(is_without_numbers, given)), counter.counted()
    kernels = counter.kernels + call.kernels

    def like(shape: Any, strides: Any, dtype: torch.dtype, graded: bool) -> Any:
        return _Like.apply(source.new_empty(0, dtype=dtype, requires_grad=graded), shape, strides)

    leaves = [None if made is None else like(*made) for made in call.outputs]
    tensors = [*given, *(x for x in leaves if x is not None)]
    held += [tensors[i].detach() for i in call.held]
    counter.products[len(before.products) :] = call.added.products
    counter.attention, counter.moved = before.attention + call.added.attention, before.moved + call.added.moved
    counter.operations, counter.kernels = before.operations + call.added.operations, kernels
    counter.now, counter.peak = counter.now + call.kept, max(before.peak, before.kept + call.peak)
    return tree_unflatten(leaves, call.layout)


def _told(value: Any) -> Hashable:
    """What tells an argument from others, or a tuple of them; None for what can't be told."""
    if isinstance(value, tuple):
        found = tuple(map(_told, value))
        return None if None in found else found
    if isinstance(value, PLAIN):
        return type(value), value
    if not isinstance(value, torch.Tensor):
        return None
    seen = tuple(value.shape), value.stride(), value.dtype, value.requires_grad
    if is_without_numbers(value):
        return seen
    return None if value.requires_grad or value.dtype == torch.bfloat16 else (*seen, value.numpy().tobytes())


def is_without_numbers(tensor: torch.Tensor) -> bool:
    """Whether it has a shape alone."""
    return isinstance(tensor, FakeTensor) or tensor.is_meta


def _is_whole(made: Any) -> bool:
    return (
        isinstance(made, torch.Tensor)
        and is_without_numbers(made)
        and made.numel() * made.element_size() == made.untyped_storage().nbytes()
    )


def _key(tensor: torch.Tensor) -> int:
    key: int = tensor.untyped_storage()._cdata
    return key
