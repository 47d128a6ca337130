"""Clicking where one is told to, in a real browser: MiniWoB++'s pages, from a warm start, held-out success before and after, over
seeds.

    python benchmarks/learn_gui.py [--task one-click|two-clicks] [--seeds 0 1 2] [--warm N] [--steps N] [--side-by-side 2]

The model is a `tiny:qwen3_vl` of random weights, made as `learn_grounding.py` makes its own, with one token for each instruction
that the pages give, for `click`, and for each number: an answer is `click COLUMN ROW`, cells of a grid of 16 pixels, four tokens.
It first imitates episodes of an expert that were recorded in the browser (`python -m mmrl_gui.record`) for `--warm` steps,
stopped while it begins to see where things are, so that there is room; from that checkpoint GRPO goes on in the browser with the
page's own verdict as the reward, once for each seed. Held-out episodes have seeds of their own. Each run is `mmrl train` in a
process of its own, with one thread for the model (imitation has two); the browser takes what is left. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import learning

from machine import machine

COLUMNS, ROWS = 10, 13
SAYS = {
    "click-test": "Click the button.",
    "click-dialog": 'Close the dialog box by clicking the "x".',
    "focus-text": "Focus into the textbox.",
    "click-collapsible-nodelay": "Expand the section below and click submit.",
}
"""Page -> what its instruction says."""
TASKS: dict[str, dict[str, Any]] = {
    "one-click": {"pages": ["click-test", "click-dialog", "focus-text"], "warm": 250, "steps": 120, "turns": 1},
    "two-clicks": {"pages": ["click-collapsible-nodelay"], "warm": 30, "steps": 60, "turns": 3},
}
"""What is learned: pages, steps of imitation and of GRPO, turns of an episode."""
RUN_FILE = """\
name = "{name}"
runs = "{runs}"
seed = {seed}
policy = {{ model = "{model}" }}
tasks = [
{tasks}
]
stages = [{stage}]
generate = {{ max_tokens = 6, max_turns = {turns}, batch_size = 96 }}
evaluate = {{ n = {test}, every = {every} }}
record = {{ rollouts_every = 0, trackers = [] }}
train = {{ threads = {threads} }}
"""
TASK = """\
    {{ id = "gui/episodes", name = "{page}", options = {{ pages = ["{page}"], options = {{ fresh = false }}, style = "brief", \
grid = [{columns}, {rows}], prompt = "{{instruction}}", recording = "{recording}/{page}", demos = {demos} }} }},"""
WARM = """{{ kind = "sft", split = "demo", steps = {steps}, batch_size = 64, optimizer = "muon", beta1 = 0.95, \
learning_rate = 3e-3, warmup_steps = 20 }}"""
RL = """{{ kind = "rl", split = "train", steps = {steps}, prompts_per_step = {prompts}, group_size = 4, optimizer = "muon", \
beta1 = 0.95, learning_rate = 2e-3, schedule = "linear" }}"""


def write_start(folder: Path, pages: list[str]) -> int:
    """The random checkpoint that the warm start begins with. -> Its number of weights."""
    words = [*(SAYS[page] for page in pages), "click", *(f" {n}" for n in range(max(COLUMNS, ROWS)))]
    return learning.write_start(folder, words)


def record(folder: Path, page: str, demos: int) -> None:
    """An expert's episodes of a page."""
    command = [sys.executable, "-m", "mmrl_gui.record", "--screens", "browser/miniwob", "--pages", page, "--policy", "expert"]
    command += ["--options", "fresh=false"]
    done = subprocess.run(
        [*command, "--episodes", str(demos), "--out", str(folder / page)], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"recording {page} failed:\n{done.stderr[-2000:]}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="one-click")
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--warm", type=int, default=None, help="steps of imitation")
    parser.add_argument("--steps", type=int, default=None, help="steps of GRPO")
    parser.add_argument("--demos", type=int, default=1300, help="recorded episodes of each page")
    parser.add_argument("--prompts", type=int, default=48, help="episodes' starts in a step of GRPO, four episodes from each")
    parser.add_argument("--test", type=int, default=200, help="held-out episodes of each page")
    parser.add_argument("--every", type=int, default=40, help="steps between evaluations")
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument(
        "--runs", type=Path, default=None, help="where to keep the runs; recordings that are there are used again"
    )
    args = parser.parse_args()
    task = TASKS[args.task]
    pages: list[str] = task["pages"]
    started, runs = time.perf_counter(), args.runs or Path(tempfile.mkdtemp())
    weights = write_start(runs / "start", pages)
    for page in pages:
        if not (runs / "recorded" / page).is_dir():
            record(runs / "recorded", page, args.demos)
    recorded_s = time.perf_counter() - started
    shape = {"columns": COLUMNS, "rows": ROWS, "recording": runs / "recorded", "demos": args.demos}
    settings = {
        "runs": runs,
        "tasks": "\n".join(TASK.format(page=page, **shape) for page in pages),
        "turns": task["turns"],
        "test": args.test,
        "every": args.every,
    }

    def run(name: str, seed: int, model: Path, stage: str, threads: int = 1) -> learning.Run:
        own = {"name": name, "seed": seed, "model": model, "stage": stage, "threads": threads}
        return learning.train(runs, name, RUN_FILE.format(**own, **settings))

    warm_steps, steps = args.warm or task["warm"], args.steps or task["steps"]
    warm = run("warm", 0, runs / "start", WARM.format(steps=warm_steps), threads=2)
    model, stage = learning.checkpoint(runs, "warm"), RL.format(steps=steps, prompts=args.prompts)
    with ThreadPoolExecutor(args.side_by_side) as pool:
        after = list(pool.map(lambda seed: run(f"seed-{seed}", seed, model, stage), args.seeds))
    found = {
        "benchmark": "learn_gui",
        "task": args.task,
        "weights": weights,
        "warm": warm_steps,
        "steps": steps,
        "side_by_side": args.side_by_side,
        "pages": {
            page: learning.figures(page, warm, after)
            if after
            else {"warm_start": warm.last(page)["value"], "warm_s": warm.wall_s}
            for page in pages
        },
        "recorded_s": round(recorded_s, 1),
        "wall_s": round(time.perf_counter() - started, 1),
        "machine": machine(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
