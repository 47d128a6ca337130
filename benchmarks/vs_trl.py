"""A whole GRPO step, mmrl against TRL's GRPOTrainer: the same checkpoint, images, group size and reward, in turn.

    python benchmarks/vs_trl.py [--steps 3] [--threads 2] [--device cpu]      needs `pip install trl==1.16.0`
    python benchmarks/vs_trl.py --case digits --case grounding --device cuda --steps 20
    python benchmarks/vs_trl.py --case 448px --family gemma3

Each system runs in a separate process; steps alternate, so that drift of the machine affects both. A step includes processing
the images, sampling groups of 8 (4 groups of at most 32 tokens, unless the case says otherwise), scoring, and one update.
Every completion has a different reward, so that mmrl skips no group. The cases `digits` and `grounding` have the models,
prompts, group sizes and lengths of `configs/demo/digits.toml` and `learn_grounding.py`, from random weights. The case `3b`
trains adapters of the language model at Qwen2.5-VL-3B's shape in bfloat16 with gradient checkpointing, 8 groups of 128 tokens
to prompts of some 700, and makes its weights on the device; `adapters` is the same at tiny size. `--family` takes another
family's tiny model for the cases by size; where its pictures have fewer tokens than Qwen2.5-VL's, a prompt shows several,
about as many tokens. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

PROMPTS, GROUP, TOKENS = 4, 8, 32
PLAIN: dict[str, Any] = dict(prompts=PROMPTS, tokens=TOKENS, task="", family="qwen2_5_vl", pictures=1)
ADAPTED: dict[str, Any] = dict(task="", pictures=1)
CASES: dict[str, dict[str, Any]] = {
    "448px": PLAIN | dict(pixels=448, hidden=256, layers=6),
    "112px": PLAIN | dict(pixels=112, hidden=128, layers=2),
    "digits": dict(prompts=24, tokens=8, task="classification/digits", options={}, hidden=128, layers=2),
    "3b": ADAPTED | dict(size="3b", rank=32, prompts=8, tokens=128, pixels=512, words=350),
    "adapters": ADAPTED | dict(size="tiny", rank=8, prompts=2, tokens=8, pixels=112, words=10),
    "grounding": dict(prompts=24, tokens=6, task="grounding/refer", options=dict(size=96, grid=8, objects=1)),
}
USUAL = ("448px", "112px")
"""Cases that run by default."""
SHOWN = 64
"""Number of prompts, which are used again and again."""
QUESTION = "What digit is shown?"


def reward(completion: str) -> float:
    """Number of distinct characters, scaled, and a little noise, as a random model's completions may have no text: cheap, and
    different for every completion."""
    return min(1.0, len(set(completion)) / 100 + len(completion) / 1000 + random.random() / 1000)


def questions(case: dict[str, Any]) -> list[tuple[str, list[Any]]]:
    """(text, pictures) of a case's prompts."""
    if case["task"]:
        from itertools import islice

        from mmrl.registry.plugins import registry

        prompts = islice(iter(registry().make_task(case["task"], case["options"]).prompts("train", 0)), SHOWN)
        return [(text_of(p.messages), p.images) for p in prompts]
    from PIL import Image
    from sklearn.datasets import load_digits

    size = (case["pixels"], case["pixels"])
    found = [Image.fromarray((d / 16 * 255).astype("uint8")).resize(size).convert("RGB") for d in load_digits().images[:SHOWN]]
    return [(QUESTION + " x" * case.get("words", 0), [picture] * case["pictures"]) for picture in found]


def text_of(messages: Any) -> str:
    """The text of a prompt's only message."""
    (message,) = messages
    return "".join(part["text"] for part in message["content"] if part["type"] == "text")


def write_checkpoint(case: dict[str, Any], folder: str) -> None:
    """Writes the random model of a case, and sets the number of pictures that a prompt shows."""
    if "size" in case:  # made on the device
        return
    if case["task"] == "grounding/refer":
        from learn_grounding import write_start

        write_start(Path(folder))
        return
    from mmrl.policies.vlm import tiny

    family = case.get("family", "qwen2_5_vl")
    tiny.save(folder, family, hidden=case["hidden"], layers=case["layers"])
    if family != "qwen2_5_vl":
        from mmrl.config.sections import PolicyConfig
        from mmrl.policies.vlm.vlm import VLM
        from packing import pictures_for

        case["pictures"] = pictures_for(VLM(PolicyConfig(model=folder)), case["pixels"])


