"""Grounding of an object on composed scenes, from a warm start: held-out mean IoU before and after GRPO, over seeds.

    python benchmarks/learn_grounding.py [--seeds 0 1 2] [--warm 165] [--steps 300] [--side-by-side 2] [--curve FILE.svg]

The model is a `tiny:qwen3_vl` with random weights, and a tokenizer with one token for each coordinate, for each word of the
questions, and for the sentence about the answer's format: a question has seven tokens, an answer four. Linear and convolution
weights have the standard deviation 1 / sqrt(fan-in), position embeddings 1. Supervised fine-tuning on right answers stops after
`--warm` steps, early enough to leave room for improvement; GRPO starts from that checkpoint with the IoU as the reward, once for
each seed. Pictures have 96 x 96 pixels, nine visual tokens, and show one object on a photograph, at one of 441 boxes; held-out
pictures and training pictures share no pixel of a photograph. Each run is `mmrl train` in a separate process with one thread.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import learning
from machine import machine

TASK = "grounding/refer"
SIZE, GRID, HELD_OUT = 96, 8, 400
RUN_FILE = """\
name = "{name}"
runs_dir = "{runs}"
seed = {seed}
policy = {{ model = "{model}" }}
tasks = [{{ id = "{task}", options = {{ size = {size}, grid = {grid}, objects = 1, warm = 4000, test = {test} }} }}]
stages = [{stage}]
generate = {{ max_tokens = 6 }}
evaluate = {{ num_prompts = {test}, every = 50 }}
record = {{ rollouts_every = 0, trackers = [] }}
train = {{ threads = 1 }}
"""
WARM = """{{ kind = "sft", split = "warm", steps = {steps}, batch_size = 64, optimizer = "muon", beta1 = 0.95, \
learning_rate = 3e-3, warmup_steps = 20 }}"""
RL = '{{ kind = "rl", steps = {steps}, prompts_per_step = 24, learning_rate = 4e-4, schedule = "linear" }}'
HOW = "Answer with its box: x1 y1 x2 y2, in thousandths of its width and height."


def write_start(folder: Path) -> int:
    """Writes the random checkpoint from which the warm start begins. Returns its number of weights."""
    from mmrl_grounding.scenes import COLOURS, SHAPES, TILES

    coordinates = [round(1000 * n / SIZE) for n in range(0, SIZE + 1, GRID)]
    words = [HOW, "Where is", *(f" {w}" for w in (*COLOURS, *SHAPES, *TILES, "tile"))]
    words += [f" {n}" for n in coordinates] + [str(n) for n in coordinates if n > 9]
    return learning.write_start(folder, words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--warm", type=int, default=165)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--curve", type=Path, default=None, help="SVG file for the curve of held-out values")
    args = parser.parse_args()
    started, runs = time.perf_counter(), Path(tempfile.mkdtemp())
    weights = write_start(runs / "start")
    settings = {"runs": runs, "task": TASK, "size": SIZE, "grid": GRID, "test": HELD_OUT}

    def run(name: str, seed: int, model: Path, stage: str) -> learning.Run:
        return learning.train(runs, name, RUN_FILE.format(name=name, seed=seed, model=model, stage=stage, **settings))

    warm = run("warm", 0, runs / "start", WARM.format(steps=args.warm))
    model, stage = learning.checkpoint(runs, "warm"), RL.format(steps=args.steps)
    with ThreadPoolExecutor(args.side_by_side) as pool:
        after = list(pool.map(lambda seed: run(f"seed-{seed}", seed, model, stage), args.seeds))
    if args.curve:
        learning.draw(args.curve, TASK, after)
    found = {
        "benchmark": "learn_grounding",
        "weights": weights,
        "warm": args.warm,
        "steps": args.steps,
        "side_by_side": args.side_by_side,
        **learning.figures(TASK, warm, after),
        "wall_s": round(time.perf_counter() - started, 1),
        "machine": machine(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
