"""Shared-prefix packing against one sequence per completion at real size in bfloat16: the same update, timed in turn.

    python benchmarks/packing_gpu.py [--size 3b 7b] [--groups 4] [--runs 3] [--budget 16384]

Forward and backward of a GRPO update of Qwen2.5-VL shapes with random weights, with both layouts and gradient checkpointing:
groups of 5 with 1,000 prompt and 200 completion tokens at 512 px, and groups of 8 with 256 completion tokens and the shortest
possible prompt at 448 px. Reports the ratio of times, the ratio of tokens through the model, the greatest and mean difference of
log-probabilities, the relative difference of gradients (in bfloat16, with 3 digits), and peak memory. `--size tiny --device cpu`
runs the same code anywhere. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
from collections.abc import Callable
from typing import Any

import torch

from machine import keep, machine
from mmrl.algorithms.loss import LossInputs, average, clipped_surrogate
from mmrl.api.episodes import Conversation
from mmrl.api.types import Rollout, Status, Turn
from mmrl.policies.batches import Batch, Credit
from mmrl.policies.gradient_checkpointing import gradient_checkpointing
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.pack_conversations import pack
from on_device import SIZES, loaded
from step_gpu import clock, prompts_of

CASES = {
    "512px-1000+200x5": dict(pixels=512, prompt_tokens=1000, tokens=200, group=5),
    "448px+256x8": dict(pixels=448, prompt_tokens=0, tokens=256, group=8),
}
TINY = {"112px-80+16x5": dict(pixels=112, prompt_tokens=80, tokens=16, group=5)}


def rollouts_of(policy: VLM, groups: int, pixels: int, prompt_tokens: int, tokens: int, group: int) -> list[Rollout]:
    """Groups with random completions, each of `tokens`."""
    allowed = torch.tensor([i for i in range(len(policy.bias_V)) if policy.bias_V[i] == 0])
    noise, made = torch.Generator().manual_seed(0), []
    for number, prompt in enumerate(prompts_of(policy, groups, pixels, prompt_tokens)):
        inputs = policy.encode(prompt)
        for _ in range(group):
            ids = tuple(allowed[torch.randint(len(allowed), (tokens,), generator=noise)].tolist())
            turn = Turn(observed_ids=tuple(inputs.ids.tolist()), token_ids=ids, logprobs=(0.0,) * tokens, text="")
            made.append(Conversation(prompt=prompt, group=number, turns=(turn,), status=Status.FINISHED, inputs=inputs))
    return made


def update(policy: VLM, batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """(log-probabilities by rollout and position, gradients) of one forward and backward."""
    policy.model.zero_grad()  # not in place: the caller may hold the last call's gradients
    found = []
    with gradient_checkpointing(policy.model):
        for micro in batch.micro:
            logprobs, _ = policy.logprobs(micro, 1.0)
            inputs = LossInputs(
                logprobs_L=logprobs,
                old_logprobs_L=logprobs.detach(),
                advantages_L=micro.advantages_L,
                rollout_L=micro.rollout_L,
                lengths_N=batch.lengths_N,
            )
            average(clipped_surrogate(inputs)[0], micro, batch, "token").backward()
            found.append((micro.rollout_L, logprobs.detach()))
    owner, values = (torch.cat(x) for x in zip(*found, strict=True))
    return values[owner.argsort(stable=True)], [p.grad for _, p in policy.parameters() if p.grad is not None]


def relative(ours: list[torch.Tensor], theirs: list[torch.Tensor]) -> float:
    """The norm of the difference over the norm of `theirs`, without copying all gradients to float32."""
    pairs = list(zip(ours, theirs, strict=True))
    gap = sum(float((a.float() - b.float()).square().sum()) for a, b in pairs)
    return (gap / sum(float(b.float().square().sum()) for _, b in pairs)) ** 0.5


def compare(policy: VLM, case: dict[str, int], args: argparse.Namespace, tell: Callable[[Any], None]) -> dict[str, Any]:
    """tell: is given the seconds of each run so far."""
    rollouts = rollouts_of(policy, args.groups, **case)
    credit = Credit(advantages=torch.randn(len(rollouts), generator=torch.Generator().manual_seed(1)))
    batches = {
        way: pack(rollouts, credit, policy, shared_prefix=way == "shared", budget=args.budget) for way in ("shared", "alone")
    }
    seconds: dict[str, list[float]] = {way: [] for way in batches}
    memory = dict.fromkeys(batches, 0)
    difference: dict[str, float] = {}
    for run in range(args.runs + 1):
        results = {}
        for way, batch in batches.items():
            if policy.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            results[way], taken = clock(policy, lambda b=batch: update(policy, b))
            if policy.device.type == "cuda" and way not in difference:
                memory[way] = round(torch.cuda.max_memory_allocated() / 2**20)
            if run:  # the first warms up
                seconds[way].append(taken)
            if run < args.runs:
                results[way] = (results[way][0], [])
        tell({"seconds": seconds})
        if run == args.runs:  # only the last run holds both gradients
            (ours, gradients), (theirs, others) = results["shared"], results["alone"]
            gap = (ours - theirs).abs()
            difference = {"logprob_difference": gap.max().item(), "logprob_mean": gap.mean().item()}
            difference["gradient_difference"] = relative(gradients, others)
    prompt = len(rollouts[0].inputs.ids)
    group, tokens = case["group"], case["tokens"]
    medians = {way: statistics.median(values) for way, values in seconds.items()}
    return {
        "prompt_tokens": prompt,
        "median_s": {way: round(value, 4) for way, value in medians.items()},
        "ratio": round(medians["alone"] / medians["shared"], 2),
        "ratio_of_tokens": round(group * (prompt + tokens) / (prompt + group * tokens), 2),
        "peak_gpu_memory_mb": memory,
        **difference,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", nargs="+", choices=SIZES, default=["3b", "7b"])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--dtype", default="bfloat16")
    for name, default in dict(groups=4, runs=3, budget=16384).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    found: dict[str, Any] = {}
    for size in args.size:
        policy = loaded(size, args.device, args.dtype)
        for name, case in (TINY if size == "tiny" else CASES).items():
            try:
                found[f"{size} {name}"] = compare(policy, case, args, lambda now, n=name: keep({"cases": found | {n: now}}))
            except torch.OutOfMemoryError as error:
                found[f"{size} {name}"] = {"out_of_memory": str(error).splitlines()[0]}
            policy.model.zero_grad()
            keep({"cases": found})
        del policy
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    print(json.dumps({"benchmark": "packing_gpu", **vars(args), "cases": found, "machine": machine()}))


if __name__ == "__main__":
    main()
