"""PPO from states on `mjx/reach`, against Brax's PPO on the same simulator with the same number of steps.

    python benchmarks/mjx_ppo.py --python PYTHON [--updates 40] [--seeds 1 2] [--held-out 128]

PYTHON is an interpreter with `pip install brax "jax<0.9" -e . -e sims/mjx` and torch; Brax 0.14.2 doesn't run with JAX 0.10. Both
have 128 environments, episodes of 20 steps that success doesn't end, the simulator's dense reward, gamma and lambda of 0.95, four
epochs of four mini-batches, perceptrons of three layers of 256, and a learning rate of 1e-3; all else is each one's own, such as
Brax's normalised observations, its squashed normal distribution and its clip of 0.3. Both are judged greedily on the same
held-out starts. Runs alternate: ours, theirs, theirs, ours. Prints one JSON object.
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
from pathlib import Path
from typing import Any

import tomli_w
from mmrl_robotics.task import Episodes

import learning
from machine import machine

SETTINGS = {
    "num_envs": 128,
    "length": 20,
    "gamma": 0.95,
    "lam": 0.95,
    "epochs": 4,
    "minibatches": 4,
    "hidden": [256, 256, 256],
    "learning_rate": 1e-3,
}
SETTING = {"OMP_NUM_THREADS": "1", "JAX_PMAP_SHMAP_MERGE": "false"}
"""Brax 0.14.2 needs the older of JAX 0.8's two pmaps."""
FIGURES = ("success", "success_at_end", "return")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--evaluations", type=int, default=4)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--held-out", type=int, default=128)
    args = parser.parse_args()
    curves: dict[str, list[dict[str, Any]]] = {"ours": [], "theirs": []}
    with tempfile.TemporaryDirectory() as folder:
        for number, seed in enumerate(args.seeds):
            pair = (("ours", ours), ("theirs", theirs))
            for name, run in pair if number % 2 == 0 else pair[::-1]:
                began = time.perf_counter()
                rows = run(args, Path(folder), seed)
                curves[name].append({"seed": seed, "rows": rows, "wall_s": round(time.perf_counter() - began, 1)})
    print(json.dumps({"compared": compared(curves), "curves": curves, "settings": SETTINGS | vars(args), "machine": machine()}))


def ours(args: argparse.Namespace, folder: Path, seed: int) -> list[dict[str, float]]:
    """A row for each evaluation."""
    name = f"ours-{seed}"
    simulator = {"simulator": "mjx/reach", "obs": "state", "dims": 4, "max_steps": SETTINGS["length"]}
    paid = {"reward": "own", "terminate_on_success": False, "held_out": args.held_out}
    stage = {
        "kind": "rl",
        "algorithm": "ppo",
        "steps": args.updates,
        **{"prompts_per_step": SETTINGS["num_envs"], "group_size": 1, "ratio": "action", "credit": "action"},
        "settings": {"gamma": SETTINGS["gamma"], "lam": SETTINGS["lam"]},
        **{key: SETTINGS[key] for key in ("epochs", "minibatches", "learning_rate")},
        "critic": {"backbone": "separate", "learning_rate": SETTINGS["learning_rate"], "clip_range": 0.0},
    }
    policy = {"dims": 4, "state": 32, "hidden": SETTINGS["hidden"]}
    data = {
        "name": name,
        "runs_dir": str(folder),
        "seed": seed,
        "policy": {"kind": "robotics/small", "model": "mlp", "options": policy},
        "tasks": [{"id": "robotics/episodes", "name": "reach", "options": simulator | paid}],
        "stages": [stage],
        "simulate": {"num_envs": SETTINGS["num_envs"]},
        "evaluate": {"num_prompts": args.held_out, "every": args.updates // args.evaluations},
        "train": {"threads": 1},
        "record": {"rollouts_every": 0, "trackers": []},
    }
    update = SETTINGS["num_envs"] * SETTINGS["length"]
    rows = learning.train(folder, name, tomli_w.dumps(data)).of("reach")
    return [{"steps": row["step"] * update} | {name: row["extra"][f"episode/{name}"] for name in FIGURES} for row in rows]


def theirs(args: argparse.Namespace, folder: Path, seed: int) -> list[dict[str, float]]:
    """A row for each evaluation; there is none before the first update."""
    task = Episodes(simulator="mjx/reach")
    starts = {f"first_{split}": task.prompts(split, 0)[0].seed for split in ("train", "test")}
    wanted = SETTINGS | starts | {"seed": seed} | {k: getattr(args, k) for k in ("updates", "evaluations", "held_out")}
    driver = Path(__file__).with_name("mjx_brax.py")
    command = [args.python, driver, json.dumps(wanted)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **SETTING})
    if done.returncode:
        raise SystemExit(f"{driver} failed:\n{done.stderr[-2000:]}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"steps"')]


def compared(curves: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Ours minus theirs in the last evaluation, with Student's 95% interval over the seeds."""
    from mmrl.api.statistics import mean_interval

    found = {}
    for name in FIGURES:
        pairs = zip(curves["ours"], curves["theirs"], strict=True)
        values = [a["rows"][-1][name] - b["rows"][-1][name] for a, b in pairs]
        low, high = mean_interval(values)
        interval = [round(low, 4), round(high, 4)] if math.isfinite(low) else None
        found[name] = {"difference": round(statistics.fmean(values), 4), "interval": interval}
    return found


if __name__ == "__main__":
    main()
