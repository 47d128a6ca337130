"""A group that shares its prompt against one prompt per completion: the same update and the same sampling, timed in turn.

    python benchmarks/packing.py [--family qwen3_5,gemma3] [--pixels 448] [--group 8] [--tokens 32] [--runs 3] [--threads 2]
                                 [--limit 600] [--device cuda --dtype bfloat16]

All families by default, each in a process of its own that is ended after `--limit` seconds. For each: forward and backward of
one group's GRPO update in both layouts; the greatest difference of logprobs and the relative difference of gradients, against
the model's own forward pass; what a forward keeps for the backward pass; sampling of the group from one prompt, and from as
many copies of it. A picture of 448 x 448 pixels has 256 tokens in Qwen2.5-VL; families whose tiny checkpoints have pictures
of fewer tokens are shown several, up to about as many tokens. Prints a row of a table (to stderr) when a family is done, and
one JSON object at the end. On a CPU, seconds are those of the processor. The aim is an update 4 times as fast for models of
attention alone, and 3 times where layers have a state.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import replace
from typing import Any

import torch

from machine import machine
from mmrl.algorithms.loss import LossInputs, average, clipped_surrogate
from mmrl.api.episodes import Conversation
from mmrl.api.types import Prompt, Rollout, Status, Turn, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.policies.batches import Batch, Credit
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.capabilities import UNKNOWN
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.train.update.pack_conversations import pack

CELL = 28
"""Edge in pixels of what Qwen2.5-VL makes a token of."""
AIMS = {False: 4.0, True: 3.0}
"""Whether layers have a state -> the least ratio of the update."""
COLUMNS = ("family", "update", "sampling", "kept for backward", "difference of logprobs", "of gradients", "prompt tokens", "aim")


def group_of(policy: VLM, pixels: int, group: int, tokens: int, images: int) -> list[Rollout]:
    """One prompt with random pictures, or sounds, and ragged completions, the longest of `tokens`."""
    import numpy as np
    from PIL import Image

    rng = np.random.RandomState(0)
    pictures = [Image.fromarray(rng.randint(0, 255, (pixels, pixels, 3), dtype=np.uint8)) for _ in range(images)]
    media = pictures if policy.family.sees else [*policy.family.samples()] * images
    prompt = Prompt(messages=[user_message("What digit is shown?", *media)])
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
    started = clock(policy)
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
    seconds = clock(policy) - started
    owner, values = (torch.cat(x) for x in zip(*found, strict=True))
    gradient = torch.cat([p.grad.float().flatten() for _, p in policy.parameters() if p.grad is not None])
    return values[owner.argsort(stable=True)], gradient, seconds


def saved_mb(policy: VLM, batch: Batch) -> float:
    """MB of all tensors but weights that a forward pass keeps for the backward pass."""
    weights = {p.untyped_storage().data_ptr() for _, p in policy.parameters()}
    kept: dict[int, int] = {}

    def note(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return value

    with torch.autograd.graph.saved_tensors_hooks(note, lambda value: value):
        held = [policy.logprobs(micro, 1.0) for micro in batch.micro]
        del held
    return sum(kept.values()) / 2**20


def clock(policy: VLM) -> float:
    """Seconds; on a CPU those of this process alone, so that other programs don't count."""
    return time.process_time() if policy.device.type == "cpu" else time.perf_counter()


def synchronise(policy: VLM) -> None:
    if policy.device.type == "cuda":
        torch.cuda.synchronize()


