"""Asynchronous sampling: throughput against the synchronous run, with sampling and update equally long, and the curve on digits.

    python benchmarks/asynchronous.py [--delay 1.0] [--steps 12] [--seeds 0 1 2] [--curve-steps 200] [--no-curve]

Throughput: sampling and update each sleep for `--delay` more seconds, so that they don't compete for cores; runs with `staleness`
0 and 1 alternate. Curve: the digits run with staleness 0 and 1, held-out accuracy per seed. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from machine import machine
from mmrl.config.load import parse_config
from mmrl.rollout.generate.local import LocalGenerator
from mmrl.train.start import train
from mmrl.train.update.learner import Learner

DIGITS = Path(__file__).parents[1] / "configs" / "demo" / "digits.toml"


class Watcher:
    """Records the end time of each step."""

    def __init__(self) -> None:
        self.ended: list[float] = []

    def stage_started(self, *_: Any) -> None: ...

    def step_finished(self, *_: Any) -> None:
        self.ended.append(time.perf_counter())

    def evaluated(self, *_: Any) -> None: ...

    def note(self, text: str) -> None: ...

    def say(self, text: str) -> None: ...

    def stopping(self) -> None: ...


def slower(function: Callable[..., Any], seconds: float) -> Callable[..., Any]:
    def slow(*args: Any, **options: Any) -> Any:
        time.sleep(seconds)
        return function(*args, **options)

    return slow


def throughput(runs: Path, staleness: int, steps: int) -> float:
    """Steps per second, from the second step on."""
    data = {
        "name": f"delays-{staleness}-{time.time_ns()}",
        "runs_dir": str(runs),
        "policy": {"model": "tiny:qwen2_5_vl:hidden=32,layers=1"},
        "tasks": [{"id": "classification/digits"}],
        "stages": [{"kind": "rl", "steps": steps, "prompts_per_step": 4, "group_size": 4}],
        "generate": {"max_tokens": 4},
        "evaluate": {"num_prompts": 0},
        "train": {"threads": 1},
        "compute": {"staleness": staleness},
        "limits": {"logprob_gap": {"stop": 10.0}},
    }
    watcher = Watcher()
    train(parse_config(data), watcher)
    return (len(watcher.ended) - 2) / (watcher.ended[-1] - watcher.ended[1])


def curve(runs: Path, staleness: int, seed: int, steps: int) -> dict[str, Any]:
    """The digits run with `steps` steps of RL: held-out accuracy, and the lag of the sampler's weights."""
    data = tomllib.loads(DIGITS.read_text())
    data |= {"name": f"digits-{staleness}-{seed}", "runs_dir": str(runs), "seed": seed, "compute": {"staleness": staleness}}
    data["stages"][1]["steps"] = steps
    data["evaluate"] = {"num_prompts": 397}
    if staleness:
        data["limits"] = {"logprob_gap": {"stop": 1.0}}
    folder = train(parse_config(data), Watcher())
    summary = json.loads((folder.path / "summary.json").read_text())
    rows = [
        json.loads(line)["metrics"] for line in (folder.path / "metrics.jsonl").read_text().splitlines() if '"metrics"' in line
    ]
    found = {name: summary[name]["classification/digits"] for name in ("before", "last")}
    of = lambda name: [row[name] for row in rows if name in row]  # noqa: E731
    return {
        "staleness": staleness,
        "seed": seed,
        **{name: {key: round(figure[key], 4) for key in ("value", "low", "high")} for name, figure in found.items()},
        "versions_behind": round(statistics.fmean(of("staleness/mean")), 3) if staleness else 0.0,
        "logprob_gap": {"mean": statistics.fmean(of("logprob_gap")), "max": max(of("logprob_gap"))},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delay", type=float, default=1.0)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--curve-steps", type=int, default=200)
    parser.add_argument("--no-curve", action="store_true")
    args = parser.parse_args()
    plain = LocalGenerator.generate, Learner.update
    with tempfile.TemporaryDirectory() as folder:
        LocalGenerator.generate, Learner.update = (slower(f, args.delay) for f in plain)  # type: ignore[method-assign]
        rates = [[throughput(Path(folder), k, args.steps) for k in (0, 1)] for _ in range(args.rounds)]
        LocalGenerator.generate, Learner.update = plain  # type: ignore[method-assign]
        curves = [curve(Path(folder), k, seed, args.curve_steps) for seed in args.seeds for k in (0, 1) if not args.no_curve]
    gaps = [b["last"]["value"] - a["last"]["value"] for a, b in zip(curves[::2], curves[1::2], strict=True)]
    found = {
        "benchmark": "asynchronous",
        "delay_s": args.delay,
        "steps_per_s": {f"staleness {k}": [round(rate[k], 4) for rate in rates] for k in (0, 1)},
        "times_the_synchronous": round(statistics.median(rate[1] / rate[0] for rate in rates), 3),
        "aim": 1.6,
        "digits": curves,
        "accuracy_gained_by_staleness": {
            "each_seed": [round(gap, 4) for gap in gaps],
            "mean": round(statistics.fmean(gaps), 4) if gaps else None,
            "standard_error": round(statistics.stdev(gaps) / len(gaps) ** 0.5, 4) if len(gaps) > 1 else None,
        },
        "machine": machine(),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
