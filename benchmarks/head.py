"""Log-probabilities and entropies from hidden states: torch's own derivatives of a few tokens at a time, behind a checkpoint,
against `mmrl.policies.vlm.linear_logprobs`.

    python benchmarks/head.py [--device cuda] [--dtype bfloat16] [--tokens 8192] [--hidden 2048] [--vocabulary 151936] [--runs 5]

Forward and backward, with gradients of the hidden states and of the output embeddings, with and without those of the entropy.
Both ways take the same few tokens at a time (`LOGIT_CHUNK` of `mmrl.policies.vlm.vlm`), in turn. `peak_mb` (on a GPU) is what
is allocated on top of the inputs, `kept_mb` what the forward pass keeps for the backward pass. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from machine import machine
from mmrl.policies.vlm.linear_logprobs import linear_logprobs
from mmrl.policies.vlm.logits import Logits
from mmrl.policies.vlm.vlm import LOGIT_CHUNK, entropy_of


class Head:
    def __init__(self, args: argparse.Namespace, entropy: bool) -> None:
        torch.manual_seed(0)
        dtype = getattr(torch, args.dtype)
        out = torch.nn.Linear(args.hidden, args.vocabulary, bias=False, device=args.device, dtype=dtype)
        self.head, self.entropy, self.device = Logits(out, "plain", 0.0), entropy, args.device
        self.hidden = torch.randn(args.tokens, args.hidden, device=args.device, dtype=dtype, requires_grad=True)
        self.target = torch.randint(args.vocabulary, (args.tokens,), device=args.device)
        self.bias = torch.zeros(args.vocabulary, device=args.device)
        self.bias[:20] = -torch.inf
        self.target.clamp_min_(20)
        self.at_once = max(1, LOGIT_CHUNK // args.vocabulary)
        self.slope = torch.randn(args.tokens, device=args.device)

    def plain(self, hidden: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logprobs = (self.head(hidden).float() / 0.9 + self.bias).log_softmax(-1)
        with torch.set_grad_enabled(self.entropy):
            entropy = entropy_of(logprobs)
        return logprobs.gather(-1, target[:, None])[:, 0], entropy

    def checkpointed(self) -> tuple[torch.Tensor, torch.Tensor]:
        pieces = zip(self.hidden.split(self.at_once), self.target.split(self.at_once), strict=True)
        found = [checkpoint(self.plain, *one, use_reentrant=False, preserve_rng_state=False) for one in pieces]
        logprobs, entropies = zip(*found, strict=True)
        return torch.cat(logprobs), torch.cat(entropies)

    def own(self) -> tuple[torch.Tensor, torch.Tensor]:
        return linear_logprobs(
            self.hidden, self.head, self.target, self.bias, temperature=0.9, at_once=self.at_once, entropy_gradient=self.entropy
        )

    def passed(self, way: str) -> dict[str, Any]:
        on_gpu, kept = self.device.startswith("cuda"), {}
        if on_gpu:
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()

        def save(x: torch.Tensor) -> torch.Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        started = time.perf_counter()
        with torch.autograd.graph.saved_tensors_hooks(save, lambda x: x):
            logprobs, entropy = getattr(self, way)()
        total = (logprobs * self.slope).sum() + ((entropy * self.slope).sum() if self.entropy else 0.0)
        forward = self._waited(started)
        slopes = torch.autograd.grad(total, (self.hidden, self.head.out.weight))
        seconds = self._waited(started)
        for one in (self.hidden, self.head.out.weight, self.target, self.bias):
            kept.pop(one.untyped_storage().data_ptr(), None)
        found = {"forward_s": forward, "backward_s": seconds - forward, "kept_mb": sum(kept.values()) / 2**20}
        if on_gpu:
            found["peak_mb"] = (torch.cuda.max_memory_allocated() - before) / 2**20
        return found | {"results": (logprobs.detach(), entropy.detach(), *slopes)}

    def _waited(self, started: float) -> float:
        if self.device.startswith("cuda"):
            torch.cuda.synchronize()
        return time.perf_counter() - started


def compare(args: argparse.Namespace, entropy: bool) -> dict[str, Any]:
    head, rows = Head(args, entropy), {"checkpointed": [], "own": []}
    for run in range(args.runs + 1):
        for way in rows:
            one = head.passed(way)
            if run:  # the first warms up
                rows[way].append(one)
    numbers = [name for name in rows["own"][0] if name != "results"]
    found: dict[str, Any] = {way: {n: round(statistics.median(r[n] for r in rs), 5) for n in numbers} for way, rs in rows.items()}
    totals = {way: [r["forward_s"] + r["backward_s"] for r in rs] for way, rs in rows.items()}
    found["ratio"] = round(statistics.median(a / b for a, b in zip(totals["checkpointed"], totals["own"], strict=True)), 2)
    pairs = zip(rows["checkpointed"][-1]["results"], rows["own"][-1]["results"], strict=True)
    names = ("logprobs", "entropy", "hidden_gradient", "weight_gradient")
    gaps = [((a.float() - b.float()).norm() / a.float().norm()).item() for a, b in pairs]
    return found | {"differences": dict(zip(names, gaps, strict=True))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--dtype", default="bfloat16" if torch.cuda.is_available() else "float32")
    for name, default in dict(tokens=8192, hidden=2048, vocabulary=151936, runs=5).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    found = {"without": compare(args, False), "with": compare(args, True)}
    print(json.dumps({"benchmark": "head", **vars(args), "entropy_gradient": found, "machine": machine()}))


if __name__ == "__main__":
    main()
