"""Seconds of a GRPO step with adapters in the language model, whose frozen vision tower looks at each picture once, against a
step whose every pass looks again; and the gap between sampler and learner of both.

    python benchmarks/vision_cache.py [--size narrow|tiny|3b|7b] [--device cpu] [--prompts 4] [--group 4] [--tokens 16]
        [--pixels 448] [--epochs 1] [--kl 0.01] [--dtype float32] [--rounds 5]

The step samples, and updates with a KL penalty against the model without its adapters. `share` is the tower's part of the
operations of a pass over a prompt. Both ways take the same prompts with the same seeds, in turn; the first round warms up. Prints
one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

from machine import machine
from mmrl.algorithms.presets import load_algorithm
from mmrl.config.sections import RlStage
from mmrl.policies.batches import ones
from mmrl.policies.reference import Reference
from mmrl.policies.vlm.vision_cache import vision_cache
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack
from model_shapes import shape
from on_device import SIZES, loaded
from step_gpu import prompts_of, wait

WAYS = {"again": 0, "once": 1 << 30}
"""Way -> bytes that are kept."""


def step(policy: VLM, learner: Learner, args: argparse.Namespace, number: int) -> float:
    """A step; returns its gap, in nats a token."""
    collector = ConversationCollector(policy, LocalGenerator(policy, args.prompts * args.group))
    prompts = prompts_of(policy, args.prompts, args.pixels, 0)
    sampling = SamplingParams(max_tokens=args.tokens, temperature=1.0, seed=number)
    rollouts = collector.collect(prompts, collector.encode(prompts), args.group, sampling)
    batch = pack(rollouts, ones(rollouts), policy, shared_prefix=True, budget=16384)
    return learner.update([batch], number, kl=args.kl)["logprob_gap"]


def compared(args: argparse.Namespace) -> dict[str, Any]:
    policy = loaded(args.size, args.device, args.dtype, lora=8, parts=["language"])
    stage = RlStage(kind="rl", steps=99, learning_rate=1e-6, epochs=args.epochs, kl_coef=args.kl)
    learner = Learner(policy, stage, load_algorithm("grpo", {}), reference=Reference(policy, adapters=True) if args.kl else None)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    gaps = dict.fromkeys(WAYS, 0.0)
    for number in range(args.rounds + 1):
        for way, most in WAYS.items():
            wait(policy)
            started = time.perf_counter()
            with vision_cache(most):
                gaps[way] = step(policy, learner, args, number)
            wait(policy)
            if number:
                seconds[way].append(time.perf_counter() - started)
    ratios = [again / once for again, once in zip(*seconds.values(), strict=True)]
    return {"times": statistics.median(ratios), "seconds": {w: statistics.median(s) for w, s in seconds.items()}, "gap": gaps}


def share(args: argparse.Namespace) -> float | None:
    """The tower's part of the operations of a pass over a prompt."""
    if args.size == "tiny":
        return None
    it, patches = shape(args.size), (args.pixels // 14) ** 2
    tower, text = it.vision_flops(patches), it.text_flops(patches / 4, patches / 8, 0)
    return tower / (tower + text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="narrow")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    for name, default in dict(prompts=4, group=4, tokens=16, pixels=448, epochs=1, rounds=5).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--kl", type=float, default=0.01)
    args = parser.parse_args()
    found = compared(args)
    print(json.dumps({"benchmark": "vision_cache", **vars(args), "share": share(args), **found, "machine": machine()}))


if __name__ == "__main__":
    main()
