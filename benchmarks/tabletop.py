"""Steps per second of `tabletop/table`: step, rendering and expert, by number of environments and picture size.

    python benchmarks/tabletop.py [--threads 2] [--seconds 2] [--device cuda]

The expert acts in every environment; finished environments are reset. On a CPU, up to 4,096 environments at 64 pixels and 64 at
up to 224; on a GPU, 4,096 at 64 and at 224. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import torch

from machine import machine

CASES = {
    "cpu": ((1, 64), (16, 64), (64, 64), (256, 64), (1024, 64), (4096, 64), (64, 112), (64, 224)),
    "cuda": ((64, 64), (1024, 64), (4096, 64), (4096, 224)),
}
TASKS = ("reach", "push", "pick", "put-on", "stack")


def measure(envs: int, size: int, task: str, args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of steps with rendering, of resets, and of the expert; runs for `--seconds`, at least 3 steps."""
    from mmrl_tabletop.table import Table

    table = Table(num_envs=envs, device=args.device, task=task, size=size)
    every = torch.arange(envs, device=args.device)
    active = torch.ones(envs, dtype=torch.bool, device=args.device)
    table.reset(every)
    age = torch.zeros_like(every)
    spent = {"step": 0.0, "reset": 0.0, "expert": 0.0}

    def timed(name: str, work: Any) -> Any:
        synchronise(args.device)
        started = time.perf_counter()
        result = work()
        synchronise(args.device)
        spent[name] += time.perf_counter() - started
        return result

    steps = resets = 0
    while steps < 5 or sum(spent.values()) < args.seconds:
        if steps == 2:  # the steps before were warm-up
            spent, resets = dict.fromkeys(spent, 0.0), 0
        actions = timed("expert", table.expert)
        moved = timed("step", lambda actions=actions: table.step(actions, active))
        age = age + 1
        over = (moved.success_N | moved.terminated_N | (age >= table.max_steps)).nonzero()[:, 0]
        if len(over):
            timed("reset", lambda over=over, steps=steps: table.reset(over + envs * (steps + 1), over))
            age[over] = 0
            resets += len(over)
        steps += 1
    counted = (steps - 2) * envs
    table.close()
    return {
        "environments": envs,
        "size": size,
        "task": task,
        "steps_per_s": round(counted / (spent["step"] + spent["reset"])),
        "steps_per_s_without_resets": round(counted / spent["step"]),
        "microseconds_per_step": round(1e6 * spent["step"] / counted, 1),
        "microseconds_per_reset": round(1e6 * spent["reset"] / max(resets, 1), 1),
        "expert_microseconds_per_step": round(1e6 * spent["expert"] / counted, 2),
    }


def synchronise(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=2.0)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    sizes = [measure(envs, size, "pick", args) for envs, size in CASES[args.device.partition(":")[0]]]
    tasks = [measure(64, 64, task, args) for task in TASKS]
    print(json.dumps({"benchmark": "tabletop", **vars(args), "sizes": sizes, "tasks": tasks, "machine": machine()}))


if __name__ == "__main__":
    main()
