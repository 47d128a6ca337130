"""PPO from states on a ManiSkill task, against ManiSkill's PPO baseline at equal numbers of environment steps.

    python benchmarks/maniskill_ppo.py --task push-cube --python PYTHON [--baseline PATH/ppo.py] [--updates 48] [--every 8]
        [--seeds 1 2] [--environments 8] [--held-out 64] [--curve FILE.svg]

PYTHON is an interpreter with ManiSkill 3.0.1, and tyro for the baseline; PATH/ppo.py is ManiSkill's
`examples/baselines/ppo/ppo.py`, which runs unchanged (`maniskill_baseline.py`). The settings are the baseline's: MLPs with three
layers of 256 for policy and critic, gamma 0.8, lambda 0.9, learning rate 3e-4, clip 0.2, gradient norm at most 0.5, ManiSkill's
reward, joint control. An update has 64 episodes of 50 steps, 8 epochs of 8 mini-batches of 400, as in ManiSkill's `ppo_cpu.py`
(16 environments x 200 steps). Success doesn't end an episode (`--no-partial-reset`). Both are evaluated greedily from the same
held-out starts after the same numbers of steps. Runs alternate: ours, theirs, theirs, ours. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w
from mmrl_robotics.task import Episodes

import learning
from machine import machine

EPISODES, LENGTH = 64, 50
"""Episodes of an update, and steps of an episode."""
TASKS = {"push-cube": ("PushCube-v1", 35), "pick-cube": ("PickCube-v1", 42)}
"""Name -> (ManiSkill's name, size of its state)."""
FIGURES = {"success": "success_once", "success_at_end": "success_at_end", "return": "return"}
"""Ours -> ManiSkill's name."""


@dataclass(frozen=True)
class Curve:
    """One training run: a row for each evaluation."""

    rows: list[dict[str, float]]
    """Each `{"steps", "success", "success_at_end", "return"}`; steps of the environment."""
    sampled: dict[str, float]
    """The same metrics for the training episodes: means over all of them."""
    wall_s: float


def ours(args: argparse.Namespace, folder: Path, seed: int) -> Curve:
    name = f"ours-{seed}"
    run = learning.train(folder, name, run_file(args, folder, name, seed))
    rows = []
    for row in run.of(args.task):
        found = {figure: row["extra"][f"episode/{figure}"] for figure in FIGURES}
        rows.append({"steps": row["step"] * EPISODES * LENGTH, **found})
    lines = map(json.loads, (folder / name / "metrics.jsonl").read_text().splitlines())
    steps = [row["metrics"] for row in lines if "metrics" in row]
    sampled = {figure: statistics.fmean(step[f"episode/{figure}"] for step in steps) for figure in FIGURES}
    return Curve(rows, sampled, run.wall_s)


def run_file(args: argparse.Namespace, folder: Path, name: str, seed: int) -> str:
    simulator = {"simulator": f"maniskill/{args.task}", "obs": "state", "control_mode": "pd_joint_delta_pos", "rendering": "none"}
    paid = {"python": args.python, "reward": "own", "until_success": False, "held_out": args.held_out}
    policy = {"dims": 8, "state": TASKS[args.task][1], "spread": math.exp(-0.5)}
    stage = {
        "kind": "rl",
        "algorithm": "ppo",
        "steps": args.updates,
        **{"prompts_per_step": EPISODES, "group_size": 1, "ratio": "action", "credit": "action"},
        "settings": {"gamma": 0.8, "lam": 0.9},
        **{"epochs": 8, "minibatches": 8, "stop_kl": 0.1, "optimizer": "adam", "learning_rate": 3e-4, "max_grad_norm": 0.5},
        "critic": {"backbone": "separate", "learning_rate": 3e-4, "clip_range": 0.0, "max_grad_norm": 0.5},
    }
    data = {
        "name": name,
        "runs_dir": str(folder),
        "seed": seed,
        "policy": {"kind": "robotics/small", "model": "mlp", "options": policy},
        "tasks": [{"id": "robotics/episodes", "name": args.task, "options": simulator | paid}],
        "stages": [stage],
        "simulate": {"num_envs": args.environments},
        "evaluate": {"num_prompts": args.held_out, "every": args.every},
        "train": {"threads": 1},
        "record": {"rollouts_every": 0, "trackers": []},
    }
    return tomli_w.dumps(data)


def theirs(args: argparse.Namespace, folder: Path, seed: int) -> Curve:
    started, scalars = time.perf_counter(), folder / f"theirs-{seed}.jsonl"
    update = EPISODES * LENGTH
    words = (
        f"--env-id {TASKS[args.task][0]} --seed {seed} --exp-name {folder}/theirs-{seed} --num-envs {args.environments}"
        f" --num-steps {update // args.environments} --num-minibatches 8 --update-epochs 8"
        f" --num-eval-envs {args.environments} --num-eval-steps {args.held_out // args.environments * LENGTH}"
        # it evaluates only before an update: one more update, so that the last evaluation runs
        f" --eval-freq {args.every} --total-timesteps {(args.updates + 1) * update}"
        " --no-partial-reset --no-capture-video --no-save-model --no-cuda"
    )
    driver = Path(__file__).with_name("maniskill_baseline.py")
    first = Episodes(simulator=f"maniskill/{args.task}").prompts("test", 0)[0].seed
    command = [args.python, driver, args.baseline, scalars, str(first), str(args.held_out), *words.split()]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    if done.returncode:
        raise SystemExit(f"{args.baseline} failed:\n{done.stderr[-2000:]}")
    lines = [json.loads(line) for line in scalars.read_text().splitlines()]
    lines = [row for row in lines if row["step"] <= args.updates * update]
    points: dict[int, dict[str, float]] = {}
    sampled = {}
    for figure, name in FIGURES.items():
        for row in lines:
            if row["name"] == f"eval/{name}":
                points.setdefault(row["step"], {})[figure] = row["value"]
        sampled[figure] = statistics.fmean(row["value"] for row in lines if row["name"] == f"train/{name}")
    rows = [{"steps": steps, **found} for steps, found in sorted(points.items())]
    return Curve(rows, sampled, round(time.perf_counter() - started, 1))


def compared(mine: Sequence[Curve], other: Sequence[Curve]) -> dict[str, Any]:
    """Ours minus theirs, with Student's 95% interval over the seeds: at the end, on average over the evaluations after the first,
    and for all training episodes."""
    from mmrl.api.statistics import mean_interval

    found: dict[str, Any] = {}
    for figure in FIGURES:
        pairs = list(zip(mine, other, strict=True))
        seen = {
            "end": [a.rows[-1][figure] - b.rows[-1][figure] for a, b in pairs],
            "curve": [
                statistics.fmean(r[figure] - s[figure] for r, s in zip(a.rows[1:], b.rows[1:], strict=True)) for a, b in pairs
            ],
            "sampled": [a.sampled[figure] - b.sampled[figure] for a, b in pairs],
        }
        for where, values in seen.items():
            low, high = mean_interval(values)
            found[f"{figure}/{where}"] = {
                "difference": round(statistics.fmean(values), 4),
                "interval": [round(low, 4), round(high, 4)] if math.isfinite(low) else None,
                "seeds": [round(value, 4) for value in values],
            }
    return found


def draw(path: Path, figure: str, curves: dict[str, list[Curve]]) -> None:
    """Draws the mean over seeds of each side, with a band from the lowest to the highest seed."""
    from mmrl.ui.report.svg import Series

    series = []
    for color, (name, runs) in enumerate(curves.items(), 1):
        columns = [[run.rows[i][figure] for run in runs] for i in range(len(runs[0].rows))]
        xs, ys = [row["steps"] for row in runs[0].rows], [statistics.fmean(column) for column in columns]
        low, high = [min(column) for column in columns], [max(column) for column in columns]
        series.append(Series(name=name, xs=xs, ys=ys, low=low, high=high, color=color))
    learning.save(path, series)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=tuple(TASKS), default="push-cube")
    parser.add_argument("--python", required=True, help="an interpreter with ManiSkill")
    parser.add_argument("--baseline", type=Path, default=None, help="ManiSkill's examples/baselines/ppo/ppo.py")
    parser.add_argument("--updates", type=int, default=48, help=f"each of {EPISODES * LENGTH} steps; a multiple of --every")
    parser.add_argument("--every", type=int, default=8, help="updates between two evaluations, at least 2")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--environments", type=int, default=8)
    parser.add_argument("--held-out", type=int, default=64, help="starts; a multiple of --environments")
    parser.add_argument("--figure", choices=tuple(FIGURES), default="success", help="metric of --curve")
    parser.add_argument("--curve", type=Path, default=None)
    args = parser.parse_args()
    if args.every < 2 or args.updates % args.every or args.held_out % args.environments or EPISODES % args.environments:
        parser.error(f"--updates must be a multiple of --every (2 or more); --held-out and {EPISODES} of --environments")
    folder = Path(tempfile.mkdtemp())
    sides = {"mmrl": ours} | ({"ManiSkill": theirs} if args.baseline else {})
    curves: dict[str, list[Curve]] = {name: [] for name in sides}
    for turn, seed in enumerate(args.seeds):
        for name, side in list(sides.items())[:: -1 if turn % 2 else 1]:
            curves[name].append(side(args, folder, seed))
    found: dict[str, Any] = {"benchmark": "maniskill_ppo", "task": args.task, "seeds": args.seeds, "held_out": args.held_out}
    found["steps"] = [row["steps"] for row in curves["mmrl"][0].rows]
    for name, runs in curves.items():
        shown = {figure: [[round(row[figure], 4) for row in run.rows] for run in runs] for figure in FIGURES}
        found[name] = shown | {"sampled": [run.sampled for run in runs], "wall_s": [run.wall_s for run in runs]}
    if args.baseline:
        found["difference"] = compared(curves["mmrl"], curves["ManiSkill"])
    if args.curve:
        draw(args.curve, args.figure, curves)
    print(json.dumps(found | {"machine": machine()}))


if __name__ == "__main__":
    main()
