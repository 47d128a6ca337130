"""Whole GRPO steps of a full-size Qwen2.5-VL with random weights on a GPU: tokens per second, seconds by stage, memory, MFU.

    python benchmarks/step_gpu.py [--size 3b|7b|tiny] [--prompts 64] [--group 5] [--prompt-tokens 1000] [--tokens 200]
        [--pixels 512] [--steps 3] [--budget 16384] [--no-checkpointing] [--lora RANK] [--no-profile] [--compile]

Needs no download: the shapes are those of the published configs. A step includes processing the pictures, sampling with the
embedded sampler, packing, and one update. No completion ends before its limit, so every step has the same work. Tokens per second
count prompt and completion of every rollout, as in EasyR1 (1,800 per GPU on an H100), although a group's prompt is computed once.
`--size 7b` needs `--lora`: its float32 masters and moments don't fit on one GPU.

MFU is the floating-point operations that the step's tokens need, divided by those that the GPU could do in the step's time:

    forward(tokens, seen, scored) = tokens * (2 * weights of the layers + 4 * layers * hidden * seen) + scored * 2 * weights of the output layer
    prompt     = forward(T, T / 2, 0) + patches * (2 * weights of the vision tower + 4 * its depth * its hidden * 64)
    completion = forward(C, T + C / 2, C)
    step       = P * prompt + P * G * completion              sampling
               + 3 * (P * prompt + P * G * completion)        update: a backward pass costs two forward passes
    mfu        = step / (seconds * peak)                      the GPU's dense bfloat16 rate by its data sheet

Prompts count once per group, as they are computed once; operations that checkpointing repeats don't count. `mfu_unshared` counts
prompts once per completion, for comparison with systems that compute them so. `kernels` has the costliest ones of sampling eight
tokens and of the update on them, after the timed steps. If memory runs out, `--budget` and `--at-once` are halved, twice at most,
and `error` says so. `--compile` adds, after the steps, updates without and with `train.compile`
in turn on one batch, with the first of each apart, as it compiles. `--size tiny --device cpu` runs the same code anywhere. Prints one JSON
object."""  # noqa: E501

from __future__ import annotations

import argparse
import gc
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from machine import keep, machine, profiled
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import RlStage, TrainConfig
from mmrl.policies.batches import Credit
from mmrl.policies.compiling import kind_of
from mmrl.policies.layers import repeated_layers
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.train.plan.machines import current_machine
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack
from model_shapes import Shape, shape_of
from on_device import check_room, loaded, sized, sized_parser

WORK = dict(prompts=64, group=5, prompt_tokens=1000, tokens=200, pixels=512, steps=3, budget=16384)
TINY = WORK | dict(prompts=4, prompt_tokens=80, tokens=16, pixels=112, steps=2)
KERNELS = 10
"""Costliest kernels of a profile that are shown."""


def prompts_of(policy: VLM, count: int, pixels: int, tokens: int) -> list[Prompt]:
    """Prompts with a random picture each and text up to `tokens` tokens, or the shortest possible text."""
    import numpy as np
    from PIL import Image

    rng = np.random.RandomState(0)
    pictures = [Image.fromarray(rng.randint(0, 255, (pixels, pixels, 3), dtype=np.uint8)) for _ in range(count)]
    asked = lambda words: "What digit is shown?" + " x" * words  # noqa: E731
    length = lambda words: len(policy.encode(Prompt(messages=[user_message(asked(words), pictures[0])])).ids)  # noqa: E731
    fewest = length(0)
    words = max(0, math.ceil((tokens - fewest) / ((length(64) - fewest) / 64)))
    return [Prompt(id=str(i), messages=[user_message(asked(words), p)]) for i, p in enumerate(pictures)]


def flops(shape: Shape, prompts: int, group: int, prompt: int, completion: int, patches: int) -> dict[str, float]:
    """Floating-point operations that a step needs: `sample`, `update`, and `unshared`, both with a prompt for each completion."""
    asked = shape.text_flops(prompt, prompt / 2, 0) + shape.vision_flops(patches)
    answered = shape.text_flops(completion, prompt + completion / 2, completion)
    shared, unshared = prompts * (asked + group * answered), prompts * group * (asked + answered)
    return {"sample": shared, "update": 3 * shared, "unshared": 4 * unshared}


def clock(policy: VLM, work: Callable[[], Any]) -> tuple[Any, float]:
    wait(policy)
    started = time.perf_counter()
    result = work()
    wait(policy)
    return result, time.perf_counter() - started


def wait(policy: VLM) -> None:
    if policy.device.type == "cuda":
        torch.cuda.synchronize()


