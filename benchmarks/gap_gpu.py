"""The embedded sampler against the learner at real size: how far apart their log-probabilities of the sampled tokens are.

    python benchmarks/gap_gpu.py [--size 3b|7b|narrow|tiny] [--dtypes float32 bfloat16 float16] [--group 8] [--tokens 64]

Qwen2.5-VL's shape with random weights. The learner's forward is the update's: groups that share their prompt, if
the model can do that, and one sequence per completion. Nats per token: mean, 99th percentile, largest. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
from typing import Any

import torch

from machine import keep, machine
from mmrl.policies.batches import ones
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.train.update.pack_conversations import pack
from on_device import SIZES, loaded
from step_gpu import prompts_of

DTYPES = ["float32", "bfloat16", "float16"]
"""In order of worth."""


@torch.no_grad()
def gaps(policy: VLM, args: argparse.Namespace) -> dict[str, Any]:
    prompts = prompts_of(policy, args.prompts, args.pixels, args.prompt_tokens)
    collector = ConversationCollector(policy, LocalGenerator(policy, args.prompts * args.group))
    sampling = SamplingParams(max_tokens=args.tokens, temperature=1.0, seed=0)
    rollouts = collector.collect(prompts, collector.encode(prompts), args.group, sampling)
    found: dict[str, Any] = {}
    for way in ("shared", "alone") if policy.family.shares_prefix else ("alone",):
        gap = []
        for micro in pack(rollouts, ones(rollouts), policy, shared_prefix=way == "shared", budget=args.budget).micro:
            gap.append((policy.logprobs(micro, 1.0)[0] - micro.sampler_logprobs_L).abs().float())
        every = torch.cat(gap)
        found[way] = {"mean": float(every.mean()), "p99": float(every.quantile(0.99)), "largest": float(every.max())}
    return found | {"tokens": len(every), "why_not_shared": policy.family.capabilities.why_not}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="3b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=DTYPES)
    for name, default in dict(prompts=8, group=8, tokens=64, pixels=224, prompt_tokens=200, budget=16384).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    for dtype in args.dtypes:
        policy = loaded(args.size, args.device, dtype)
        try:
            found[dtype] = gaps(policy, args)
        except torch.OutOfMemoryError as error:
            found[dtype] = {"error": str(error).splitlines()[0]}
        keep(found)
        del policy
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    print(json.dumps({"benchmark": "gap_gpu", **vars(args), **found, "machine": machine()}))


if __name__ == "__main__":
    main()
