"""Whole GRPO steps of a full-size Qwen2.5-VL with random weights on a GPU: tokens per second, seconds by stage, memory, MFU.

    python benchmarks/step_gpu.py [--size 3b|7b|tiny] [--prompts 64] [--group 5] [--prompt-tokens 1000] [--tokens 200]
        [--pixels 512] [--steps 3] [--budget 16384] [--no-checkpointing] [--lora RANK]

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
    mfu        = step / (seconds * --peak)

Prompts count once per group, as they are computed once; operations that checkpointing repeats don't count. `mfu_unshared` counts
prompts once per completion, for comparison with systems that compute them so. `--size tiny --device cpu` runs the same code
anywhere. Prints one JSON object."""  # noqa: E501

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from machine import machine
from mmrl.algorithms.presets import load_algorithm
from mmrl.api.types import Prompt, user_message
from mmrl.compute.torchvision import prepare_torchvision
from mmrl.config.sections import LoraConfig, PolicyConfig, RlStage
from mmrl.policies.batches import Credit
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.turns import ConversationCollector
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_conversations import pack
from model_shapes import CONFIGS, Shape, shape_of

WORK = dict(prompts=64, group=5, prompt_tokens=1000, tokens=200, pixels=512, steps=3, budget=16384)
TINY = WORK | dict(prompts=4, prompt_tokens=80, tokens=16, pixels=112, steps=2)
H200_PEAK = 989e12
"""Dense bfloat16 operations per second, from NVIDIA's data sheet."""


def config_of(size: str, small: Any) -> Any:
    """The published shapes with the ids of a tiny model's config, so that the tiny model's processor works."""
    import transformers

    published, tied = CONFIGS[size], CONFIGS[size]["tie_word_embeddings"]
    text = small.text_config.to_dict() | published["text_config"] | {"rope_theta": 1e6, "layer_types": None}
    text["tie_word_embeddings"] = tied
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    names = ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    ids = {name: getattr(small, name) for name in names}
    return transformers.Qwen2_5_VLConfig(
        text_config=text, vision_config=published["vision_config"], tie_word_embeddings=tied, **ids
    )


def checkpoint(size: str) -> str:
    """A folder with a checkpoint of that size, or the name of a tiny model."""
    if size == "tiny":
        return "tiny:qwen2_5_vl"
    prepare_torchvision()
    import transformers

    small, processor = tiny.build("qwen2_5_vl")
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.Qwen2_5_VLForConditionalGeneration(config_of(size, small.config))
        torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = small.generation_config.eos_token_id
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def loaded(size: str, device: str, dtype: str = "bfloat16", lora: int = 0) -> VLM:
    """A policy of that size that never ends a completion."""
    name = checkpoint(size)
    adapters = LoraConfig(rank=lora, alpha=lora, target_modules=["vision", "projector", "language"]) if lora else None
    policy = VLM(PolicyConfig(model=name, dtype=dtype, lora=adapters), device=device)
    if size != "tiny" and not lora:
        shutil.rmtree(name)
    policy.bias_V[list(policy.eos)] = -torch.inf
    return policy


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
        self.learner = Learner(policy, stage, load_algorithm("grpo", {}), checkpointed=not args.no_checkpointing)
        self.inputs: list[Any] = []
        self.gap = 0.0

    def __call__(self, number: int) -> dict[str, float]:
        """Seconds of `process`, `generate`, `pack`, `update`, `step`; and of `prefill`, in a separate pass outside the step."""
        args, policy = self.args, self.policy
        sampling = lambda tokens: SamplingParams(max_tokens=tokens, temperature=1.0, seed=number)  # noqa: E731
        credit = Credit(advantages=torch.randn(args.prompts * args.group, generator=torch.Generator().manual_seed(number)))
        seconds: dict[str, float] = {}
        self.inputs, seconds["process"] = clock(policy, lambda: self.collector.encode(self.prompts))
        rollouts, seconds["generate"] = clock(
            policy, lambda: self.collector.collect(self.prompts, self.inputs, args.group, sampling(args.tokens))
        )
        assert all(r.length == args.tokens for r in rollouts)
        batch, seconds["pack"] = clock(policy, lambda: pack(rollouts, credit, policy, shared_prefix=True, budget=args.budget))
        metrics, seconds["update"] = clock(policy, lambda: self.learner.update([batch], number))
        self.gap = metrics["logprob_gap"]
        seconds["step"] = sum(seconds.values())
        _, seconds["prefill"] = clock(policy, lambda: self.collector.collect(self.prompts, self.inputs, args.group, sampling(1)))
        return seconds


def measured(args: argparse.Namespace) -> dict[str, Any]:
    policy = loaded(args.size, args.device, lora=args.lora)
    step = Step(policy, args)
    if policy.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    rows = [step(number) for number in range(args.steps + 1)][1:]  # the first one warms up
    medians = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    prompt, patches = len(step.inputs[0].ids), step.inputs[0].media["pixel_values"].shape[0]
    config = policy.model.config
    shape = shape_of(config.text_config.to_dict(), config.vision_config.to_dict(), tied=config.tie_word_embeddings)
    needed = flops(shape, args.prompts, args.group, prompt, args.tokens, patches)
    tokens = args.prompts * args.group * (prompt + args.tokens)
    found = {
        **vars(args),
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
    if policy.device.type == "cuda":
        found |= {
            "mfu": round((needed["sample"] + needed["update"]) / medians["step"] / args.peak, 4),
            "mfu_update": round(needed["update"] / medians["update"] / args.peak, 4),
            "mfu_unshared": round(needed["unshared"] / medians["step"] / args.peak, 4),
            "peak_gpu_memory_mb": round(torch.cuda.max_memory_allocated() / 2**20),
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["tiny", "3b", "7b"], default="3b")
    parser.add_argument("--device", default="cuda")
    for name, value in WORK.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"{value}; {TINY[name]} with --size tiny")
    parser.add_argument("--at-once", type=int, default=0, help="completions decoded at once; 0 for all of a step")
    parser.add_argument("--no-checkpointing", action="store_true", help="keep activations instead of recomputing them")
    parser.add_argument("--lora", type=int, default=0, help="train adapters of this rank instead of all weights")
    parser.add_argument("--peak", type=float, default=H200_PEAK, help="peak operations per second of the GPU")
    args = parser.parse_args()
    for name, value in (TINY if args.size == "tiny" else WORK).items():
        if getattr(args, name) is None:
            setattr(args, name, value)
    if args.size == "7b" and not args.lora:
        parser.error("--size 7b needs --lora RANK: its optimiser's state doesn't fit on one GPU")
    try:
        found = measured(args)
    except torch.OutOfMemoryError as error:
        found = {**vars(args), "out_of_memory": str(error).splitlines()[0]}
    print(json.dumps({"benchmark": "step_gpu", **found, "machine": machine()}))


if __name__ == "__main__":
    main()