class Step:
    """Runs steps and times their parts."""

    def __init__(self, policy: VLM, args: argparse.Namespace) -> None:
        self.policy, self.args = policy, args
        self.prompts = prompts_of(policy, args.prompts, args.pixels, args.prompt_tokens)
        self.collector = ConversationCollector(policy, LocalGenerator(policy, args.at_once or args.prompts * args.group))
        stage = RlStage(kind="rl", steps=99, learning_rate=1e-6)
        self.learner = Learner(
            policy, stage, load_algorithm("grpo", {}), train=TrainConfig(gradient_checkpointing=not args.no_checkpointing)
        )
        self.inputs: list[Any] = []
        self.gap = 0.0
        self.peaks: dict[str, int] = {}
        """Part of a step -> the most MiB of GPU memory during it."""

    def __call__(self, number: int) -> dict[str, float]:
        """Seconds of `process`, `generate`, `pack`, `update`, `step`; and of `prefill`, in a separate pass outside the step."""
        args = self.args
        seconds: dict[str, float] = {}

        def part(name: str, work: Callable[[], Any]) -> Any:
            if self.policy.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            result, seconds[name] = clock(self.policy, work)
            print(f"step {number}: {name} {seconds[name]:.3f} s", file=sys.stderr, flush=True)
            if self.policy.device.type == "cuda":
                self.peaks[name] = max(self.peaks.get(name, 0), round(torch.cuda.max_memory_allocated() / 2**20))
            return result

        self.inputs = part("process", lambda: self.collector.encode(self.prompts))
        rollouts = part("generate", lambda: self.sample(args.tokens, number))
        assert all(r.length == args.tokens for r in rollouts)
        batch = part("pack", lambda: self.packed(rollouts, number))
        metrics = part("update", lambda: self.learner.update([batch], number))
        self.gap = metrics["logprob_gap"]
        seconds["step"] = sum(seconds.values())
        part("prefill", lambda: self.sample(1, number))
        return seconds

    def sample(self, tokens: int, number: int) -> list[Any]:
        sampling = SamplingParams(max_tokens=tokens, temperature=1.0, seed=number)
        return self.collector.collect(self.prompts, self.inputs, self.args.group, sampling)

    def packed(self, rollouts: list[Any], number: int) -> Any:
        advantages = torch.randn(len(rollouts), generator=torch.Generator().manual_seed(number))
        return pack(rollouts, Credit(advantages=advantages), self.policy, shared_prefix=True, budget=self.args.budget)

    def profile(self, tokens: int = 8) -> dict[str, list[dict[str, Any]]]:
        """The costliest kernels of sampling a few tokens, and of the update on them; as text in the file for profiles."""
        rollouts: list[Any] = []
        return {
            "generate": kernels(self.policy, f"prompts and {tokens} tokens", lambda: rollouts.extend(self.sample(tokens, 99))),
            "update": kernels(self.policy, "update", lambda: self.learner.update([self.packed(rollouts, 99)], 99)),
        }


def kernels(policy: VLM, title: str, work: Callable[[], Any]) -> list[dict[str, Any]]:
    """The costliest kernels of a piece of work, on a CPU its operations: name, calls, milliseconds, share of all their time."""
    on_gpu = policy.device.type == "cuda"
    activities = [torch.profiler.ProfilerActivity.CPU, *([torch.profiler.ProfilerActivity.CUDA] if on_gpu else [])]
    with torch.profiler.profile(activities=activities) as profiler:
        _, seconds = clock(policy, work)
    averages = profiler.key_averages()
    spent = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    table = averages.table(sort_by=spent, row_limit=KERNELS, max_name_column_width=70)
    profiled(f"{title}: {seconds:.3f} s under the profiler", table)
    rows = [row for row in averages if not on_gpu or row.device_type == torch.autograd.DeviceType.CUDA]
    whole = sum(getattr(row, spent) for row in rows) or 1.0
    rows.sort(key=lambda row: -getattr(row, spent))
    found = [(row.key[:80], row.count, getattr(row, spent)) for row in rows[:KERNELS]]
    shown = [{"name": n, "calls": c, "ms": round(us / 1e3, 2), "share": round(us / whole, 3)} for n, c, us in found]
    return [{"all_ms": round(whole / 1e3, 1), "wall_ms": round(seconds * 1e3, 1)}, *shown]


def compiled(policy: VLM, learner: Learner, update: Callable[[], Any]) -> dict[str, Any]:
    """Seconds of an update without and with compiled layers: `first_s`, which also compiles, and the median of three rounds, in
    turn. `failures`: of kinds of layers."""
    rows: dict[str, list[float]] = {"eager": [], "compiled": []}
    before = learner.train
    for _ in range(4):
        for name, seconds in rows.items():
            learner.train = before.model_copy(update={"compile": name == "compiled"})
            seconds.append(clock(policy, update)[1])
            print(f"{name} update: {seconds[-1]:.3f} s", file=sys.stderr, flush=True)
    learner.train = before
    kinds = {type(layer) for layer in repeated_layers(policy.model)}
    medians = {name: statistics.median(seconds[1:]) for name, seconds in rows.items()}
    return {
        "first_s": {name: round(seconds[0], 4) for name, seconds in rows.items()},
        "median_s": {name: round(seconds, 4) for name, seconds in medians.items()},
        "ratio": round(medians["eager"] / medians["compiled"], 3),
        "failures": {kind.__name__: failure for kind in kinds if (failure := kind_of(kind).failure)},
    }


