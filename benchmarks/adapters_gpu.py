"""Adapters of a decoder layer's seven matrices: as peft computes them, with float32 copies of the inputs, and as mmrl does, with
the inputs as they are; timed in turn.

    python benchmarks/adapters_gpu.py [--device cuda] [--tokens 64 2048 16384] [--rank 32] [--runs 9] [--width 4096]
        [--inner 11008]

The matrices are those of a 7B's decoder layer in bfloat16, frozen, with adapters in float32: `q_proj`, `k_proj` and `v_proj`
read one input, `o_proj` another, `gate_proj` and `up_proj` a third, `down_proj` a fourth. `bare` has no adapters, `peft` computes
as peft's layers do, `ours` as `mmrl.policies.lora_products`.

Prints one JSON object, whose `rows` have for each number of `tokens`:

- `sample`, a forward pass without gradients, and `update`, a forward and a backward pass: median seconds of each way (`bare_s`,
  `peft_s`, `ours_s`); `ratio`, those of `peft` over those of `ours`; `added_ratio`, the same of the seconds that adapters add to
  `bare`. Above 1, ours is faster. Where adapters add less than the seconds vary, `added_ratio` says nothing.
- `operations`: how many operations each way takes in a forward pass (`sample`) and in both (`update`), views left out. On a GPU
  each starts a kernel, except that splitting factors makes seven tensors of an adapter without one.
- `kept_mb`: MiB that a forward pass keeps for the backward pass besides weights. `bare` keeps nothing, as its weights are frozen.
- `gradient_difference`: norm of the difference between both ways' gradients over the norm of peft's, the largest of all inputs
  and adapters. On a CPU it is that of an input of several matrices, whose bfloat16 gradients are added up in another order.
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from typing import Any

import torch

from machine import keep, machine
from mmrl.config.sections import LoraConfig
from mmrl.policies.lora import add_adapters
from mmrl.train.plan.counter import Counter

INPUTS = {"q_proj": 0, "k_proj": 0, "v_proj": 0, "o_proj": 1, "gate_proj": 2, "up_proj": 2, "down_proj": 3}
WAYS = {
    "bare": lambda layer, x: layer.base_layer(x),
    "peft": lambda layer, x: type(layer).forward(layer, x),
    "ours": lambda layer, x: layer(x),
}
KINDS = {"sample": False, "update": True}
"""Passes without gradients and with them."""


def made(args: argparse.Namespace) -> torch.nn.ModuleDict:
    """The seven matrices, by name, with adapters."""

    def matrix(name: str) -> torch.nn.Linear:
        wide = {"gate_proj": (args.width, args.inner), "up_proj": (args.width, args.inner), "down_proj": (args.inner, args.width)}
        given: Any = {"device": args.device, "dtype": getattr(torch, args.dtype), "bias": False}
        return torch.nn.Linear(*wide.get(name, (args.width, args.width)), **given)

    torch.manual_seed(0)
    layers = torch.nn.ModuleDict({name: matrix(name) for name in INPUTS})
    add_adapters(layers, LoraConfig(rank=args.rank, alpha=2.0 * args.rank, target_modules=list(INPUTS)), 0)
    for layer in layers.values():
        torch.nn.init.normal_(layer.lora_B["default"].weight, std=0.01)
    return layers.to(args.device)


class Run:
    """The layers over random inputs of so many tokens."""

    def __init__(self, layers: torch.nn.ModuleDict, tokens: int, args: argparse.Namespace) -> None:
        self.layers, self.cuda = layers, args.device.startswith("cuda")
        widths = (args.width, args.width, args.width, args.inner)
        given: Any = {"device": args.device, "dtype": getattr(torch, args.dtype)}
        self.inputs = [torch.randn(tokens, width, requires_grad=True, **given) for width in widths]

    def timed(self, way: str, gradients: bool) -> tuple[float, int]:
        """(seconds, bytes that the forward pass keeps)."""
        for tensor in (*self.inputs, *self.layers.parameters()):
            tensor.grad = None
        kept: dict[int, int] = {}

        def keep_one(t: torch.Tensor) -> torch.Tensor:
            kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
            return t

        self.wait()
        started = time.perf_counter()
        with torch.set_grad_enabled(gradients), torch.autograd.graph.saved_tensors_hooks(keep_one, lambda t: t):
            outputs = [WAYS[way](layer, self.inputs[INPUTS[name]]) for name, layer in self.layers.items()]
        if gradients:
            torch.autograd.backward(outputs, [t.detach() for t in outputs])
        self.wait()
        own = {t.untyped_storage().data_ptr() for t in (*self.layers.parameters(), *self.inputs)}
        inputs = {t.data_ptr() for t in self.inputs} & set(kept)  # counted where adapters alone keep them
        return time.perf_counter() - started, sum(n for at, n in kept.items() if at not in own or at in inputs)

    def operations(self, way: str) -> dict[str, int]:
        found = {}
        for kind, gradients in KINDS.items():
            counter = Counter()
            with counter:
                self.timed(way, gradients)
            found[kind] = counter.kernels
        return found

    def wait(self) -> None:
        if self.cuda:
            torch.cuda.synchronize()

    def gradients(self, way: str) -> list[torch.Tensor]:
        self.timed(way, True)
        found = [t.grad for t in (*self.inputs, *self.layers.parameters()) if t.grad is not None]
        return [copy.deepcopy(t).float() for t in found]


def measure(layers: torch.nn.ModuleDict, tokens: int, args: argparse.Namespace) -> dict[str, Any]:
    run, row = Run(layers, tokens, args), {"tokens": tokens}
    pairs = zip(run.gradients("peft"), run.gradients("ours"), strict=True)
    row["gradient_difference"] = max(((a - b).norm() / a.norm()).item() for a, b in pairs)
    row["operations"] = {way: run.operations(way) for way in WAYS}
    for kind, gradients in KINDS.items():
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        kept = dict.fromkeys(WAYS, 0)
        for one in range(args.runs + 1):
            for way in WAYS:
                took, kept[way] = run.timed(way, gradients)
                if one:  # the first warms up
                    seconds[way].append(took)
        added = {way: [a - b for a, b in zip(seconds[way], seconds["bare"], strict=True)] for way in ("peft", "ours")}
        row[kind] = {f"{way}_s": round(statistics.median(s), 6) for way, s in seconds.items()}
        row[kind]["ratio"] = round(statistics.median(seconds["peft"]) / statistics.median(seconds["ours"]), 3)
        row[kind]["added_ratio"] = round(statistics.median(added["peft"]) / statistics.median(added["ours"]), 3)
        if gradients:
            row["kept_mb"] = {way: round(n / 2**20, 2) for way, n in kept.items()}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 2048, 16384])
    for name, default in {"rank": 32, "runs": 9, "width": 4096, "inner": 11008}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    layers, rows = made(args), []
    for tokens in args.tokens:
        rows.append(measure(layers, tokens, args))
        keep({"rows": rows})
    print(json.dumps({"benchmark": "adapters_gpu", **vars(args), "rows": rows, "machine": machine("peft")}))


if __name__ == "__main__":
    main()
