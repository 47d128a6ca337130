"""The demo with several seeds: held-out accuracy before and after training with its interval, and seconds.

    python benchmarks/demo.py [--seeds 0 1 2] [--threads 2]

Each seed is a run of configs/demo/digits.toml with `mmrl train`, including start-up and report. Prints one JSON object.
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
from pathlib import Path
from typing import Any

from machine import machine

RUN_FILE = Path(__file__).parents[1] / "configs" / "demo" / "digits.toml"


def demo(seed: int, threads: int) -> dict[str, Any]:
    runs = tempfile.mkdtemp()
    command = [sys.executable, "-m", "mmrl", "train", str(RUN_FILE), "--set", f"seed={seed}", "--set", f"runs_dir={runs}"]
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env={**os.environ, "OMP_NUM_THREADS": str(threads)})
    seconds = time.perf_counter() - started
    summary = json.loads((Path(runs) / "digits" / "summary.json").read_text())
    figures = {name: summary[name]["classification/digits"] for name in ("before", "best", "last")}
    accuracies = {k: {key: round(f[key], 4) for key in ("value", "low", "high", "n")} for k, f in figures.items()}
    return {"seed": seed, "wall_s": round(seconds, 1), **accuracies, "peak_memory_mb": summary["peak_memory_mb"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    results = [demo(seed, args.threads) for seed in args.seeds]
    medians = {
        "wall_s": statistics.median(r["wall_s"] for r in results),
        "before": statistics.median(r["before"]["value"] for r in results),
        "last": statistics.median(r["last"]["value"] for r in results),
    }
    print(json.dumps({"benchmark": "demo", "threads": args.threads, "runs": results, "median": medians, "machine": machine()}))


if __name__ == "__main__":
    main()