def run_trl(
    checkpoint: str, case: dict[str, Any], device: str, steps: int, ready: Callable[[], None], done: Callable[[], None]
) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoModelForImageTextToText, AutoProcessor, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    class Gate(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            ready()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            done()

    def rewards(completions: list[Any], **_: Any) -> list[float]:
        return [reward(c[0]["content"]) for c in completions]

    rows = [{"prompt": [{"role": "user", "content": text}], "images": images} for text, images in questions(case)]
    settings = GRPOConfig(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=case["prompts"] * GROUP,
        num_generations=GROUP,
        max_completion_length=case["tokens"],
        max_steps=steps,
        learning_rate=1e-4,
        temperature=1.0,
        beta=0.0,
        report_to=[],
        save_strategy="no",
        logging_steps=1000,
        use_cpu=device == "cpu",
        bf16="size" in case,
        gradient_checkpointing="size" in case,
        disable_tqdm=True,
    )
    if "size" in case:
        from on_device import built

        model, processor = built(case["size"], device, torch.bfloat16)
    else:
        model = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32)
        processor = AutoProcessor.from_pretrained(checkpoint)
    trainer = GRPOTrainer(
        model=model,
        processing_class=processor,
        reward_funcs=rewards,
        args=settings,
        train_dataset=Dataset.from_list(rows),
        callbacks=[Gate()],
        peft_config=adapters(case["rank"]) if "rank" in case else None,
    )
    print("trl trains", sum(p.numel() for p in trainer.model.parameters() if p.requires_grad), "weights", file=sys.stderr)
    trainer.train()


def adapters(rank: int) -> Any:
    """peft's settings for what mmrl's `target_modules = ["language"]` adapts."""
    from peft import LoraConfig

    layers = r".*language_model\.layers\..*\.(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
    return LoraConfig(r=rank, lora_alpha=rank, target_modules=layers)


def run_mmrl(
    checkpoint: str, case: dict[str, Any], device: str, steps: int, ready: Callable[[], None], done: Callable[[], None]
) -> None:
    os.environ["MMRL_PLUGIN_FILES"] = str(Path(__file__).with_name("vs_trl_plugin.py").resolve())
    from mmrl.config.load import parse_config
    from mmrl.train.start import train
    from on_device import weights_made

    class Gate:
        def stage_started(self, *_: Any) -> None:
            ready()

        def step_finished(self, step: int, metrics: Any) -> None:
            done()
            if step < steps:
                ready()

        def evaluated(self, *_: Any) -> None:
            raise AssertionError("evaluation is off")

        def note(self, text: str) -> None:
            print(text, file=sys.stderr)

        def say(self, text: str) -> None: ...

        def stopping(self) -> None: ...

    stage = {"kind": "rl", "steps": steps, "prompts_per_step": case["prompts"], "group_size": GROUP, "learning_rate": 1e-4}
    policy: dict[str, Any] = {"model": checkpoint, "device": device}
    if "size" in case:  # checked as a tiny model, whose parts have the same names
        policy |= {"model": "tiny:qwen2_5_vl", "dtype": "bfloat16", "lora": {"rank": case["rank"], "alpha": case["rank"]}}

    def counted(run: Any) -> None:
        print("mmrl trains", sum(p.numel() for _, p in run.policy.parameters() if p.requires_grad), "weights", file=sys.stderr)

    with weights_made(case.get("size", "tiny"), device):
        train(
            parse_config(
                {
                    "name": "vs-trl",
                    "runs_dir": tempfile.mkdtemp(),
                    "policy": policy,
                    "tasks": [{"id": "vs_trl_plugin/asked", "options": {"case": case}}],
                    "stages": [stage],
                    "generate": {"max_tokens": case["tokens"]},
                    "train": {"gradient_checkpointing": "size" in case},
                    "evaluate": {"num_prompts": 0},
                    "record": {"rollouts_every": 0, "trackers": []},
                }
            ),
            Gate(),
            begun=counted,
        )