def lowering(
    measure: Callable[[argparse.Namespace, dict[str, Any]], None], args: argparse.Namespace, lower: Callable[[], None]
) -> dict[str, Any]:
    """What a measurement found. If memory runs out, it is repeated with settings that `lower` lowers, at most twice; `error` then
    says how often and where, and what the last try had found is kept."""
    errors: list[str] = []
    found: dict[str, Any] = {}
    for _ in range(3):
        found = {**vars(args), **({"error": errors} if errors else {})}
        try:
            measure(args, found)
            return found
        except torch.OutOfMemoryError as error:
            errors.append(str(error).partition(". GPU")[0].splitlines()[0])
        print(f"out of memory: {errors[-1]}", file=sys.stderr)
        lower()
        gc.collect()
        torch.cuda.empty_cache()
    return found | {"error": errors}


def measured(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Adds what the steps take to `found`."""
    started = time.perf_counter()
    policy = loaded(args.size, args.device, lora=args.lora)
    wait(policy)
    found["pads"] = policy.family.pads_prompts
    if not found["pads"]:  # prompts have one length here, so that they can be decoded together all the same
        policy.family.use(replace(policy.family.capabilities, pads=True))
    found["loaded_s"] = round(time.perf_counter() - started, 1)
    step = Step(policy, args)
    wait(policy)
    found["built_s"] = round(time.perf_counter() - started, 1)
    print(
        f"loaded after {found['loaded_s']} s, built after {found['built_s']} s: {policy.family.capabilities}",
        file=sys.stderr,
        flush=True,
    )
    machine_, _ = current_machine(args.device) if policy.device.type == "cuda" else (None, 1)
    peak = args.peak or (machine_.flops if machine_ else 0.0)
    rows: list[dict[str, float]] = []
    for number in range(args.steps + 1):
        rows.append(step(number))
        found |= figures(step, rows[1:] or rows, peak)  # the first one warms up
        keep(found)
    found["warm_up_s"] = {name: round(value, 3) for name, value in rows[0].items()}
    if args.compile:
        batch = step.packed(step.sample(args.tokens, 0), 0)
        found["compile"] = compiled(policy, step.learner, lambda: step.learner.update([batch], 0))
        keep(found)
    if not args.no_profile:
        try:
            found["kernels"] = step.profile()
        except torch.OutOfMemoryError as error:
            found["kernels"] = str(error).splitlines()[0]


def figures(step: Step, rows: list[dict[str, float]], peak: float) -> dict[str, Any]:
    """What some steps come to. peak: operations per second that the GPU could do, 0 if unknown."""
    args, policy = step.args, step.policy
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    prompt, patches = len(step.inputs[0].ids), step.inputs[0].media["pixel_values"].shape[0]
    config = policy.model.config
    shape = shape_of(config.text_config.to_dict(), config.vision_config.to_dict(), tied=config.tie_word_embeddings)
    needed = flops(shape, args.prompts, args.group, prompt, args.tokens, patches)
    tokens = args.prompts * args.group * (prompt + args.tokens)
    found = {
        "counted_steps": len(rows),
        "prompt_tokens": prompt,
        "patches": patches,
        "tokens_per_s": round(tokens / medians["step"]),
        "tokens_per_s_runs": [round(tokens / row["step"]) for row in rows],
        "median_s": {name: round(value, 4) for name, value in medians.items()},
        "decode_step_s": round((medians["generate"] - medians["prefill"]) / max(1, args.tokens - 1), 5),
        "flops": {name: float(f"{value:.4g}") for name, value in needed.items()},
        "logprob_gap": step.gap,
        "weights": shape.weights,
    }
    if peak:
        found |= {
            "peak": peak,
            "mfu": round((needed["sample"] + needed["update"]) / medians["step"] / peak, 4),
            "mfu_update": round(needed["update"] / medians["update"] / peak, 4),
            "mfu_unshared": round(needed["unshared"] / medians["step"] / peak, 4),
        }
    if step.peaks:
        found |= {"peaks_mb": step.peaks, "peak_gpu_memory_mb": max(step.peaks.values())}
    return found


def main() -> None:
    parser = sized_parser(__doc__, WORK, TINY)
    parser.add_argument("--at-once", type=int, default=0, help="completions decoded at once; 0 for all of a step")
    parser.add_argument("--no-checkpointing", action="store_true", help="keep activations instead of recomputing them")
    parser.add_argument("--no-profile", action="store_true", help="leave out the costliest kernels")
    parser.add_argument("--compile", action="store_true", help="compare updates with and without compiled layers")
    parser.add_argument("--lora", type=int, default=0, help="train adapters of this rank instead of all weights")
    parser.add_argument("--peak", type=float, default=0.0, help="operations per second of the GPU, if not its data sheet's")
    args = sized(parser.parse_args(), WORK, TINY)
    check_room(parser, args)
    asked = {"budget": args.budget, "at_once": args.at_once}

    def lower() -> None:
        args.budget, args.at_once = args.budget // 2, max(args.group, (args.at_once or args.prompts * args.group) // 2)

    found = lowering(measured, args, lower)
    print(json.dumps({"benchmark": "step_gpu", **found, "asked": asked, "machine": machine()}))


if __name__ == "__main__":
    main()
