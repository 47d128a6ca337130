"""What adapters add to the output of a layer that computes in bfloat16 or float16, without copies of its input in float32.

peft copies a layer's input to float32 for each adapter, keeps the copies for the backward pass, and scales and adds the output in
float32. For a layer as wide as its input these are 80 bytes of each of its numbers that a forward and a backward pass read and
write; here they are 20. Kept is the input itself, which adapters of the same input share.

On a GPU, a product of bfloat16 numbers can be summed in float32. A float32 factor is split into two bfloat16 numbers, which have 16
of its 24 bits, and each is multiplied; what that leaves out is 2^-16 of what the adapter adds, where rounding the layer's output to
bfloat16 leaves out up to 2^-9 of all of it. Of float16, whose smallest numbers are too large for the second ones, and on a CPU the
input is copied for each product, and the copy isn't kept.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd.function import once_differentiable


def add_product(plain: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scaling: float) -> torch.Tensor:
    """plain + scaling * x @ a.T @ b.T, summed in float32 and rounded once. Where factors are split, `plain` is overwritten.
    plain: what the layer beneath the adapter gives, [..., out]; x: its input, [..., in] of the same dtype; a, b: the adapter,
    float32 [rank, in] and [out, rank]."""
    if torch.is_grad_enabled():
        found: torch.Tensor = _AddProduct.apply(plain, x, a, b, scaling)
        return found
    return _added(plain, _low(x, a), b, scaling)


class _AddProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, plain: torch.Tensor, x: torch.Tensor, a: torch.Tensor, b: torch.Tensor, scaling: float) -> torch.Tensor:
        low_NR, ctx.scaling = _low(x, a), scaling
        ctx.save_for_backward(x, low_NR, a, b)
        if splits(plain) and not torch.compiler.is_compiling():
            ctx.mark_dirty(plain)
        return _added(plain, low_NR, b, scaling)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        x, low_NR, a, b = ctx.saved_tensors
        (out,) = gradients
        x_NI, out_NO, halved = x.flatten(0, -2), out.flatten(0, -2), splits(x)
        _, x_needs, a_needs, b_needs, _ = ctx.needs_input_grad
        # the gradient of `low`: with few columns it is cheaper to scale than the output's
        low_grad_NR = (_wide_times(out_NO, b) if halved else out_NO.float() @ b) * ctx.scaling
        x_grad = a_grad = b_grad = None
        if b_needs:
            rows_RO = _wide_times(out_NO.T, low_NR) if halved else out_NO.T.float() @ low_NR
            b_grad = rows_RO * ctx.scaling
        if a_needs:
            a_grad = (_wide_times(x_NI.T, low_grad_NR) if halved else x_NI.T.float() @ low_grad_NR).T
        if x_needs:
            x_grad = torch.mm(_thirds(low_grad_NR), _other_thirds(a.T).T) if halved else (low_grad_NR @ a).to(x.dtype)
            x_grad = x_grad.view(x.shape)
        return out, x_grad, a_grad, b_grad, None


def splits(x: torch.Tensor) -> bool:
    """Whether products with these numbers split the other factor: the device multiplies them into float32."""
    return x.is_cuda and x.dtype == torch.bfloat16 and torch.version.hip is None


def _low(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
    """x @ a.T, float32 [N, rank]."""
    rows_NI = x.flatten(0, -2)
    return _wide_times(rows_NI, a.T) if splits(x) else rows_NI.float() @ a.T


def _added(plain: torch.Tensor, low_NR: torch.Tensor, b: torch.Tensor, scaling: float) -> torch.Tensor:
    """plain + scaling * low @ b.T, as `add_product` says."""
    if splits(plain):
        rows_NO, factors = plain.flatten(0, -2), (_thirds(low_NR), _other_thirds(b).T)
        if torch.compiler.is_compiling():  # which knows no argument of a backward pass that is overwritten
            return torch.addmm(rows_NO, *factors, alpha=scaling).view(plain.shape)
        rows_NO.addmm_(*factors, alpha=scaling)  # torch.addmm would copy `plain` first
        return plain
    return (plain + (low_NR @ b.T * scaling).view(plain.shape)).to(plain.dtype)


def _wide_times(narrow: torch.Tensor, wide: torch.Tensor) -> torch.Tensor:
    """The float32 product of a bfloat16 and a float32 matrix."""
    high = wide.to(narrow.dtype)
    both = times(narrow, torch.cat([high, (wide - high).to(narrow.dtype)], 1))
    return both[:, : wide.shape[1]] + both[:, wide.shape[1] :]


def times(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The float32 product of two bfloat16 matrices."""
    return torch.mm(x, y, out_dtype=torch.float32)


def _thirds(x: torch.Tensor) -> torch.Tensor:
    """float32 [N, R] as the left factor of a bfloat16 product whose right one is `_other_thirds`: [N, 3 R]. Of the four products
    of halves that of both low ones is left out."""
    high = x.bfloat16()
    return torch.cat([high, (x - high).bfloat16(), high], 1)


def _other_thirds(y: torch.Tensor) -> torch.Tensor:
    """float32 [O, R] as bfloat16 [O, 3 R], see `_thirds`."""
    high = y.bfloat16()
    return torch.cat([high, high, (y - high).bfloat16()], 1)
