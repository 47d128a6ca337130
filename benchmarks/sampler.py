"""vLLM as the sampler against mmrl's own: prompt ids, log-probabilities, the time of a weight sync, completions per second.

    python benchmarks/sampler.py [--model tiny:qwen2_5_vl:hidden=128,layers=2] [--prompts 200] [--group 4] [--tokens 32]
        [--lora language.*q_proj ...] [--tensor-parallel 2]
    python benchmarks/sampler.py --family all

Needs an interpreter with vLLM, such as the one of `make engines`: .engines/vllm/bin/python. Prompts have no picture, one, or
several, of many sizes. `ids_equal` counts prompts whose ids equal those of vLLM's own processor. `gap` is the difference between
vLLM's and the learner's log-probabilities of the sampled tokens, in nats per token, before and after a change of the learner's
weights. Both samplers serve the same prompts in turn, three rounds; the ratio is vLLM's completions per second over mmrl's,
median of the rounds. `sync` has the seconds and bytes of a weight sync to vLLM: of all weights, and of the changed blocks, which
with --lora are those of the layers with adapters.

--family: tiny checkpoints of these families instead (`all`: of each), a process and an engine for each. `gap` has the mean and
the largest difference for text, one and two pictures, and a video; `gap_after_sync` those after the weights moved, in place of a
gap the reason why such prompts can't be shown; or `refused` says why vLLM can't serve the family. float32, and bfloat16 where
float32 is refused. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

import numpy
from PIL import Image

from machine import machine
from mmrl.api.errors import UserError
from mmrl.api.types import Prompt, user_message
from mmrl.config.sections import ComputeConfig, LoraConfig, PolicyConfig
from mmrl.policies.vlm import tiny
from mmrl.policies.vlm.prompt_inputs import PromptInputs
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.rollout.generate.sampling import Generator, SamplingParams
from mmrl.rollout.generate.vllm import VllmGenerator
from mmrl.testing.vllm_parity import differences, gaps, move, sharpen, shown

TEMPERATURE = 0.7


def varied(count: int) -> list[Prompt]:
    """Prompts with zero to three pictures, with sides from 28 to 230 pixels."""
    noise = numpy.random.default_rng(0)
    made = []
    for n in range(count):
        sizes = noise.integers(28, 231, (n % 4, 2))
        pictures = [Image.fromarray(noise.integers(0, 255, (h, w, 3), dtype=numpy.uint8)) for w, h in sizes]
        made.append(Prompt(id=f"p{n}", messages=[user_message("What is shown? " + "x" * (n % 7), *pictures)], answer=""))
    return made


def ids_equal(policy: VLM, generator: VllmGenerator, prompts: list[Prompt], inputs: list[PromptInputs]) -> int:
    """Number of prompts with the same ids from vLLM's own processor as from mmrl."""
    from vllm.renderers.inputs.preprocess import parse_model_prompt

    renderer, equal = generator.engine.renderer, 0
    for prompt, ours in zip(prompts, inputs, strict=True):
        messages = [{"role": "user", "content": list(prompt.messages[0]["content"])}]
        text = policy.processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        given = {"prompt": text} | ({"multi_modal_data": {"image": list(prompt.images)}} if prompt.images else {})
        parsed = parse_model_prompt(generator.engine.model_config, given)
        (theirs,) = renderer.render_cmpl([parsed], renderer.default_cmpl_tok_params)
        equal += theirs["prompt_token_ids"] == ours.ids.tolist()
    return equal


def gap(policy: VLM, generator: Generator, inputs: list[PromptInputs], tokens: int) -> tuple[float, float]:
    """(mean, largest) difference of the sampler's log-probabilities from the learner's."""
    groups = generator.generate(inputs, 1, SamplingParams(max_tokens=tokens, temperature=TEMPERATURE, seed=1))
    every = differences(policy, inputs, groups, TEMPERATURE).abs()
    return float(every.mean()), float(every.max())


def synced(policy: VLM, generator: VllmGenerator, everything: bool) -> dict[str, float]:
    """Median seconds and bytes of a sync after a change of the learner's weights."""
    seconds = []
    for seed in range(5):
        move(policy, seed)
        if everything:
            generator._known = {}
        started = time.perf_counter()
        generator.sync()
        seconds.append(time.perf_counter() - started)
    return {"seconds": round(statistics.median(seconds), 4), "bytes": generator.sent}