def worker(system: str, checkpoint: str, case: dict[str, Any], device: str, steps: int) -> None:
    """Runs a step for every input line, and answers with its seconds."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of the libraries goes to stderr
    started, left = 0.0, steps

    def ready() -> None:
        nonlocal started
        print("ready", file=answers, flush=True)
        if not sys.stdin.readline():  # the parent process has ended
            os._exit(1)
        started = time.perf_counter()

    def done() -> None:
        nonlocal left
        left -= 1
        peak = peak_mb(device)
        print(json.dumps({"seconds": time.perf_counter() - started, "peak_mb": peak}), file=answers, flush=True)
        if not left:  # work after the last step must not slow the other system's steps
            sys.stdin.read()

    {"trl": run_trl, "mmrl": run_mmrl}[system](checkpoint, case, device, steps, ready, done)


def peak_mb(device: str) -> float:
    """Peak memory of this process; on a GPU, of its GPU memory, after all its work is done."""
    if device == "cpu":
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    import torch

    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() / 2**20


def compare(
    name: str, steps: int, threads: int, device: str, family: str = "", warmup: int = 1, tell: Callable[[Any], None] | None = None
) -> dict[str, Any]:
    """tell: is given what is known after each counted step."""
    case = dict(CASES[name])
    if family and "family" in case:
        case["family"] = family
    checkpoint = tempfile.mkdtemp()
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    write_checkpoint(case, checkpoint)
    command = [sys.executable, __file__, "--worker"]
    settings = [checkpoint, json.dumps(case), device, str(steps + warmup)]
    workers = {
        system: subprocess.Popen(
            [*command, system, *settings], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        for system in ("trl", "mmrl")
    }
    try:
        return _alternating(workers, steps, warmup, lambda found: tell(found | case) if tell else None) | case
    finally:
        for process in workers.values():
            process.kill()  # otherwise a failed case would hold the device's memory


def _alternating(
    workers: dict[str, subprocess.Popen[str]], steps: int, warmup: int, tell: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Steps of each system in turn."""
    for system, process in workers.items():
        _expect(process, "ready", system)
    seconds: dict[str, list[float]] = {system: [] for system in workers}
    peak: dict[str, float] = {}
    for step in range(steps + warmup):
        for system, process in workers.items():
            process.stdin.write("go\n")
            process.stdin.flush()
            answer = json.loads(_expect(process, "{", system))
            if step >= warmup:
                seconds[system].append(answer["seconds"])
            peak[system] = answer["peak_mb"]
            if step < steps + warmup - 1:
                _expect(process, "ready", system)
        if step >= warmup:
            tell(_ratio(seconds, peak))
    for process in workers.values():
        process.stdin.close()
        process.wait(timeout=120)
    return _ratio(seconds, peak)


def _ratio(seconds: dict[str, list[float]], peak: dict[str, float]) -> dict[str, Any]:
    medians = {s: statistics.median(v) for s, v in seconds.items()}
    return {
        "seconds": {s: [round(x, 3) for x in v] for s, v in seconds.items()},
        "median_s": {s: round(v, 3) for s, v in medians.items()},
        "ratio": round(medians["trl"] / medians["mmrl"], 2),
        "peak_mb": {s: round(v) for s, v in peak.items()},
    }


def _expect(process: subprocess.Popen[str], start: str, system: str) -> str:
    line = process.stdout.readline()
    if not line.startswith(start):
        raise RuntimeError(f"{system}'s process wrote {line!r} instead of {start!r}: its errors are above")
    return line


def _keep_case(results: dict[str, Any], name: str, found: dict[str, Any]) -> None:
    from machine import keep

    keep(results | {name: found})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, default=3, help="counted steps of each system at 448 px; ten times as many at 112 px"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--case", choices=CASES, action="append", help="run only this case")
    parser.add_argument("--family", default="", help="of the tiny model, instead of Qwen2.5-VL")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        system, checkpoint, case, device, steps = args.worker
        return worker(system, checkpoint, json.loads(case), device, int(steps))
    from machine import keep, machine

    results: dict[str, Any] = {}
    for name in args.case or USUAL:
        steps = args.steps * (10 if name == "112px" else 1)
        try:
            tell = partial(_keep_case, results, name)
            results[name] = compare(name, steps, args.threads, args.device, args.family, tell=tell)
        except RuntimeError as error:  # the other cases go on
            results[name] = {"error": str(error)}
        keep(results)
    print(
        json.dumps(
            {
                "benchmark": "vs_trl",
                "group": GROUP,
                "device": args.device,
                "threads": args.threads,
                **results,
                "machine": machine("trl"),
            }
        )
    )
    if any("error" in result for result in results.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
