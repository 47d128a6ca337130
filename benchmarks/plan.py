"""`mmrl plan` against a real step: predicted and measured memory and seconds, part by part, in one run.

    python benchmarks/plan.py [--size tiny|3b|7b] [--device cpu|cuda] [--prompts 4] [--group 8] [--tokens 32] [--pixels 224]

On a CPU with a small model, in CPU seconds if there is one thread, so that other programs don't count. On a GPU, use `--size 3b
--device cuda --prompts 8 --group 5 --tokens 200 --pixels 512`, with random weights of the published shape. All completions have
the maximum length, as the plan assumes. A ratio is predicted over measured: above 1 the plan overestimates. `--nf4` trains
adapters over weights in 4 bits, `--offload` keeps activations and the optimiser's state in the host's memory. Prints one JSON
object.

    python benchmarks/plan.py --counting Qwen/Qwen2.5-VL-3B-Instruct

How long the passes over a picture are counted of which a plan asks, in processor time, with alike layers once and with every one.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch

from machine import keep, machine
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import PolicyConfig, RlStage, RunConfig
from mmrl.policies.batches import Credit
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.train.plan import Sizes, predict
from mmrl.train.plan.learning import ALL
from mmrl.train.plan.machines import current_machine
from mmrl.train.plan.memory import LOGIT_CHUNK
from mmrl.train.plan.pictures import Pictures, SeenPicture
from mmrl.train.plan.sources import find_shapes
from mmrl.train.plan.traced import saved_by
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack
from on_device import SIZES, name_of, weights_made


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--size", choices=SIZES, default="tiny")
    found.add_argument("--family", default="qwen2_5_vl", help="of the tiny model")
    found.add_argument("--device", default="cpu")
    found.add_argument("--counting", metavar="MODEL", help="compare two ways to count its passes over a picture")
    found.add_argument("--attention", default="auto", help="policy.attn_implementation")
    for name in ("checkpointing", "nf4", "offload"):
        found.add_argument(f"--{name}", action="store_true")
    for name, default in dict(
        prompts=4, group=8, tokens=32, pixels=224, steps=3, budget=16384, hidden=256, layers=6, threads=1
    ).items():
        found.add_argument(f"--{name}", type=int, default=default)
    return found


def compared(args: argparse.Namespace) -> dict[str, Any]:
    """Predicted and measured bytes and seconds."""
    if args.device == "cpu":
        torch.set_num_threads(args.threads)
    name = name_of(args.size) if args.size != "tiny" else f"tiny:{args.family}:hidden={args.hidden},layers={args.layers}"
    config = run_file(args, name)
    found, _ = current_machine(args.device)  # before anything else uses memory
    with weights_made(args.size, args.device):
        policy = VLM(config.policy, device=args.device)
    policy.eos = frozenset()  # no completion ends before its limit
    prompts = made(args)
    inputs = [policy.encode(prompt) for prompt in prompts]
    width, height = inputs[0].model_sizes[0]
    grid = policy.model.config.vision_config
    seen = width * height // (grid.patch_size * grid.spatial_merge_size) ** 2
    sizes = Sizes(text=len(inputs[0].ids) - seen - 2, pixels=width * height, completion=args.tokens)
    plan = predict(config, found, gpus=1, sizes=sizes)
    stage = plan.stages[0]
    memory, seconds = measured(config, policy, prompts, args)
    expected = {part.name: part.bytes for part in stage.parts} | {f"peak: {k}": v for k, v in stage.peaks.items()}
    clock = {part.name: part.seconds for part in stage.seconds}
    return {
        "fits": plan.fits,
        "memory": {k: both(expected[k], v) for k, v in memory.items() if expected.get(k)},
        "seconds": {k: both(clock[k], v) for k, v in seconds.items() if k in clock},
        "step": both(sum(clock[k] for k in seconds if k in clock), sum(seconds.values())),
        "limits": {part.name: part.limit for part in stage.seconds},
        "rates": {k: getattr(found, k) for k in ("flops", "flops32", "bandwidth", "launch")},
    }


def counting(model: str) -> dict[str, Any]:
    """Processor seconds of the passes over a picture: with alike layers counted once, and with every layer computed."""
    seen = find_shapes(PolicyConfig(model=model)).shapes.seeing(1024**2).seen
    assert isinstance(seen, SeenPicture)
    seconds, figures = [], []
    for kinds in (Pictures._kinds, lambda *_: {}):
        with mock.patch.object(Pictures, "_kinds", kinds):
            replace(seen).per_token(2, ALL)  # makes the model, which both share
            one, started = replace(seen), time.process_time()
            figures.append((one.forward(2), one.kept(2, ALL), one.inputs(2, ALL)))
            seconds.append(time.process_time() - started)
    once, each = seconds
    return {"seconds": {"alike once": once, "every layer": each}, "ratio": each / once, "equal": figures[0] == figures[1]}


def main() -> None:
    args = parser().parse_args()
    found = counting(args.counting) if args.counting else compared(args)
    print(json.dumps({"benchmark": "plan", **vars(args), **found, "machine": machine()}))


def run_file(args: argparse.Namespace, name: str) -> RunConfig:
    stage = {"kind": "rl", "steps": 9, "prompts_per_step": args.prompts, "group_size": args.group, "learning_rate": 1e-6}
    policy = {"model": name, "dtype": "float32" if args.device == "cpu" else "bfloat16", "attn_implementation": args.attention}
    if args.nf4:
        policy["lora"] = {"rank": 16, "nf4": ["language"]}
    train = {"micro_batch_tokens": args.budget, "gradient_checkpointing": args.checkpointing or args.offload}
    if args.offload:
        train |= {"offload_activations": True, "offload_optimizer": True}
    return RunConfig.model_validate(
        {
            "name": "plan",
            "policy": policy,
            "tasks": [{"id": "classification/digits"}],
            "stages": [stage],
            "generate": {"max_tokens": args.tokens},
            "train": train,
        }
    )


def made(args: argparse.Namespace) -> list[Prompt]:
    import numpy as np
    from PIL import Image

    rng = np.random.RandomState(0)
    shape = (args.pixels, args.pixels, 3)
    pictures = [Image.fromarray(rng.randint(0, 255, shape, dtype=np.uint8)) for _ in range(args.prompts)]
    return [Prompt(id=str(i), messages=[user_message("What digit is shown?", picture)]) for i, picture in enumerate(pictures)]


def now(policy: VLM) -> float:
    """Seconds of the clock for this device."""
    if policy.device.type == "cuda":
        torch.cuda.synchronize()
    elif torch.get_num_threads() == 1:
        return time.process_time()
    return time.perf_counter()


def timed(policy: VLM, work: Callable[[], Any]) -> tuple[Any, float]:
    started = now(policy)
    result = work()
    return result, now(policy) - started


def both(predicted: float, found: float) -> dict[str, float]:
    return {"predicted": predicted, "measured": found, "ratio": round(predicted / found, 3) if found else 0.0}


def measured(
    config: RunConfig, policy: VLM, prompts: list[Prompt], args: argparse.Namespace
) -> tuple[dict[str, float], dict[str, float]]:
    """(Bytes, seconds) of the parts of a step: without the first step; seconds are medians of the others."""
    stage = config.stages[0]
    assert isinstance(stage, RlStage)
    collector = ConversationCollector(policy, LocalGenerator(policy, config.generate.batch_size))
    learner = Learner(policy, stage, load_algorithm("grpo", {}), train=config.train)
    times: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    for step in range(args.steps + 1):
        inputs, process = timed(policy, lambda: collector.encode(prompts))
        sampling = SamplingParams(max_tokens=args.tokens, temperature=1.0, seed=step)
        one = SamplingParams(max_tokens=1, temperature=1.0, seed=step)
        _, prefill = timed(policy, lambda i=inputs, s=one: collector.collect(prompts, i, args.group, s))
        with peak(policy) as sampled:
            rollouts, generate = timed(policy, lambda i=inputs, s=sampling: collector.collect(prompts, i, args.group, s))
        batch = pack(rollouts, Credit(advantages=torch.randn(len(rollouts))), policy, shared_prefix=True, budget=args.budget)
        with parts_of(policy, learner) as took, peak(policy) as learned:
            _, update = timed(policy, lambda b=batch: learner.update([b], 0))
        found = {"process": process, "generate: prefill": prefill, "generate: decode": generate - prefill}
        found |= {"update: forward": took["forward"], "update: optimiser": took["optimiser"]}
        found["update: backward"] = update - took["forward"] - took["optimiser"]
        for key, value in found.items():
            times.setdefault(key, []).append(value)
        memory |= {"peak: generate": sampled[0], "peak: update": learned[0]}
        keep({"measured_s": times, "measured_bytes": memory})
    fixed = held(policy, learner)
    if args.device == "cpu":
        memory = with_pressure(config, policy, prompts, batch, learner, collector, args, sum(fixed.values()))
    if not args.checkpointing:  # otherwise a layer that the backward pass recomputes is included
        memory["activations"] = kept(policy, batch.micro)
    return memory | fixed, {key: statistics.median(values[1:]) for key, values in times.items()}


def held(policy: VLM, learner: Learner) -> dict[str, float]:
    """Bytes of weights, masters and the optimiser's state."""
    size = lambda tensors: float(sum(t.untyped_storage().nbytes() for t in tensors))  # noqa: E731
    own = list(policy.model.parameters())
    masters = [m for m, (_, p) in zip(learner.optimizer.masters, learner.optimizer.named, strict=True) if m is not p]
    state = [t for values in learner.optimizer.rule.state.values() for t in values.values() if t.numel() > 1]
    return {"weights": size(own), "float32 masters": size(masters), "optimiser": size(state)}


