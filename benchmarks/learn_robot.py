"""A tiny vision-language-action model on the embedded table, from a warm start: held-out success before and after RL, over seeds.

    python benchmarks/learn_robot.py [--algorithm ppo|trajectory-grpo] [--seeds 0 1 2] [--steps N] [--side-by-side 2]
        [--curve FILE.svg]

The run file is `configs/demo/robot.toml`, as in `make demo-robot`, with other values for steps, seed and algorithm. The warm
start is the model in `assets/models/tabletop-pick`, made by `assets/make_robot.py`: it was fine-tuned on clean demonstrations and
then on clumsy ones. Held-out starts are never used in training. Each run is `mmrl train` in a separate process with one thread.
Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import tomli_w

import learning
from machine import machine

ROOT = Path(__file__).parents[1]
TASK = "robotics/pick"


def run_file(runs: Path, algorithm: str, seed: int, steps: int | None) -> str:
    data = tomllib.loads((ROOT / "configs" / "demo" / "robot.toml").read_text())
    data |= {"name": f"seed-{seed}", "runs_dir": str(runs), "seed": seed, "train": {"threads": 1}}
    data["policy"]["model"] = str(ROOT / data["policy"]["model"])
    data["record"] = {"rollouts_every": 0, "trackers": []}
    (stage,) = data["stages"]
    stage["steps"] = steps or stage["steps"]
    data["evaluate"]["every"] = max(1, stage["steps"] // 6)
    if algorithm != "ppo":  # the same number of episodes, eight from each start
        group = 8
        stage |= {"algorithm": algorithm, "prompts_per_step": stage["prompts_per_step"] // group, "group_size": group}
        for key in ("critic", "credit", "settings"):
            stage.pop(key, None)
        data["tasks"][0]["options"]["reward"] = "none"
        data["tasks"][0]["verifiers"] = {"robotics/success": 1.0}
    return tomli_w.dumps(data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithm", choices=("ppo", "trajectory-grpo"), default="ppo")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=None, help="steps of RL, by default the run file's")
    parser.add_argument("--side-by-side", type=int, default=2)
    parser.add_argument("--curve", type=Path, default=None, help="SVG file for the curve of held-out values")
    args = parser.parse_args()
    started, runs = time.perf_counter(), Path(tempfile.mkdtemp())

    def run(seed: int) -> learning.Run:
        return learning.train(runs, f"seed-{seed}", run_file(runs, args.algorithm, seed, args.steps))

    with ThreadPoolExecutor(args.side_by_side) as pool:
        after = list(pool.map(run, args.seeds))
    if args.curve:
        learning.draw(args.curve, TASK, after)
    before = learning.Run(after[0].of(TASK)[:1], 0.0)
    found = {
        "benchmark": "learn_robot",
        "algorithm": args.algorithm,
        "side_by_side": args.side_by_side,
        **learning.figures(TASK, before, after),
        "wall_s": round(time.perf_counter() - started, 1),
        "machine": machine(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
