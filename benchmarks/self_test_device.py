"""The rows of `self_test.py` about the device itself: what it reaches, and how exact torch's attention is there. Not a benchmark
itself.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Measured = dict[str, tuple[float, float]]
"""What was compared -> (how far apart, how far apart it may be)."""


def rates(device: str) -> Measured:
    """What the device reaches: TFLOP/s of large products, GB/s of copies, microseconds to start a kernel. Nothing is compared."""
    if device == "cpu":
        return {}
    width, times = 8192, 10
    a, b = (torch.randn(width, width, device=device, dtype=torch.bfloat16) for _ in range(2))
    one, many = torch.ones(1, device=device), torch.empty(2**30, dtype=torch.uint8, device=device)
    pinned = torch.empty(2**28, dtype=torch.uint8).pin_memory()
    found = {
        "bf16 TFLOP/s": 2 * width**3 / _seconds(lambda: a @ b, times) / 1e12,
        "float32 TFLOP/s": 2 * (width // 2) ** 3 / _seconds(partial(torch.matmul, *_squares(width // 2, device)), times) / 1e12,
        "copy GB/s": 2 * many.numel() / _seconds(lambda: many.clone(), times) / 1e9,
        "from pinned GB/s": pinned.numel() / _seconds(lambda: pinned.to(device, non_blocking=True), times) / 1e9,
        "kernel start us": _seconds(lambda: [one.add_(1) for _ in range(1000)], 3) * 1e3,
    }
    if not torch.cuda.is_bf16_supported():
        raise RuntimeError("this GPU has no bfloat16")
    return {name: (value, math.inf) for name, value in found.items()}


def _squares(width: int, device: str) -> list[torch.Tensor]:
    return [torch.randn(width, width, device=device) for _ in range(2)]


def _seconds(work: Callable[[], Any], times: int) -> float:
    for _ in range(2):
        work()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(times):
        work()
    torch.cuda.synchronize()
    return (time.perf_counter() - started) / times


def kernels(device: str) -> Measured:
    """Attention under a mask by each of torch's kernels, against float64: for lengths that no kernel likes, with rows that see
    nothing, for which torch promises 0, and for single queries. In bfloat16, relative to the largest value."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    found: Measured = {}
    names = ("EFFICIENT_ATTENTION", "MATH", "CUDNN_ATTENTION") if device != "cpu" else ("MATH",)
    for width in (16, 80, 128):
        for queries, keys in ((41, 41), (1, 45), (128, 128)):
            noise = torch.Generator().manual_seed(width + keys)
            shapes = ((2, 4, queries, width), (2, 4, keys, width), (2, 4, keys, width))
            made = [torch.randn(shape, generator=noise).bfloat16() for shape in shapes]
            mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)[None, None].repeat(2, 1, 1, 1)
            mask[0, :, :, :7] = False
            exact = torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in made), attn_mask=mask)
            rows = mask.any(-1)[:, 0]  # [2, queries]
            for name in names:
                try:
                    with sdpa_kernel(getattr(SDPBackend, name)):
                        given = [x.to(device) for x in made]
                        there = torch.nn.functional.scaled_dot_product_attention(*given, attn_mask=mask.to(device))
                    there = there.cpu().double()
                except RuntimeError as error:  # it refuses this shape; the others are still to be known
                    print(f"{name} {width} wide, {queries} x {keys}: {str(error).splitlines()[0]}", file=sys.stderr)
                    there = torch.full_like(exact, math.inf)
                apart = ((there - exact).abs().amax((1, 3)) / exact.abs().max()).nan_to_num(math.inf)
                label = f"{name.split('_')[0].lower()} {width} wide, {queries} x {keys}"
                judged = 2e-2 if name != "CUDNN_ATTENTION" else math.inf  # it isn't used
                found[label] = (float(apart[rows].max()), judged)
                if not rows.all():
                    found[f"{label}, empty"] = (float(apart[~rows].max()), judged)
    return found


def fused(device: str) -> Measured:
    """torch's fused attention without a mask, and that of several lengths: by FlashAttention 3 where it is installed."""
    from mmrl.compute.flash_attention import BOUND, differences, use_flash_attention

    kind = "FlashAttention 3" if use_flash_attention(device) else "torch's own"
    return {f"{kind}, {what}": (apart, BOUND) for what, apart in differences(device).items()}


DEVICE: dict[str, Callable[[str], Measured]] = {"device": rates, "kernels": kernels, "fused attention": fused}