def kept(policy: VLM, micro: Any) -> float:
    """Bytes that the largest micro-batch keeps for its backward pass, without logits."""
    largest = 0
    for one in micro:
        logits = len(one.target_L) * len(policy.bias_V)
        bytes_ = saved_by(lambda one=one: policy.logprobs(one, 1.0))  # type: ignore[misc]
        largest = max(largest, bytes_ - (4 * logits if logits <= LOGIT_CHUNK else 0))
    return float(largest)


@contextmanager
def peak(policy: VLM) -> Iterator[list[float]]:
    """Yields the peak bytes of a GPU's allocator inside the block; an empty list on a CPU."""
    found = [0.0]
    if policy.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    yield found
    if policy.device.type == "cuda":
        found[0] = float(torch.cuda.max_memory_allocated())


def with_pressure(
    config: RunConfig, policy: VLM, prompts: list[Prompt], batch: Any, learner: Learner, collector: Any, args: Any, base: float
) -> dict[str, float]:
    """On a CPU: peak bytes allocated by torch, from its profiler, plus the bytes from before."""
    inputs = collector.encode(prompts)
    sampling = SamplingParams(max_tokens=args.tokens, temperature=1.0, seed=0)
    works: dict[str, Callable[[], Any]] = {
        "peak: generate": lambda: collector.collect(prompts, inputs, args.group, sampling),
        "peak: update": lambda: learner.update([batch], 0),
    }
    found = {}
    for name, work in works.items():
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
            work()
        events = [e for e in profiler.profiler.kineto_results.events() if e.name() == "[memory]"]
        level = most = 0
        for event in sorted(events, key=lambda e: e.start_ns()):
            level += event.nbytes()
            most = max(most, level)
        found[name] = base + most
    return found


@contextmanager
def parts_of(policy: VLM, learner: Learner) -> Iterator[dict[str, float]]:
    """Yields the seconds of an update's forward passes and of its optimiser."""
    took = {"forward": 0.0, "optimiser": 0.0}
    outputs, step, gather = policy.outputs, learner.optimizer.step, learner.optimizer.gather

    def watched(key: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            result, seconds = timed(policy, lambda: function(*args, **kwargs))
            took[key] += seconds
            return result

        return call

    policy.outputs = watched("forward", outputs)  # type: ignore[method-assign]
    learner.optimizer.step = watched("optimiser", step)  # type: ignore[method-assign]
    learner.optimizer.gather = watched("optimiser", gather)  # type: ignore[method-assign]
    try:
        yield took
    finally:
        policy.outputs, learner.optimizer.step, learner.optimizer.gather = outputs, step, gather  # type: ignore[method-assign]


if __name__ == "__main__":
    main()