def compare(family: str, args: argparse.Namespace) -> dict[str, Any]:
    name = f"tiny:{family}:hidden={args.hidden},layers={args.layers}"
    policy = VLM(PolicyConfig(model=name, dtype=args.dtype), device=args.device)
    images = args.images or pictures_for(policy, args.pixels)
    rollouts = group_of(policy, args.pixels, args.group, args.tokens, images)
    credit = Credit(advantages=torch.linspace(-1, 1, args.group) + 0.01)
    shared = pack(rollouts, credit, policy, shared_prefix=True, budget=10**6)
    can = policy.family.capabilities
    policy.family.use(UNKNOWN)
    own = policy.encode(rollouts[0].prompt)
    alone = pack([replace(r, inputs=own) for r in rollouts], credit, policy, shared_prefix=False, budget=10**6)
    inputs = rollouts[0].inputs
    generator = LocalGenerator(policy)
    seconds: dict[str, list[float]] = {name: [] for name in ("shared", "alone", "sampled_shared", "sampled_alone")}
    for run in range(args.runs + 1):
        policy.family.use(can)
        a = update(policy, shared)
        sampled = [sample(generator, [inputs] * copies, args.group // copies, args.tokens) for copies in (1, args.group)]
        policy.family.use(UNKNOWN)
        b = update(policy, alone)
        if run:  # the first warms up
            for name, value in zip(seconds, (a[2], b[2], *sampled), strict=True):
                seconds[name].append(value)
    saved = {"alone": saved_mb(policy, alone)}
    policy.family.use(can)
    saved["shared"] = saved_mb(policy, shared)
    medians = {k: statistics.median(v) for k, v in seconds.items()}
    return {
        "state": bool(can.recurrent),
        "update_ratio": round(medians["alone"] / medians["shared"], 2),
        "sampling_ratio": round(medians["sampled_alone"] / medians["sampled_shared"], 2),
        "saved_ratio": round(saved["alone"] / saved["shared"], 2),
        "saved_mb": {k: round(v, 1) for k, v in saved.items()},
        "logprob_difference": float(f"{(a[0] - b[0]).abs().max().item():.2g}"),
        "gradient_difference": float(f"{((a[1] - b[1]).norm() / b[1].norm()).item():.2g}"),
        "median_s": {k: round(v, 4) for k, v in medians.items()},
        "pictures": images,
        "prompt_tokens": len(inputs.ids),
    }


def pictures_for(policy: VLM, pixels: int) -> int:
    """How many pictures have about as many tokens as one of this size in Qwen2.5-VL."""
    from PIL import Image

    counts = []
    for images in (1, 2):
        shown = [Image.new("RGB", (pixels, pixels))] * images
        counts.append(len(policy.encode(Prompt(messages=[user_message("What digit is shown?", *shown)])).ids))
    if counts[1] <= counts[0]:  # a single one is cut into tiles, and several aren't
        counts = [0, counts[1] // 2]
    return max(1, round((pixels / CELL) ** 2 / (counts[1] - counts[0])))


def sample(generator: LocalGenerator, inputs: list[Any], group: int, tokens: int) -> float:
    synchronise(generator.policy)
    started = clock(generator.policy)
    generator.generate(inputs, group, SamplingParams(max_tokens=tokens, temperature=1.0))
    synchronise(generator.policy)
    return clock(generator.policy) - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in dict(pixels=448, group=8, tokens=32, images=0, runs=3, hidden=256, layers=6, threads=2).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--family", default=",".join(tiny.FAMILIES))
    parser.add_argument("--limit", type=int, default=600, help="seconds for each family")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    families = args.family.split(",")
    if len(families) == 1:
        results = {args.family: compare(args.family, args)}
    else:
        print("|", " | ".join(COLUMNS), "|\n" + "|---" * len(COLUMNS) + "|", file=sys.stderr, flush=True)
        results = {family: apart(family, args) for family in families}
    print(json.dumps({"benchmark": "packing", **vars(args), "families": results, "machine": machine()}))


def apart(family: str, args: argparse.Namespace) -> dict[str, Any]:
    """The comparison of a family in a process of its own; an entry `failed` if it ends otherwise or takes too long."""
    options = [text for name, value in vars(args).items() if name != "family" for text in (f"--{name}", str(value))]
    command = [sys.executable, __file__, "--family", family, *options]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=args.limit)
        found = json.loads(done.stdout)["families"][family] if done.returncode == 0 else {"failed": done.stderr[-300:]}
    except subprocess.TimeoutExpired:
        found = {"failed": f"it took more than {args.limit} s"}
    print(row(family, found), file=sys.stderr, flush=True)
    return found


def row(family: str, found: dict[str, Any]) -> str:
    """A family's row in the table."""
    if "failed" in found:
        return f"| {family} | {' '.join(found['failed'].split())[-150:]} |"
    times = [f"{found[name]:.1f} times" for name in ("update_ratio", "sampling_ratio", "saved_ratio")]
    gaps = [f"{found[name]:.0e}" for name in ("logprob_difference", "gradient_difference")]
    aim = AIMS[found["state"]]
    reached = "reached" if found["update_ratio"] >= aim else f"below {aim:g}"
    return f"| {' | '.join([family, *times, *gaps, str(found['prompt_tokens']), reached])} |"


if __name__ == "__main__":
    main()
