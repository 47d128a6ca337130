"""Training curves on a GPU against those on the CPU of the same machine: digits, grounding and the robot, side by side.

    python benchmarks/curves_gpu.py [--device cuda] [--tasks digits grounding robot] [--steps N]

The runs of `make demo`, of `learn_grounding.py` (one seed, from a warm start on the CPU) and of `make demo-robot`, each on both
devices at once. Held-out values of every evaluation with their 95% interval; `within` says whether the last values' intervals
overlap. What has ended is kept if the rest takes too long. `--steps` shortens every stage. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

import learn_grounding
import learn_robot
import learning
from machine import keep, machine

DIGITS = Path(__file__).parents[1] / "configs" / "demo" / "digits.toml"


def digits(runs: Path, device: str, steps: int | None) -> learning.Run:
    data = tomllib.loads(DIGITS.read_text())
    return _train(runs, data, device, steps)


def robot(runs: Path, device: str, steps: int | None) -> learning.Run:
    data = tomllib.loads(learn_robot.run_file(runs, "ppo", 0, None))
    return _train(runs, data, device, steps)


def grounding(model: Path) -> Callable[[Path, str, int | None], learning.Run]:
    def run(runs: Path, device: str, steps: int | None) -> learning.Run:
        return _train(runs, tomllib.loads(_grounding(runs, model, learn_grounding.RL.format(steps=300))), device, steps)

    return run


def _grounding(runs: Path, model: Path, stage: str) -> str:
    settings = {"task": learn_grounding.TASK, "size": learn_grounding.SIZE, "grid": learn_grounding.GRID}
    settings |= {"test": learn_grounding.HELD_OUT, "model": model, "seed": 0, "runs": runs, "name": "grounding"}
    return learn_grounding.RUN_FILE.format(stage=stage, **settings)


def grounding_start(runs: Path, steps: int | None) -> Path:
    """The warm start of grounding, on the CPU, which both devices go on from."""
    learn_grounding.write_start(runs / "start")
    stage = learn_grounding.WARM.format(steps=165)
    run_file = tomllib.loads(_grounding(runs / "warm", runs / "start", stage))
    _train(runs / "warm", run_file, "cpu", steps)
    return learning.checkpoint(runs / "warm", "grounding")


def _train(runs: Path, data: dict[str, Any], device: str, steps: int | None) -> learning.Run:
    runs.mkdir(exist_ok=True)
    data |= {"runs_dir": str(runs), "record": {"rollouts_every": 0, "trackers": []}, "train": {"threads": 2}}
    data["policy"]["device"] = device
    if steps:
        for stage in data["stages"]:
            stage["steps"] = steps
        data["evaluate"] |= {"every": steps, "num_prompts": 16}
    return learning.train(runs, data["name"], tomli_w.dumps(data))


def compared(found: dict[str, learning.Run]) -> dict[str, Any]:
    """Held-out values by device, and whether the last ones' intervals overlap."""
    curves = {
        device: [[r["step"], round(r["value"], 4), round(r["low"], 4), round(r["high"], 4)] for r in run.evaluations]
        for device, run in found.items()
    }
    last = {device: rows[-1] for device, rows in curves.items() if rows}
    shown = {"last": last, "curves": curves, "wall_s": {device: run.wall_s for device, run in found.items() if run.wall_s}}
    if len(shown["wall_s"]) == 2:
        (_, _, low, high), (_, _, other_low, other_high) = last.values()
        shown["within"] = low <= other_high and other_low <= high
    return shown


class Runs:
    """The runs of each task on the CPU and on the device, side by side."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.folder = args, Path(tempfile.mkdtemp())
        self.kinds: dict[str, Callable[[Path, str, int | None], learning.Run]] = {"digits": digits, "robot": robot}
        self.places = {"cpu": "cpu", "device": args.device}
        self.done: dict[tuple[str, str], float] = {}
        """(task, place) -> seconds of a run that has ended."""
        self.failed: dict[str, str] = {}

    def attempt(self, what: str, work: Callable[[], Any]) -> Any:
        """What the work returns; None if it failed, which costs no other run."""
        try:
            return work()
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self.failed[what] = str(error)[-300:]

    def train(self, task: str, place: str) -> None:
        folder = self.folder / f"{task}-{place}"
        run = self.attempt(f"{task} on {place}", lambda: self.kinds[task](folder, self.places[place], self.args.steps))
        if run:
            self.done[task, place] = run.wall_s

    def found(self) -> dict[str, Any]:
        """What there is so far, also of runs that haven't ended: their evaluations are read from their folders."""
        curves: dict[str, dict[str, learning.Run]] = {}
        for task in self.args.tasks:
            for place in self.places:
                for file in (self.folder / f"{task}-{place}").glob("*/metrics.jsonl"):
                    run = learning.Run(learning.evaluations(file.parent), self.done.get((task, place), 0.0))
                    curves.setdefault(task, {})[place] = run
        return {task: compared(runs) for task, runs in curves.items()} | {"failed": dict(self.failed)}

    def all(self) -> None:
        ended = threading.Event()

        def watch() -> None:
            while not ended.wait(5.0):
                keep(self.found())

        threading.Thread(target=watch, daemon=True).start()
        with ThreadPoolExecutor(6) as pool:
            jobs = [
                pool.submit(self.train, task, place) for task in self.args.tasks if task in self.kinds for place in self.places
            ]
            if "grounding" in self.args.tasks:
                start = self.attempt("grounding's warm start", lambda: grounding_start(self.folder, self.args.steps))
                if start:
                    self.kinds["grounding"] = grounding(start)
                    jobs += [pool.submit(self.train, "grounding", place) for place in self.places]
            for job in jobs:
                job.result()
        ended.set()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tasks", nargs="+", choices=["digits", "grounding", "robot"], default=["digits", "grounding", "robot"])
    parser.add_argument("--steps", type=int, help="of every stage, instead of the run files'")
    args = parser.parse_args()
    started, runs = time.perf_counter(), Runs(args)
    runs.all()
    seconds = round(time.perf_counter() - started, 1)
    found = {"benchmark": "curves_gpu", "device": args.device, **runs.found(), "wall_s": seconds}
    print(json.dumps(found | {"machine": machine()}))
    if runs.failed:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
