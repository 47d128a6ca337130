"""Temporal grounding and temporal jigsaws of drawn clips, from a warm start: held-out metrics before and after GRPO, over seeds,
and the same metrics with shuffled frames.

    python benchmarks/learn_video.py --task temporal|jigsaw [--seeds 0 1 2] [--side-by-side 2] [--curve FILE.svg]

The model is a `tiny:qwen2_5_vl` with random weights, with one token for each word of the questions and answers. It is fine-tuned
on right answers, and stopped early, to leave room for improvement; GRPO starts from that checkpoint, once for each seed, with the
verifier's score as the reward. Clips have 64 x 64 pixels and 8 seconds; held-out clips are never trained on. In `temporal` an
object disappears for some seconds, and the question is when: the score is the IoU of the intervals. In `jigsaw` an object crosses
the picture, the clip is cut into three parts, and the answer is their order: the metric is the share of clips in the right order,
and the reward also counts pairs of parts. Each run is `mmrl train` in a separate process with one thread. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import learning
from machine import machine

RUN_FILE = """\
name = "{name}"
runs_dir = "{runs}"
seed = {seed}
policy = {{ model = "{model}" }}
tasks = [{{ id = "video/{task}", name = "{task}", options = {{ {setting.options}, prompt = "", warm = 4000, train = 4000, \
test = {test} }} }}]
stages = [{stage}]
generate = {{ max_tokens = 6 }}
evaluate = {{ num_prompts = {test}, every = 50, shuffle_frames = true }}
record = {{ rollouts_every = 0, trackers = [] }}
train = {{ threads = 1 }}
"""
WARM = """{{ kind = "sft", split = "warm", steps = {steps}, batch_size = 64, optimizer = "muon", beta1 = 0.95, \
learning_rate = 3e-3, warmup_steps = 20 }}"""
RL = """{{ kind = "rl", steps = {steps}, prompts_per_step = 32, group_size = 8, optimizer = "muon", beta1 = 0.95, \
learning_rate = {setting.learning_rate}, schedule = "linear", entropy_coef = {setting.entropy} }}"""
STAGE = 'objects = 1, backgrounds = ["plain"], seconds = [8, 8]'


@dataclass(frozen=True)
class Setting:
    """The settings of a task."""

    options: str
    warm: int
    """Steps of supervised fine-tuning."""
    steps: int
    """Steps of GRPO."""
    learning_rate: float
    entropy: float
    figure: str
    """The reported metric of the evaluation."""


SETTINGS = {  # NAME of the task video/NAME -> its settings
    "temporal": Setting(f'{STAGE}, moving = 0.0, events = ["hide"]', 90, 150, 1e-3, 0.01, "mIoU"),
    "jigsaw": Setting(f'{STAGE}, ways = ["right"], frames = 12', 72, 150, 5e-4, 0.02, "exact"),
}


def write_start(folder: Path) -> int:
    """Writes the random checkpoint from which the warm start begins. Returns its number of weights."""
    from mmrl_video.drawn.shapes import COLOURS, SHAPES

    order = (
        "These clips are the parts of one, in a wrong order or the right one, at places 1 to 3. In which order do they belong?"
    )
    words = ["When is the", *(f" {w}" for w in (*COLOURS, *SHAPES)), " gone?", " to ", order, *(f"Clip {n}:" for n in (1, 2, 3))]
    return learning.write_start(folder, words, "qwen2_5_vl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=SETTINGS, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--warm", type=int, default=None, help="steps of supervised fine-tuning")
    parser.add_argument("--steps", type=int, default=None, help="steps of GRPO")
    parser.add_argument("--test", type=int, default=400, help="held-out clips")
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=None, help="folder for the runs")
    parser.add_argument("--curve", type=Path, default=None, help="SVG file for the curve of held-out values")
    args = parser.parse_args()
    task, setting = args.task, SETTINGS[args.task]
    started, runs = time.perf_counter(), args.runs or Path(tempfile.mkdtemp())
    weights = write_start(runs / "start")

    def run(name: str, seed: int, model: Path, stage: str) -> learning.Run:
        own = {"name": name, "seed": seed, "model": model, "stage": stage}
        done = learning.train(runs, name, RUN_FILE.format(**own, runs=runs, task=task, setting=setting, test=args.test))
        return learning.Run(
            [{**row, "score": row["value"], "value": row["extra"][setting.figure]} for row in done.evaluations], done.wall_s
        )

    warm_steps, steps = args.warm or setting.warm, args.steps or setting.steps
    warm = run("warm", 0, runs / "start", WARM.format(steps=warm_steps))
    model, stage = learning.checkpoint(runs, "warm"), RL.format(steps=steps, setting=setting)
    with ThreadPoolExecutor(args.side_by_side) as pool:
        after = list(pool.map(lambda seed: run(f"seed-{seed}", seed, model, stage), args.seeds))
    if args.curve:
        learning.draw(args.curve, task, after)
    found = {
        "benchmark": "learn_video",
        "task": task,
        "weights": weights,
        "warm": warm_steps,
        "steps": steps,
        "side_by_side": args.side_by_side,
        "figure": setting.figure,
        **(learning.figures(task, warm, after) if after else {"warm_start": warm.last(task)["value"]}),
        "score": [round(run.last(task)["score"], 4) for run in after],
        "score_shuffled": [round(run.last(task)["extra"]["shuffled"], 4) for run in after],
        "wall_s": round(time.perf_counter() - started, 1),
        "machine": machine(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
