"""The three GPU benchmarks, one after the other within half an hour, each with a JSON file.

    python benchmarks/gpu_all.py [--out benchmarks-gpu] [--only step trl packing] [--size 3b --device cuda]

`step.json` and `step-kept.json`: whole steps at 3B, with gradient checkpointing and with activations kept (`step_gpu.py`).
`trl.json`: the digits and grounding runs at tiny size against TRL (`vs_trl.py`, needs `pip install trl==1.16.0`).
`packing.json`: shared prompts against one sequence per completion at 3B and 7B (`packing_gpu.py`). Each has ten minutes; if one
fails, its file says why, and the next begins. `--size tiny --device cpu` runs all of it anywhere. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
ALL_S, EACH_S = 1740, 590


def commands(size: str, device: str) -> dict[str, list[str]]:
    """File -> the command that writes it."""
    where = ["--device", device]
    step = ["step_gpu.py", "--size", size, *where]
    packed = ["tiny"] if size == "tiny" else ["3b", "7b"]
    kept = ["--no-checkpointing", *([] if size == "tiny" else ["--budget", "8192", "--steps", "2"])]
    steps, threads = ("1", "1") if device == "cpu" else ("20", "4")
    return {
        "step": step,
        "trl": ["vs_trl.py", "--case", "digits", "--case", "grounding", "--steps", steps, "--threads", threads, *where],
        "packing": ["packing_gpu.py", "--size", *packed, *where],
        "step-kept": [*step, *kept],
    }


def run(command: list[str], file: Path, limit: float) -> dict[str, Any]:
    """Runs a benchmark and writes its output to the file, or its error. Returns its seconds, and the `fault` if it failed."""
    started, fault = time.perf_counter(), ""
    try:
        done = subprocess.run([sys.executable, HERE / command[0], *command[1:]], capture_output=True, text=True, timeout=limit)
        lines = done.stdout.strip().splitlines()
        if done.returncode or not lines:
            fault = f"ended with {done.returncode}: {done.stderr[-2000:]}"
    except subprocess.TimeoutExpired as late:
        said = late.stderr or b""
        fault = (
            f"took more than {limit:.0f} s: {said[-2000:].decode(errors='replace') if isinstance(said, bytes) else said[-2000:]}"
        )
    file.write_text(lines[-1] + "\n" if not fault else json.dumps({"command": command, "fault": fault}) + "\n")
    return {"file": str(file), "seconds": round(time.perf_counter() - started, 1)} | ({"fault": fault[:300]} if fault else {})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks-gpu"))
    parser.add_argument("--only", nargs="+", choices=["step", "trl", "packing", "step-kept"])
    parser.add_argument("--size", choices=["tiny", "3b"], default="3b")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cuda")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    started, found = time.perf_counter(), {}
    for name, command in commands(args.size, args.device).items():
        if args.only and name not in args.only:
            continue
        left = ALL_S - (time.perf_counter() - started)
        if left < 60:
            found[name] = {"fault": "no time was left for it"}
            continue
        found[name] = run(command, args.out / f"{name}.json", min(EACH_S, left))
        print(f"{name}: {found[name]}", file=sys.stderr)
    print(json.dumps({"benchmark": "gpu_all", "seconds": round(time.perf_counter() - started, 1), "parts": found}))
    if any("fault" in part for part in found.values()):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
