"""The embedded sampler against the learner at real size: how far apart their log-probabilities of the sampled tokens are.

    python benchmarks/gap_gpu.py [--size 3b|7b|narrow|tiny] [--cases float32 bfloat16 invariant float16] [--group 8] [--tokens 64]

Qwen2.5-VL's shape with random weights. The learner's forward is the update's: groups that share their prompt, if
the model can do that, and one sequence per completion. Nats per token: mean, 99th percentile, largest; and the seconds that each
took. `invariant` is bfloat16 with `policy.batch_invariant`. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from machine import keep, machine
from mmrl.api.errors import UserError
from mmrl.policies.batches import ones
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.train.update.pack_conversations import pack
from on_device import SIZES, loaded
from step_gpu import prompts_of

CASES = ["float32", "bfloat16", "invariant", "float16"]
"""In order of worth."""


def timed(function: Callable[[], Any], device: str) -> tuple[float, Any]:
    """(seconds, what it gives)."""
    start = time.perf_counter()
    found = function()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - start, found


@torch.no_grad()
def gaps(policy: VLM, args: argparse.Namespace) -> dict[str, Any]:
    prompts = prompts_of(policy, args.prompts, args.pixels, args.prompt_tokens)
    collector = ConversationCollector(policy, LocalGenerator(policy, args.prompts * args.group))
    sampling = SamplingParams(max_tokens=args.tokens, temperature=1.0, seed=0)
    seconds, rollouts = timed(lambda: collector.collect(prompts, collector.encode(prompts), args.group, sampling), args.device)
    found: dict[str, Any] = {"sample_s": seconds}
    for way in ("shared", "alone") if policy.family.shares_prefix else ("alone",):
        micros = pack(rollouts, ones(rollouts), policy, shared_prefix=way == "shared", budget=args.budget).micro
        policy.logprobs(micros[0], 1.0)  # compiles what there is to compile
        seconds, passed = timed(lambda micros=micros: [policy.logprobs(micro, 1.0)[0] for micro in micros], args.device)
        every = torch.cat([(own - m.sampler_logprobs_L).abs().float() for own, m in zip(passed, micros, strict=True)])
        found[way] = {"mean": float(every.mean()), "p99": float(every.quantile(0.99)), "largest": float(every.max())}
        found[way]["seconds"] = seconds
    return found | {"tokens": len(every), "why_not_shared": policy.family.capabilities.why_not}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="3b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    for name, default in dict(prompts=8, group=8, tokens=64, pixels=224, prompt_tokens=200, budget=16384).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    for case in args.cases:
        invariant, policy = case == "invariant", None
        try:
            policy = loaded(args.size, args.device, "bfloat16" if invariant else case, batch_invariant=invariant)
            found[case] = gaps(policy, args)
        except (torch.OutOfMemoryError, UserError) as error:
            found[case] = {"error": str(error).splitlines()[0]}
        keep(found)
        del policy
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    print(json.dumps({"benchmark": "gap_gpu", **vars(args), **found, "machine": machine()}))


if __name__ == "__main__":
    main()
