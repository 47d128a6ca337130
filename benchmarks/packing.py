"""Shared-prefix packing against one sequence per completion: the same update, timed in turn, and the difference of the results.

    python benchmarks/packing.py [--pixels 448] [--group 8] [--tokens 32] [--runs 3] [--device cuda --dtype bfloat16]

For each family: forward and backward of one group's GRPO update with both layouts; the greatest difference of logprobs and the
relative difference of gradients. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from machine import machine
from mmrl.algorithms.loss import LossInputs, average, clipped_surrogate
from mmrl.api.episodes import Conversation
from mmrl.api.types import Prompt, Rollout, Status, Turn, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import Batch, Credit
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.update.pack_conversations import pack

FAMILIES = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


def group_of(policy: VLM, pixels: int, group: int, tokens: int, images: int) -> list[Rollout]:
    """One prompt with random pictures and ragged completions, the longest of `tokens`."""
    import numpy as np
    from PIL import Image

    rng = np.random.RandomState(0)
    pictures = [Image.fromarray(rng.randint(0, 255, (pixels, pixels, 3), dtype=np.uint8)) for _ in range(images)]
    prompt = Prompt(messages=[user_message("What digit is shown?", *pictures)])
    inputs = policy.encode(prompt)
    allowed = [i for i in range(len(policy.bias_V)) if i not in policy.banned]
    made = []
    for n in range(group):
        ids = tuple(int(i) for i in rng.choice(allowed, tokens - n % 4))
        turn = Turn(observed_ids=tuple(inputs.ids.tolist()), token_ids=ids, logprobs=(0.0,) * len(ids), text="")
        made.append(Conversation(prompt=prompt, group=0, turns=(turn,), status=Status.FINISHED, inputs=inputs))
    return made


def update(policy: VLM, batch: Batch) -> tuple[torch.Tensor, torch.Tensor, float]:
    """(logprobs ordered by rollout and position, gradient, seconds) of one forward and backward."""
    policy.model.zero_grad()
    synchronise(policy)
    started = time.perf_counter()
    found = []
    for micro in batch.micro:
        logprobs, _ = policy.logprobs(micro, 1.0)
        loss, _ = clipped_surrogate(
            LossInputs(
                logprobs_L=logprobs,
                old_logprobs_L=logprobs.detach(),
                advantages_L=micro.advantages_L,
                rollout_L=micro.rollout_L,
                lengths_N=batch.lengths_N,
            )
        )
        average(loss, micro, batch, "token").backward()
        found.append((micro.rollout_L, logprobs.detach()))
    synchronise(policy)
    seconds = time.perf_counter() - started
    owner, values = (torch.cat(x) for x in zip(*found, strict=True))
    gradient = torch.cat([p.grad.float().flatten() for _, p in policy.parameters() if p.grad is not None])
    return values[owner.argsort(stable=True)], gradient, seconds


def synchronise(policy: VLM) -> None:
    if policy.device.type == "cuda":
        torch.cuda.synchronize()


def compare(family: str, args: argparse.Namespace) -> dict[str, Any]:
    name = f"tiny:{family}:hidden={args.hidden},layers={args.layers}"
    policy = VLM(PolicyConfig(model=name, dtype=args.dtype), device=args.device)
    rollouts = group_of(policy, args.pixels, args.group, args.tokens, args.images)
    credit = Credit(advantages=torch.linspace(-1, 1, args.group) + 0.01)
    shared = pack(rollouts, credit, policy, shared_prefix=True, budget=10**6)
    alone = pack(rollouts, credit, policy, shared_prefix=False, budget=10**6)
    seconds: dict[str, list[float]] = {"shared": [], "per_completion": []}
    for run in range(args.runs + 1):
        a, b = update(policy, shared), update(policy, alone)
        if run:  # the first warms up
            seconds["shared"].append(a[2])
            seconds["per_completion"].append(b[2])
    medians = {k: statistics.median(v) for k, v in seconds.items()}
    return {
        "median_s": {k: round(v, 4) for k, v in medians.items()},
        "ratio": round(medians["per_completion"] / medians["shared"], 2),
        "logprob_difference": (a[0] - b[0]).abs().max().item(),
        "gradient_difference": ((a[1] - b[1]).norm() / b[1].norm()).item(),
        "prompt_tokens": len(rollouts[0].inputs.ids),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in dict(pixels=448, group=8, tokens=32, images=1, runs=3, hidden=256, layers=6, threads=2).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = {family: compare(family, args) for family in FAMILIES}
    print(json.dumps({"benchmark": "packing", **vars(args), "families": results, "machine": machine()}))


if __name__ == "__main__":
    main()