def family(name: str) -> dict[str, Any]:
    """What one family's verdict and gaps are."""
    refused = ""
    for dtype in ("float32", "bfloat16"):
        policy = VLM(PolicyConfig(model=f"tiny:{name}:hidden=256,layers=2", dtype=dtype))
        sharpen(policy)
        generator = VllmGenerator(policy, ComputeConfig(sampler="vllm"), 32, 1024)
        started = time.perf_counter()
        try:
            generator.ready()
        except UserError as error:
            refused = refused or str(error)
            continue
        found: dict[str, Any] = {"dtype": dtype, "start_s": round(time.perf_counter() - started, 1)}
        for key in ("gap", "gap_after_sync"):
            measured = gaps(policy, generator, shown())
            found[key] = {kind: value if isinstance(value, str) else value._asdict() for kind, value in measured.items()}
            move(policy, 0)
        generator.close()
        return found
    return {"refused": refused}


def families(names: list[str]) -> dict[str, Any]:
    """Each in a process of its own, one after the other; of one that fails the end of what it wrote."""
    found = {}
    for name in names:
        done = subprocess.run([sys.executable, __file__, "--family", name], capture_output=True, text=True, check=False)
        if done.returncode:
            found[name] = {"failed": done.stderr.strip()[-500:]}
        else:
            found[name] = json.loads(done.stdout.splitlines()[-1])["families"][name]
        print(name, found[name], file=sys.stderr, flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny:qwen2_5_vl:hidden=128,layers=2")
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--group", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--lora", nargs="*", default=(), help="layers with adapters of rank 16; only their weights change")
    parser.add_argument("--tensor-parallel", type=int, default=1)
    parser.add_argument("--family", nargs="+", help="tiny checkpoints of these families, or `all`")
    args = parser.parse_args()
    if args.family:
        names = list(tiny.FAMILIES) if args.family == ["all"] else args.family
        rows = {names[0]: family(names[0])} if len(names) == 1 else families(names)
        print(json.dumps({"benchmark": "sampler", "families": rows, "machine": machine()}))
        return
    lora = LoraConfig(rank=16, target_modules=args.lora) if args.lora else None
    policy = VLM(PolicyConfig(model=args.model, dtype=args.dtype, lora=lora), device=args.device)
    theirs = VllmGenerator(policy, ComputeConfig(sampler="vllm", tensor_parallel=args.tensor_parallel), 256, 2048)
    ours = LocalGenerator(policy, 256)
    started = time.perf_counter()
    theirs.ready()
    start_s = time.perf_counter() - started
    prompts = varied(args.prompts)
    inputs = [policy.encode(p) for p in prompts]
    theirs.generate(inputs[:4], 1, SamplingParams(max_tokens=2, temperature=TEMPERATURE))  # compiles
    before = gap(policy, theirs, inputs, args.tokens)
    syncs = {name: synced(policy, theirs, name == "all") for name in ("all", "moved")}
    after = gap(policy, theirs, inputs, args.tokens)
    rates: dict[str, list[float]] = {"mmrl": [], "vllm": []}
    for seed in range(3):
        for name, generator in (("mmrl", ours), ("vllm", theirs)):
            started = time.perf_counter()
            generator.generate(inputs, args.group, SamplingParams(max_tokens=args.tokens, temperature=1.0, seed=seed))
            rates[name].append(len(inputs) * args.group / (time.perf_counter() - started))
    ratios = [v / m for v, m in zip(rates["vllm"], rates["mmrl"], strict=True)]
    found = {
        "benchmark": "sampler",
        "model": args.model,
        "dtype": args.dtype,
        "prompts": len(prompts),
        "ids_equal": ids_equal(policy, theirs, prompts, inputs),
        "gap": {"mean": before[0], "max": before[1]},
        "gap_after_sync": {"mean": after[0], "max": after[1]},
        "lora": list(args.lora),
        "tensor_parallel": args.tensor_parallel,
        "sync": syncs,
        "start_s": round(start_s, 1),
        "completions_a_second": {name: round(statistics.median(values), 1) for name, values in rates.items()},
        "vllm_over_mmrl": round(statistics.median(ratios), 2),
        "machine": machine(),
    }
    theirs.close()
    print(json.dumps(found))


if __name__ == "__main__":
    main()
