"""RLPD against PPO on the embedded table: held-out success against steps of the simulator, over seeds.

    python benchmarks/off_policy.py [--seeds 0 1 2] [--side-by-side 1] [--prompts 128] [--ppo-steps 40] [--rlpd-steps 40]
        [--success 0.5 0.6 0.7] [--set KEY=VALUE ...] [--runs FOLDER] [--curve build/off-policy.png]

The run files are `configs/demo/robot.toml` and `configs/demo/robot-rlpd.toml`: the same pictures, episodes and reward. PPO trains
all of the model in `assets/models/tabletop-pick`; RLPD a small network from nothing on that model's hidden states, with the steps
of 200 episodes of the table's expert, which are not counted. Each run is `mmrl train` in a separate process with one thread. A
figure is the steps of the simulator that training took until `--success` of the held-out starts succeed, by the line between
evaluations, whose own steps don't count. `--runs` keeps the runs, and goes on with those that are there. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

import learning
from machine import machine

ROOT = Path(__file__).parents[1]
FILES = {"ppo": "robot.toml", "rlpd": "robot-rlpd.toml"}


def run_file(runs: Path, kind: str, seed: int, steps: int | None, prompts: int) -> str:
    data = tomllib.loads((ROOT / "configs" / "demo" / FILES[kind]).read_text())
    (stage,) = data["stages"]
    stage["steps"] = steps or stage["steps"]
    data |= {"name": f"{kind}-{seed}", "runs_dir": str(runs), "seed": seed, "train": {"threads": 1}}
    data |= {"evaluate": {"num_prompts": prompts, "every": 5}, "record": {"rollouts_every": 0, "trackers": []}}
    data["checkpoint"] = {"every": 10, "keep": 1}
    return tomli_w.dumps(data)


def trained(runs: Path, kind: str, seed: int, text: str, settings: Sequence[str] = ()) -> None:
    """Train one run, if it isn't there."""
    name = f"{kind}-{seed}"
    path = runs / f"{name}.toml"
    path.write_text(text)
    if not (runs / name / "summary.json").is_file():
        resume = ["--resume"] if (runs / name).is_dir() else []
        more = [argument for setting in settings for argument in ("--set", setting)]
        command = [sys.executable, "-m", "mmrl", "train", str(path), *resume, *more]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
        if done.returncode:
            raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")


def train(runs: Path, kind: str, seed: int, text: str, settings: Sequence[str]) -> list[tuple[float, dict[str, Any]]]:
    """(steps of the simulator, evaluation) of one run; see `curve_of`."""
    trained(runs, kind, seed, text, settings)
    (stage,) = tomllib.loads(text)["stages"]
    return curve_of(runs / f"{kind}-{seed}", stage["prompts_per_step"])


def curve_of(folder: Path, episodes: int) -> list[tuple[float, dict[str, Any]]]:
    """(steps of the simulator in training until then, evaluation), in order. episodes: of a step."""
    found, taken = [], 0.0
    for line in (folder / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "eval" in row:
            found.append((taken, row["eval"]))
        else:
            taken += row["metrics"]["episode/steps"] * episodes
    return found


def reached(curve: Sequence[tuple[float, Mapping[str, Any]]], success: float) -> float | None:
    """Steps of the simulator until this success, by the line between the evaluations, since PPO has few of them; None if there is
    none with so much."""
    before, low = 0.0, 0.0
    for steps, evaluation in curve:
        if (value := evaluation["value"]) >= success:
            return round(before + (steps - before) * (success - low) / (value - low)) if value > low else steps
        before, low = steps, value
    return None


def ratio_of(ppo: Sequence[float | None], rlpd: Sequence[float | None]) -> float | None:
    """The median of RLPD's steps over that of PPO's; a run that doesn't get there has an infinite number. None if a median is
    infinite."""
    medians = [statistics.median([float("inf") if x is None else x for x in steps]) for steps in (rlpd, ppo)]
    return None if float("inf") in medians else round(medians[0] / medians[1], 3)


def draw(path: Path, curves: Mapping[tuple[str, int], Sequence[tuple[float, Mapping[str, Any]]]]) -> None:
    """The held-out success over steps of the simulator, with 95% intervals: a line for each run."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4), layout="constrained")
    for (kind, seed), curve in curves.items():
        colour, (xs, found) = learning.COLOURS[list(FILES).index(kind)], zip(*curve, strict=True)
        axes.fill_between(xs, [e["low"] for e in found], [e["high"] for e in found], color=colour, alpha=0.1, linewidth=0)
        label = kind.upper() if seed == min(s for k, s in curves if k == kind) else None
        axes.plot(xs, [e["value"] for e in found], color=colour, marker=".", label=label)
    axes.set(xlabel="steps of the simulator", ylabel="held-out success", ylim=(0, 1), title="robotics/pick on the embedded table")
    axes.legend(loc="lower right")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--side-by-side", type=int, default=1)
    parser.add_argument("--prompts", type=int, default=128, help="held-out starts of an evaluation")
    parser.add_argument("--ppo-steps", type=int, default=None, help="steps of the stage, by default the run file's")
    parser.add_argument("--rlpd-steps", type=int, default=None)
    parser.add_argument("--success", type=float, nargs="+", default=[0.5, 0.6, 0.7], help="successes whose steps are compared")
    parser.add_argument("--only", choices=tuple(FILES), default=None, help="run one of the two")
    parser.add_argument("--set", nargs="*", default=[], metavar="KEY=VALUE", help="other settings of RLPD's run file")
    parser.add_argument("--runs", type=Path, default=None)
    parser.add_argument("--curve", type=Path, default=ROOT / "build" / "off-policy.png")
    args = parser.parse_args()
    started, runs = time.perf_counter(), (args.runs or Path(tempfile.mkdtemp())).resolve()
    runs.mkdir(parents=True, exist_ok=True)
    kinds = [args.only] if args.only else list(FILES)
    steps = {"ppo": args.ppo_steps, "rlpd": args.rlpd_steps}

    def one(job: tuple[str, int]) -> list[tuple[float, dict[str, Any]]]:
        kind, seed = job
        text = run_file(runs, kind, seed, steps[kind], args.prompts)
        return train(runs, kind, seed, text, args.set if kind == "rlpd" else [])

    jobs = [(kind, seed) for seed in args.seeds for kind in kinds]
    with ThreadPoolExecutor(args.side_by_side) as pool:
        curves = dict(zip(jobs, pool.map(one, jobs), strict=True))
    draw(args.curve, curves)
    found: dict[str, Any] = {"benchmark": "off_policy", "n": args.prompts, "seeds": args.seeds}
    for kind in kinds:
        own = [curves[kind, seed] for seed in args.seeds]
        found[kind] = {"success": [round(curve[-1][1]["value"], 4) for curve in own], "steps": [round(c[-1][0]) for c in own]}
    if not args.only:
        for success in args.success:
            first = {kind: [reached(curves[kind, seed], success) for seed in args.seeds] for kind in kinds}
            found[f"to {success:g}"] = {**first, "ratio": ratio_of(first["ppo"], first["rlpd"])}
    found |= {"curve": str(args.curve), "wall_s": round(time.perf_counter() - started, 1), "machine": machine()}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
