"""MiniWoB++'s pages in a real browser, from a warm start: held-out success before and after GRPO, over seeds.

    python benchmarks/learn_gui.py --page PAGE [--seeds 0 1 2] [--side-by-side 1] [--curve FILE.svg]

The model is a `tiny:qwen3_vl` with random weights, made as in `learn_grounding.py`, with one token for each instruction of the
page, for `click`, and for each number: an answer is `click COLUMN ROW`, a cell of a grid, four tokens. Supervised fine-tuning
uses episodes recorded in the browser (`mmrl record screens`): successful episodes of a random walk, or an expert's. It stops
early, to leave room for improvement; GRPO starts from that checkpoint in the browser, once for each seed, with the page's success
as the reward. Held-out episodes have other seeds. Each run is `mmrl train` in a separate process with one thread for the model;
the browser uses the other cores. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
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
tasks = [{{ id = "gui/episodes", name = "{page}", options = {{ pages = ["{page}"], options = {{ fresh = false }}, \
style = "brief", grid = [{columns}, {rows}], prompt = "{{instruction}}", recording = "{recorded}", demos = {demos} }} }}]
stages = [{stage}]
generate = {{ max_tokens = 6, max_turns = {setting.turns}, batch_size = 96, temperature = {setting.temperature} }}
evaluate = {{ num_prompts = {test}, every = {every} }}
record = {{ rollouts_every = 0, trackers = [] }}
train = {{ threads = 1 }}
"""
WARM = """{{ kind = "sft", split = "demo", steps = {steps}, batch_size = 64, optimizer = "muon", beta1 = 0.95, \
learning_rate = 3e-3, warmup_steps = 20 }}"""
RL = """{{ kind = "rl", split = "train", steps = {steps}, prompts_per_step = 24, group_size = 8, optimizer = "muon", \
beta1 = 0.95, learning_rate = {setting.learning_rate}, schedule = "linear" }}"""
WALK = ("--policy", "random", "--actions", "click", "--steps", "1", "--won")
EXPERT = ("--policy", "expert")


@dataclass(frozen=True)
class Setting:
    """The settings of a page."""

    says: Sequence[str]
    """The page's instructions."""
    record: Sequence[str]
    """Options of `mmrl record` for the demonstrations."""
    episodes: int
    """Number of recorded episodes; of a random walk, only the successful ones are kept."""
    warm: int
    """Steps of supervised fine-tuning."""
    steps: int
    """Steps of GRPO."""
    grid: tuple[int, int] = (10, 13)
    turns: int = 1
    """Maximum turns of an episode."""
    learning_rate: float = 1e-3
    temperature: float = 1.0
    """Sampling temperature: above 1 if the policy is overconfident after fine-tuning, below 1 if it is underconfident. Held-out
    answers are greedy."""


SETTINGS = {  # page -> its settings
    "click-tab": Setting([f"Click on Tab #{n}." for n in (1, 2, 3)], EXPERT, 800, 12, 30, temperature=0.5),
    "grid-coordinate": Setting(
        [f"Click on the grid coordinate ({x},{y})." for x in range(-2, 3) for y in range(-2, 3)],
        EXPERT,
        800,
        22,
        40,
        (32, 42),
        temperature=0.5,
    ),
    "count-sides": Setting(
        ["Press the button that correctly denotes how many sides the shape has."],
        *(WALK, 5000, 90, 100),
        learning_rate=2e-3,
        temperature=1.6,
    ),
    "click-collapsible-nodelay": Setting(
        ["Expand the section below and click submit."], EXPERT, 800, 22, 12, turns=3, temperature=0.5
    ),
}


def write_start(folder: Path, setting: Setting) -> int:
    """Writes the random checkpoint from which the warm start begins. Returns its number of weights."""
    return learning.write_start(folder, [*setting.says, "click", *(f" {n}" for n in range(max(setting.grid)))])


def record(folder: Path, page: str, setting: Setting) -> None:
    """Records episodes of a page into a folder."""
    screens = ["browser/miniwob", str(folder), "--set", "fresh=false", "--pages", page]
    command = [sys.executable, "-m", "mmrl", "record", "screens", *screens, *setting.record, "-n", str(setting.episodes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"recording {page} failed:\n{done.stderr[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", choices=SETTINGS, required=True)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--warm", type=int, default=None, help="steps of supervised fine-tuning")
    parser.add_argument("--steps", type=int, default=None, help="steps of GRPO")
    parser.add_argument("--test", type=int, default=200, help="held-out episodes")
    parser.add_argument("--every", type=int, default=20, help="steps between evaluations")
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=None, help="folder for the runs; an existing recording in it is used")
    parser.add_argument("--curve", type=Path, default=None, help="SVG file for the curve of held-out success")
    args = parser.parse_args()
    page, setting = args.page, SETTINGS[args.page]
    started, runs = time.perf_counter(), args.runs or Path(tempfile.mkdtemp())
    weights = write_start(runs / "start", setting)
    recorded = runs / f"recorded-{page}"
    if not recorded.is_dir():
        record(recorded, page, setting)
    recorded_s, demos = time.perf_counter() - started, len((recorded / "episodes.jsonl").read_text().splitlines())
    columns, rows = setting.grid
    shape = {"page": page, "columns": columns, "rows": rows, "recorded": recorded, "demos": demos, "setting": setting}

    def run(name: str, seed: int, model: Path, stage: str) -> learning.Run:
        own = {"name": name, "seed": seed, "model": model, "stage": stage, "runs": runs, "test": args.test, "every": args.every}
        return learning.train(runs, name, RUN_FILE.format(**own, **shape))

    warm_steps, steps = args.warm or setting.warm, args.steps or setting.steps
    warm = run("warm", 0, runs / "start", WARM.format(steps=warm_steps))
    model, stage = learning.checkpoint(runs, "warm"), RL.format(steps=steps, setting=setting)
    with ThreadPoolExecutor(args.side_by_side) as pool:
        after = list(pool.map(lambda seed: run(f"seed-{seed}", seed, model, stage), args.seeds))
    if args.curve:
        learning.draw(args.curve, page, after)
    found = {
        "benchmark": "learn_gui",
        "page": page,
        "weights": weights,
        "demos": demos,
        "warm": warm_steps,
        "steps": steps,
        "side_by_side": args.side_by_side,
        **(learning.figures(page, warm, after) if after else {"warm_start": warm.last(page)["value"], "warm_s": warm.wall_s}),
        "recorded_s": round(recorded_s, 1),
        "wall_s": round(time.perf_counter() - started, 1),
        "machine": machine(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
