"""Attention of rows that share their prompt: under a dense mask against the blocks of the mask that hold something.

    python benchmarks/attention.py [--device cuda] [--dtype bfloat16] [--lengths 1024 2048 4096 8192 16384] [--runs 5]

A row is a prompt of a third of its length and eight completions, as in a GRPO update. One layer's attention is computed,
forward and backward, with the heads of Qwen2.5-VL-3B (16 of 128 wide, 2 of keys) unless told otherwise. Two ways take turns:
`sdpa` of transformers, and what `policy.attn_implementation = "flex_attention"` does on the device (FlexAttention's kernels
on a GPU, else block by block in torch's operations). Masks are made once for all layers of a pass and timed apart. `computed`
is the share of all pairs of tokens that lie in the blocks; `largest_mb` is the largest tensor of a mask and a pass. Prints
one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from machine import keep, machine
from mmrl.policies.vlm import attention
from mmrl.policies.vlm.packed_rows import PackedRows, packed_rows

COMPLETIONS = 8
WAYS = {"dense": "sdpa", "blocks": attention.NAMES["flex"]}


class Largest(TorchDispatchMode):
    """The bytes of the largest tensor that is made inside."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for one in tree_leaves(found):
            if isinstance(one, torch.Tensor) and one.numel():
                self.bytes = max(self.bytes, one.untyped_storage().nbytes())
        return found


def segments(length: int, device: str) -> torch.Tensor:
    """int64 [1, length]: a prompt and completions, as `PackedRows` takes them."""
    prompt = length // 3
    each = (length - prompt) // COMPLETIONS
    prompt = length - COMPLETIONS * each
    own = torch.arange(1, COMPLETIONS + 1).repeat_interleave(each)
    return torch.cat([torch.zeros(prompt, dtype=torch.long), own])[None].to(device)


def clock(work: Callable[[], Any], device: str) -> tuple[Any, float]:
    started = time.perf_counter()
    found = work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return found, time.perf_counter() - started


class Layer:
    """Attention of one layer over random tokens."""

    def __init__(self, length: int, args: argparse.Namespace) -> None:
        noise, self.device = torch.Generator().manual_seed(length), args.device
        self.inputs = [
            torch.randn(1, heads, length, args.width, generator=noise)
            .to(args.device, getattr(torch, args.dtype))
            .requires_grad_()
            for heads in (args.heads, args.kv_heads, args.kv_heads)
        ]
        self.module = SimpleNamespace(num_key_value_groups=args.heads // args.kv_heads, is_causal=True, training=False)
        self.rows = PackedRows(segments(length, args.device), SimpleNamespace)
        self.given: dict[str, Any] = {
            "batch_size": 1, "q_length": length, "kv_length": length, "mask_function": causal_mask_function,
            "attention_mask": None, "dtype": self.inputs[0].dtype, "device": args.device, "config": SimpleNamespace(),
        }  # fmt: skip

    def mask(self, way: str) -> torch.Tensor | BlockMask:
        with packed_rows(self.rows):
            found: torch.Tensor | BlockMask = ALL_MASK_ATTENTION_FUNCTIONS[WAYS[way]](**self.given)
            return found

    def passed(self, way: str, mask: torch.Tensor | BlockMask) -> dict[str, Any]:
        """Seconds of a forward and a backward pass, the output and the gradients."""
        compute = ALL_ATTENTION_FUNCTIONS[WAYS[way]]
        (output, _), forward = clock(lambda: compute(self.module, *self.inputs, mask), self.device)
        slope = output.detach().sin()
        slopes, backward = clock(lambda: torch.autograd.grad(output, self.inputs, slope), self.device)
        return {"forward_s": forward, "backward_s": backward, "output": output.detach(), "gradients": slopes}


def measure(length: int, args: argparse.Namespace) -> dict[str, Any]:
    layer = Layer(length, args)
    ways = [way for way in WAYS if way != "dense" or length <= args.dense_up_to]
    seconds: dict[str, dict[str, list[float]]] = {way: {"mask_s": [], "forward_s": [], "backward_s": []} for way in ways}
    found: dict[str, Any] = {"length": length}
    last: dict[str, Any] = {}
    for run in range(args.runs + 1):
        for way in ways:
            if args.device.startswith("cuda"):
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            largest = Largest()
            with nullcontext() if run or args.device.startswith("cuda") else largest:  # nothing compiles under it
                mask, made = clock(lambda w=way: layer.mask(w), args.device)
                one = layer.passed(way, mask)
            if not run:  # the first warms up, and compiles
                found[way] = {
                    "largest_mb": round(largest.bytes / 2**20, 2),
                    "first_s": round(one["forward_s"] + one["backward_s"], 3),
                }
                if isinstance(mask, BlockMask):
                    found["computed"] = round(1 - mask.sparsity() / 100, 3)
                if args.device.startswith("cuda"):
                    found[way]["peak_mb"] = round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)
                last[way] = one
                continue
            for name, values in seconds[way].items():
                values.append(made if name == "mask_s" else one[name])
    for way in ways:
        found[way] |= {name: round(statistics.median(values), 6) for name, values in seconds[way].items()}
    if "dense" in ways:
        total = {way: [f + b for f, b in zip(s["forward_s"], s["backward_s"], strict=True)] for way, s in seconds.items()}
        found["ratio"] = round(statistics.median(d / b for d, b in zip(total["dense"], total["blocks"], strict=True)), 2)
        pairs = zip(
            (last["dense"]["output"], *last["dense"]["gradients"]),
            (last["blocks"]["output"], *last["blocks"]["gradients"]),
            strict=True,
        )
        gaps = [((a - b).float().norm() / a.float().norm()).item() for a, b in pairs]
        found |= {"output_difference": gaps[0], "gradient_difference": max(gaps[1:])}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--dense-up-to", type=int, default=16384, help="longer rows are computed by blocks alone")
    for name, default in {"heads": 16, "kv-heads": 2, "width": 128, "runs": 5}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    attention.register()
    rows = []
    for length in args.lengths:
        try:
            rows.append(measure(length, args))
        except torch.OutOfMemoryError as error:
            rows.append({"length": length, "out_of_memory": str(error).splitlines()[0]})
        keep({"failure": attention.KERNEL.failure, "rows": rows})
        gc.collect()
    print(
        json.dumps(
            {"benchmark": "attention", **vars(args), "failure": attention.KERNEL.failure, "rows": rows, "machine": machine()}
        )
    )


if __name__ == "__main__":
    main()
