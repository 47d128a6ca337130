"""One GRPO step of a Qwen2.5-VL of real size with random weights, on a GPU: seconds by part, memory, and bf16 parity.

    python benchmarks/step_gpu.py [--size 3b|7b|tiny] [--prompts 8] [--group 8] [--tokens 256] [--pixels 448] [--steps 3]

Needs no download: the shapes are those of the published configs. Reports the time of sampling and of the update with shared
prompts and with one sequence per completion, the sampler/learner gap in bfloat16, and how far bfloat16 logprobs are from
float32 ones.
`--size tiny --device cpu` runs the same code anywhere. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

from machine import machine
from mmrl.algorithms.presets import load_algorithm
from mmrl.collect.turns import TurnCollector
from mmrl.compat import prepare_torchvision
from mmrl.generate.local import LocalGenerator
from mmrl.generate.sampling import Sampling
from mmrl.learn import Learner
from mmrl.pack import pack
from mmrl.policies import tiny
from mmrl.policies.vlm import VLM
from mmrl.schema import PolicyConfig, RlStage
from mmrl.types import Credit, Prompt, user

TEXT = {
    "3b": dict(hidden_size=2048, intermediate_size=11008, num_hidden_layers=36, num_attention_heads=16, num_key_value_heads=2),
    "7b": dict(hidden_size=3584, intermediate_size=18944, num_hidden_layers=28, num_attention_heads=28, num_key_value_heads=4),
}


def checkpoint(size: str) -> str:
    """A folder with a checkpoint of that shape, or the name of a tiny one."""
    if size == "tiny":
        return "tiny:qwen2_5_vl"
    prepare_torchvision()
    import transformers

    small, processor = tiny.build("qwen2_5_vl")
    text = small.config.text_config.to_dict() | TEXT[size] | {"vocab_size": 151936, "rope_theta": 1e6, "layer_types": None}
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
    vision = dict(
        depth=32, hidden_size=1280, intermediate_size=3420, num_heads=16, out_hidden_size=TEXT[size]["hidden_size"], 
        patch_size=14, window_size=112, fullatt_block_indexes=[7, 15, 23, 31],
    )  # fmt: skip
    ids = {
        k: getattr(small.config, k) for k in ("image_token_id", "video_token_id", "vision_start_token_id", "vision_end_token_id")
    }
    config = transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, tie_word_embeddings=size == "3b", **ids)
    with torch.device("cuda"):
        torch.set_default_dtype(torch.bfloat16)
        model = transformers.Qwen2_5_VLForConditionalGeneration(config)
        torch.set_default_dtype(torch.float32)
    model.generation_config.eos_token_id = small.generation_config.eos_token_id
    folder = tempfile.mkdtemp()
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return folder


def timed(policy: VLM, work: Callable[[], Any]) -> tuple[Any, float]:
    if policy.device.type == "cuda":
        torch.cuda.synchronize()
    started = time.perf_counter()
    result = work()
    if policy.device.type == "cuda":
        torch.cuda.synchronize()
    return result, time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["tiny", "3b", "7b"], default="3b")
    parser.add_argument("--device", default="cuda")
    for name, default in dict(prompts=8, group=8, tokens=256, pixels=448, steps=3, budget=16384).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    import numpy as np
    from PIL import Image

    name = checkpoint(args.size)
    policy = VLM(PolicyConfig(model=name, dtype="bfloat16"), device=args.device)
    rng = np.random.RandomState(0)
    pictures = [Image.fromarray(rng.randint(0, 255, (args.pixels, args.pixels, 3), dtype=np.uint8)) for _ in range(args.prompts)]
    prompts = [Prompt(id=str(i), messages=[user("What digit is shown?", p)]) for i, p in enumerate(pictures)]
    collector = TurnCollector(policy, LocalGenerator(policy, args.prompts * args.group))
    learner = Learner(policy, RlStage(kind="rl", steps=9, learning_rate=1e-6), load_algorithm("grpo", {}))
    parts: dict[str, list[float]] = {"process": [], "generate": [], "update": [], "update_per_completion": []}
    for step in range(args.steps + 1):
        inputs, process = timed(policy, lambda: collector.encode(prompts))
        sampling = Sampling(max_tokens=args.tokens, temperature=1.0, seed=step)
        rollouts, generate = timed(policy, lambda i=inputs, s=sampling: collector.collect(prompts, i, args.group, s))
        credit = Credit(advantages=torch.randn(len(rollouts)))
        shared = pack(rollouts, credit, policy, shared_prefix=True, budget=args.budget)
        metrics, update = timed(policy, lambda b=shared: learner.update([b], 0))
        alone = pack(rollouts, credit, policy, shared_prefix=False, budget=args.budget)
        _, per_completion = timed(policy, lambda b=alone: learner.update([b], 0))
        if step:
            for key, seconds in zip(parts, (process, generate, update, per_completion), strict=True):
                parts[key].append(seconds)
    medians = {k: round(statistics.median(v), 3) for k, v in parts.items()}
    result = {
        "benchmark": "step_gpu", **vars(args), "median_s": medians,
        "packing_ratio": round(medians["update_per_completion"] / medians["update"], 2), "completion_tokens": shared.num_tokens,
        "bf16_gap": metrics["logprob_gap"], "bf16_against_float32": parity(policy, name, shared, args),
    }  # fmt: skip
    if policy.device.type == "cuda":
        result["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    print(json.dumps(result | {"machine": machine()}))


def parity(policy: VLM, name: str, batch: Any, args: argparse.Namespace) -> dict[str, float]:
    """Logprobs of one micro-batch in bfloat16 and in float32, with the same (bfloat16) weights."""
    micro = batch.micro[0]
    with torch.no_grad():
        low, _ = policy.logprobs(micro, 1.0)
        policy.model.float()
        high, _ = policy.logprobs(micro, 1.0)
    difference = (low - high).abs()
    return {"mean": difference.mean().item(), "max": difference.max().item()}


if __name__ == "__main__":
    main()
