"""Start-up times of commands without heavy imports, compared with a bare interpreter.

    python benchmarks/startup.py [--runs 15]

Prints one JSON object: medians in seconds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from typing import Any

from machine import machine

COMMANDS: dict[str, list[str]] = {
    "python": ["-c", "pass"],
    "mmrl --help": ["-m", "mmrl", "--help"],
    "mmrl plugins": ["-m", "mmrl", "plugins"],
    "mmrl list": ["-m", "mmrl", "list"],
}


def seconds(arguments: list[str]) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=15)
    args = parser.parse_args()
    found: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(args.runs):
        for name, arguments in COMMANDS.items():  # in turn, so that drift of the machine affects all
            found[name].append(seconds(arguments))
    medians: dict[str, Any] = {name: round(statistics.median(v), 3) for name, v in found.items()}
    print(json.dumps({"benchmark": "startup", "median_s": medians, "machine": machine()}))


if __name__ == "__main__":
    main()
