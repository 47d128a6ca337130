"""Pictures fetched one micro-batch ahead against all pictures of a step at once: the same learner's steps, timed in turn.

    python benchmarks/prefetch_gpu.py [--size 3b|7b|tiny] [--prompts 64] [--group 5] [--tokens 200] [--pixels 896] [--runs 3]
        [--budget 16384] [--lora RANK]

Packing and a GRPO update of Qwen2.5-VL shapes with random weights, gradient checkpointing and random completions; a picture of
896 pixels a side has 1,024 tokens. `ahead` is `mmrl.train.update.prefetch`; `at_once` brings each micro-batch over when it is
packed, and all stay. Reports the median seconds of packing, update and both, peak memory, the bytes of pictures in a step and in
two micro-batches, how long those of a step take at 25 and 50 GB/s, and the difference of losses. `--size 7b` needs `--lora`.
`--size tiny --device cpu` runs the same code anywhere, where both ways are one. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any
from unittest import mock

import torch

from machine import keep, machine
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.transfer import upload
from mmrl.config.sections import RlStage, TrainConfig
from mmrl.policies.batches import Credit
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack
from mmrl.train.update.prefetch import AT_ONCE, Prefetcher
from on_device import check_room, loaded, sized, sized_parser
from packing_gpu import rollouts_of
from step_gpu import clock

WORK = dict(prompts=64, group=5, tokens=200, pixels=896, runs=3, budget=16384)
TINY = WORK | dict(prompts=4, tokens=16, pixels=112, runs=1, budget=200)
GBS = (25, 50)
"""PCIe 4 and 5 with 16 lanes, in GB/s, of which copies reach most."""


def at_once(self: Prefetcher, media: Mapping[str, torch.Tensor]) -> Mapping[str, torch.Tensor]:
    """In the place of `Prefetcher.add`."""
    return upload(media, self.device, self.on_host)


WAYS: dict[str, Any] = {"ahead": nullcontext, "at_once": lambda: mock.patch.object(Prefetcher, "add", at_once)}


def compared(policy: VLM, args: argparse.Namespace) -> dict[str, Any]:
    rollouts = rollouts_of(policy, args.prompts, args.pixels, 0, args.tokens, args.group)
    credit = Credit(advantages=torch.randn(len(rollouts), generator=torch.Generator().manual_seed(1)))
    stage = RlStage(kind="rl", steps=99, learning_rate=1e-30)  # which moves no weight, so both ways have the same
    learner = Learner(policy, stage, load_algorithm("grpo", {}), train=TrainConfig(gradient_checkpointing=True))
    seconds: dict[str, dict[str, list[float]]] = {way: {"pack": [], "update": [], "both": []} for way in WAYS}
    memory, losses, found = dict.fromkeys(WAYS, 0), dict.fromkeys(WAYS, 0.0), {}
    for run in range(args.runs + 1):
        for way, inside in WAYS.items():
            if policy.device.type == "cuda":
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats()
            with inside():
                batch, packing = clock(policy, lambda: pack(rollouts, credit, policy, shared_prefix=True, budget=args.budget))
            metrics, update = clock(policy, lambda b=batch, n=run: learner.update([b], n))
            losses[way] = metrics["loss"]
            if policy.device.type == "cuda":
                memory[way] = max(memory[way], round(torch.cuda.max_memory_allocated() / 2**20))
            if run:  # the first warms up
                for name, value in {"pack": packing, "update": update, "both": packing + update}.items():
                    seconds[way][name].append(value)
            sizes = [micro.media["pixel_values"].nbytes for micro in batch.micro]
            del batch
        found = {
            "micro_batches": len(sizes),
            "prompt_tokens": len(rollouts[0].inputs.ids),
            "median_s": {w: {n: round(statistics.median(v), 4) for n, v in each.items() if v} for w, each in seconds.items()},
            "peak_gpu_memory_mb": memory,
            "picture_mb": {"step": round(sum(sizes) / 1e6, 1), "held": round(sum(sorted(sizes)[-AT_ONCE:]) / 1e6, 1)},
            "copy_s": {f"{rate} GB/s": round(sum(sizes) / rate / 1e9, 4) for rate in GBS},
            "loss_difference": abs(losses["ahead"] - losses["at_once"]),
        }
        keep(found)
    return found


def main() -> None:
    parser = sized_parser(__doc__, WORK, TINY)
    parser.add_argument("--lora", type=int, default=0, help="train adapters of this rank instead of all weights")
    args = sized(parser.parse_args(), WORK, TINY)
    check_room(parser, args)
    found = compared(loaded(args.size, args.device, lora=args.lora), args)
    print(json.dumps({"benchmark": "prefetch_gpu", **vars(args), **found, "machine": machine()}))


if __name__ == "__main__":
    main()
