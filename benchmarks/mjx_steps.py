"""Cost of a step of `mjx` for 1 to 4,096 environments, against MuJoCo's own C code in a loop, on this machine.

    python benchmarks/mjx_steps.py [--task reach] [--counts 1 16 256 4096] [--seconds 6] [--rounds 3] [--device cpu]

A step is ten steps of the physics (50 ms of simulated time) with random actions, of the whole simulator: controller, judgement,
states. MuJoCo steps the same scene for as many steps of the physics, from the same kind of starts, with the controls held: less
work, as it has neither controller nor observations. `physics` is mujoco-warp's share without the simulator around it. Rounds of
the three alternate, so that a busy machine slows all; medians are given. Compilation is measured apart, before. Prints one JSON
object; times are seconds of this process's CPU for one environment and step on a CPU, and of the clock on a GPU.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version
from typing import Any

import mujoco
import torch
import warp
from mmrl_mjx.simulator import SUBSTEPS, Mjx


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--task", default="reach")
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 16, 256, 4096])
    parser.add_argument("--seconds", type=float, default=6.0, help="of each measurement, at least")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    args = parser.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    Mjx(num_envs=1, device=args.device, task=args.task, obs="state").close()
    compiled_s = round(time.process_time() - began, 1)
    rows = {str(count): measured(args, count) for count in args.counts}

    from mmrl.run_folder import manifest

    versions = {name: version(name) for name in ("mujoco", "mujoco-warp", "warp-lang", "torch")}
    settings = vars(args) | {"first_instance_cpu_s": compiled_s}
    print(json.dumps({"environments": rows, "settings": settings, "machine": manifest.machine() | {"versions": versions}}))


def measured(args: argparse.Namespace, count: int) -> dict[str, float]:
    """Seconds of a step of one of so many environments."""
    simulator = Mjx(num_envs=count, device=args.device, task=args.task, obs="state")
    simulator.reset(torch.arange(count))
    worlds, active_N = simulator._worlds, torch.ones(count, dtype=torch.bool)
    generator = torch.Generator().manual_seed(0)
    actions = torch.rand(8, count, simulator.action.dims, generator=generator) * 2 - 1
    data = mujoco.MjData(worlds.source)
    data.qpos[:], data.ctrl[:] = (worlds.views[name][0].cpu().numpy() for name in ("qpos", "ctrl"))
    ways: dict[str, Callable[[int], Any]] = {
        "mjx": lambda i: simulator.step(actions[i % 8].to(simulator.device), active_N),
        "physics": lambda i: worlds._advance(),
        "mujoco": lambda i: [mujoco.mj_step(worlds.source, data) for _ in range(SUBSTEPS)],
    }
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.rounds):
        simulator.reset(torch.arange(count))
        for name, step in ways.items():
            seen[name].append(timed(step, args) / (1 if name == "mujoco" else count))
    simulator.close()
    return {name: float(f"{statistics.median(values):.3g}") for name, values in seen.items()}


def timed(step: Callable[[int], Any], args: argparse.Namespace) -> float:
    """Seconds of a call, the mean over so many seconds of the clock."""
    clock = time.process_time if args.device == "cpu" else time.perf_counter
    end, steps = time.perf_counter() + args.seconds / args.rounds / 3, 0
    began = clock()
    while not steps or time.perf_counter() < end:
        step(steps)
        steps += 1
    warp.synchronize()
    return (clock() - began) / steps


if __name__ == "__main__":
    main()
