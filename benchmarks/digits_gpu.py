"""The digits demo on the CPU and on a GPU in float32, step by step: how far apart the losses are.

    python benchmarks/digits_gpu.py [--steps 20] [--warm 60] [--device cuda]

The run file of `make demo` with fewer steps of GRPO, in a process for each device. The warm start learns from given answers, so
its losses show rounding alone; its first `--steps` are compared. In GRPO both sample with the same random numbers; where rounding
lets one token fall differently, the runs go separate ways from that step on, which `first_other_sample` names (by the step's mean
reward and length): losses are compared up to it. GRPO's loss is close to zero by construction, so look at the gradient's norm,
whose difference is relative. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import tomli_w

import learning
from machine import machine

DEMO = Path(__file__).parents[1] / "configs" / "demo" / "digits.toml"
SAMPLED = ("reward/mean", "length/mean")
"""Metrics that tell whether both sampled the same."""


def losses(device: str, steps: tuple[int, int], runs: Path) -> list[dict[str, float]]:
    """The metrics of each step on a device."""
    data = tomllib.loads(DEMO.read_text())
    data |= {"name": f"on-{device}", "runs_dir": str(runs), "evaluate": {"num_prompts": 0}, "train": {"threads": 4}}
    data["record"] = {"rollouts_every": 0, "trackers": []}
    data["policy"]["device"] = device
    for stage, count in zip(data["stages"], steps, strict=True):
        stage["steps"] = count
    learning.train(runs, data["name"], tomli_w.dumps(data))
    rows = [json.loads(line) for line in (runs / data["name"] / "metrics.jsonl").read_text().splitlines()]
    return [row["metrics"] for row in rows if "metrics" in row]


def compared(here: list[dict[str, float]], there: list[dict[str, float]]) -> dict[str, Any]:
    """The differences of losses and gradients of steps with the same samples, counted from 1."""
    same = len(here)
    for n, (a, b) in enumerate(zip(here, there, strict=True)):
        if any(abs(a.get(name, 0.0) - b.get(name, 0.0)) > 1e-6 for name in SAMPLED):
            same = n
            break
    apart = [abs(a["loss"] - b["loss"]) for a, b in zip(here[:same], there[:same], strict=True)]
    norms = [abs(a["grad_norm"] / b["grad_norm"] - 1) for a, b in zip(here[:same], there[:same], strict=True) if b["grad_norm"]]
    return {
        "steps": len(here),
        "first_other_sample": same + 1 if same < len(here) else None,
        "largest": max(apart, default=None),
        "first": apart[0] if apart else None,
        "gradient_norm": max(norms, default=None),
        "losses": {"cpu": [row["loss"] for row in here], "device": [row["loss"] for row in there]},
        "rewards": {name: [row.get("reward/mean") for row in rows] for name, rows in (("cpu", here), ("device", there))},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--warm", type=int, default=60, help="steps of the warm start")
    parser.add_argument("--device", default="cuda")
    args = parser.parse_args()
    runs = Path(tempfile.mkdtemp())
    with ThreadPoolExecutor(2) as pool:
        places = [("cpu", runs / "cpu"), (args.device, runs / "device")]
        for _, folder in places:
            folder.mkdir()
        here, there = pool.map(lambda place: losses(place[0], (args.warm, args.steps), place[1]), places)
    sft, rl = (compared(here[part], there[part]) for part in (slice(0, min(args.steps, args.warm)), slice(args.warm, None)))
    found = {"sft": sft, "rl": rl, "after_warm_start": abs(here[args.warm - 1]["loss"] - there[args.warm - 1]["loss"])}
    print(json.dumps({"benchmark": "digits_gpu", **vars(args), **found, "machine": machine()}))


if __name__ == "__main__":
    main()
