"""Where is the thing? The box of an object on composed scenes, from a warm start: held-out mean IoU before and after, over seeds.

    python benchmarks/learn_grounding.py [--seeds 0 1 2] [--warm 165] [--steps 300] [--side-by-side 2] [--keep FOLDER]

The model is a `tiny:qwen3_vl` of random weights with a tokenizer that has one token for each coordinate, for each word that the
questions use, and for the sentence that says how to answer: a question is seven tokens, an answer four. Linear and convolution
weights are drawn with the standard deviation 1 / sqrt(fan-in), position embeddings with 1. It first imitates right answers for
`--warm` steps, stopped early so that there is room; from that checkpoint GRPO goes on with the IoU as the reward, once for each
seed. Pictures are 96 pixels a side, nine visual tokens, with one object on a photograph, at one of 441 boxes; no held-out picture
shares a pixel of a photograph with one that is learned from. Each run is `mmrl train` in a process of its own, with one thread.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import machine

TASK = "grounding/refer"
SIZE, GRID, HELD_OUT = 96, 8, 400
RUN_FILE = """\
name = "{name}"
runs = "{runs}"
seed = {seed}
policy = {{ model = "{model}" }}
tasks = [{{ id = "{task}", options = {{ size = {size}, grid = {grid}, objects = 1, warm = 4000, test = {test} }} }}]
stages = [{stage}]
generate = {{ max_tokens = 6 }}
evaluate = {{ n = {test} }}
record = {{ rollouts_every = 0, trackers = [] }}
train = {{ threads = 1 }}
"""
WARM = """{{ kind = "sft", split = "warm", steps = {steps}, batch_size = 64, optimizer = "muon", beta1 = 0.95, \
learning_rate = 3e-3, warmup_steps = 20 }}"""
RL = '{{ kind = "rl", steps = {steps}, prompts_per_step = 24, learning_rate = 4e-4, schedule = "linear" }}'
HOW = "Answer with its box: x1 y1 x2 y2, in thousandths of its width and height."


def write_start(folder: Path) -> int:
    """The random checkpoint that the warm start begins with. -> Its number of weights."""
    import torch
    from mmrl_grounding.scenes import COLOURS, SHAPES, TILES

    from mmrl.policies import tiny

    coordinates = [round(1000 * n / SIZE) for n in range(0, SIZE + 1, GRID)]
    words = [HOW, "Where is", *(f" {w}" for w in (*COLOURS, *SHAPES, *TILES, "tile"))]
    words += [f" {n}" for n in coordinates] + [str(n) for n in coordinates if n > 9]
    model, processor = tiny.build("qwen3_vl", words=words)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Conv3d) and name != "lm_head":  # that one is the embedding
                module.weight.normal_(0, 1 / math.sqrt(module.weight[0].numel()), generator=generator)
            elif name.endswith("pos_embed"):
                module.weight.normal_(0, 1, generator=generator)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def train(runs: Path, name: str, seed: int, model: Path, stage: str) -> dict[str, Any]:
    """One run's last evaluation, and its seconds."""
    started, path = time.perf_counter(), runs / f"{name}.toml"
    text = RUN_FILE.format(
        name=name, runs=runs, seed=seed, model=model, task=TASK, size=SIZE, grid=GRID, test=HELD_OUT, stage=stage
    )
    path.write_text(text)
    command = [sys.executable, "-m", "mmrl", "train", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    last = json.loads((runs / name / "summary.json").read_text())["last"][TASK]
    return dict(last) | {"wall_s": round(time.perf_counter() - started, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--warm", type=int, default=165)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--keep", type=Path, default=None, help="where to put the runs, rather than in a temporary folder")
    args = parser.parse_args()
    started, runs = time.perf_counter(), (args.keep or Path(tempfile.mkdtemp())).absolute()
    runs.mkdir(parents=True, exist_ok=True)
    weights = write_start(runs / "start")
    warm = train(runs, "warm", 0, runs / "start", WARM.format(steps=args.warm))
    (model,) = (runs / "warm" / "checkpoints").glob("step-*/policy")
    with ThreadPoolExecutor(args.side_by_side) as pool:
        after = list(pool.map(lambda s: train(runs, f"rl-{s}", s, model, RL.format(steps=args.steps)), args.seeds))

    from mmrl.intervals import mean_interval

    def rounded(figures: dict[str, Any]) -> dict[str, Any]:
        return {key: round(figures[key], 4) for key in ("value", "low", "high")}

    gains = [run["value"] - warm["value"] for run in after]
    low, high = mean_interval(gains)
    found = {
        "benchmark": "learn_grounding",
        "weights": weights,
        "warm": args.warm,
        "steps": args.steps,
        "side_by_side": args.side_by_side,
        "n": HELD_OUT,
        "before": rounded(warm),
        "after": [{"seed": seed} | rounded(run) for seed, run in zip(args.seeds, after, strict=True)],
        "gain": rounded({"value": sum(gains) / len(gains), "low": low, "high": high}),
        "runs_s": [warm["wall_s"], *(run["wall_s"] for run in after)],
        "wall_s": round(time.perf_counter() - started, 1),
        "machine": machine(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
