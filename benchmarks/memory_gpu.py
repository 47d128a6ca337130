"""Most memory of a step that spares it, against `mmrl plan`: 7B by adapters over 4 bits, and all of 3B offloaded to the host.

    python benchmarks/memory_gpu.py [--size full|tiny] [--device cuda]

One prompt with five completions of 64 tokens, one micro-batch, random weights of the published shapes; `sdpa`, so that no kernel
is compiled first. `ratio` is predicted over measured; `within_24gb` says whether all that was measured fits a GPU of 24 GB. On a
CPU, what is offloaded counts as measured. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import gc
import json
from typing import Any

import torch

import plan
from machine import keep, machine

CASES = {"7b, LoRA over 4 bits": ("7b", ["--nf4", "--checkpointing"]), "3b, offloaded": ("3b", ["--offload"])}
WORK = ["--prompts", "1", "--group", "5", "--tokens", "64", "--pixels", "512", "--steps", "1", "--attention", "sdpa"]
TINY = ["--prompts", "1", "--group", "2", "--tokens", "8", "--pixels", "112", "--steps", "1", "--hidden", "64", "--layers", "2"]


def peaks(size: str, options: list[str], device: str) -> dict[str, Any]:
    """The peaks of sampling and of the update, predicted and measured, in MiB."""
    given = [*(TINY if size == "tiny" else WORK), *options, "--size", size, "--device", device]
    memory = plan.compared(plan.parser().parse_args(given))["memory"]
    rows = {key.removeprefix("peak: "): row for key, row in memory.items() if key.startswith("peak: ")}
    mib = {
        k: {name: round(row[name] / 2**20) for name in ("predicted", "measured")} | {"ratio": row["ratio"]}
        for k, row in rows.items()
    }
    return mib | {"within_24gb": max(row["measured"] for row in rows.values()) <= 24e9}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=("full", "tiny"), default="full")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    found: dict[str, Any] = {"benchmark": "memory_gpu", "cases": {}}
    for name, (size, options) in CASES.items():
        try:
            found["cases"][name] = peaks("tiny" if args.size == "tiny" else size, options, args.device)
        except Exception as error:  # noqa: BLE001  the other case is measured all the same
            found["cases"][name] = {"error": f"{type(error).__name__}: {error}"[:300]}
        keep(found)
        gc.collect()
        if args.device != "cpu":
            torch.cuda.empty_cache()
    print(json.dumps(found | {"machine": machine()}))


if __name__ == "__main__":
    main()
