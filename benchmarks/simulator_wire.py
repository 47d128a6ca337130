"""Steps per second of one simulator in this process, in one of its own, and served on loopback with and without shared memory.

    python benchmarks/simulator_wire.py [--envs 4] [--size 128] [--seconds 3]

The simulator has one environment per process, which are reached by pipes as in `sims/gym`; an environment costs `--work-ms` of a
core a step and draws two cameras. So `pipes` is what a wire is held against. Prints one JSON object. This file is its plugin.
"""

from __future__ import annotations

import argparse
import json
import os
import threading
import time
from typing import Any

import numpy

from mmrl import SimulatorSpec, hookimpl
from mmrl.api.simulators.types import ActionSpec

CAMERAS = ("front", "wrist")


class Environment:
    """In a process: it computes for a while, and draws."""

    facts = {"dims": 7}

    def __init__(self, size: int, work_ms: float) -> None:
        self.size, self.work_s, self.steps = size, work_ms / 1000, 0

    def reset(self, seed: int, variant: str | None) -> dict[str, Any]:
        self.steps = seed
        return self.rows()

    def step(self, action: Any) -> dict[str, Any]:
        end = time.process_time() + self.work_s
        while time.process_time() < end:
            pass
        self.steps += 1
        return self.rows()

    def rows(self) -> dict[str, Any]:
        picture = numpy.full((self.size, self.size, 3), self.steps % 256, numpy.uint8)
        flags = {name: numpy.array(False) for name in ("terminated", "truncated", "success")}
        state = numpy.full(9, self.steps, numpy.float32)
        return {f"camera/{name}": picture for name in CAMERAS} | flags | {"state": state, "reward": numpy.array(0, numpy.float32)}


def make(num_envs: int, device: str, size: int = 128, work_ms: float = 0.0) -> Any:
    from mmrl.api.simulators.processes import EnvironmentProcesses
    from mmrl.api.simulators.processes.simulator import ProcessSimulator

    options = {"size": size, "work_ms": work_ms}
    workers = EnvironmentProcesses(f"{__name__}:Environment", options, num_envs, what="wire/bench")
    return ProcessSimulator(workers, instruction="", action=ActionSpec(dims=7), max_steps=10**6, device=device)


@hookimpl
def mmrl_simulators() -> list[SimulatorSpec]:
    spec = SimulatorSpec(id="simulator_wire/bench", target=f"{__name__}:make", cameras=CAMERAS, action=ActionSpec(dims=7))
    return [spec]


def measure(simulator: Any, seconds: float) -> dict[str, float]:
    """Environment steps per second, and milliseconds of a step of all; the first tenth of the time is warm-up."""
    import torch

    count = simulator.num_envs
    simulator.reset(torch.arange(count))
    actions, active = torch.zeros(count, 7), torch.ones(count, dtype=torch.bool)

    def run(long: float) -> tuple[int, float]:
        steps, started = 0, time.perf_counter()
        while (spent := time.perf_counter() - started) < long:
            simulator.step(actions, active)
            steps += 1
        return steps, spent

    run(seconds / 10)
    steps, spent = run(seconds)
    return {"steps_per_s": round(steps * count / spent, 1), "ms_per_step": round(1000 * spent / steps, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--envs", type=int, default=4)
    parser.add_argument("--size", type=int, default=128)
    parser.add_argument("--work-ms", type=float, default=0.0)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=3, help="each way is measured this often, in turn, and the best counts")
    args = parser.parse_args()
    os.environ["MMRL_PLUGIN_FILES"] = os.path.abspath(__file__)
    from machine import machine
    from mmrl.api.simulators.types import Simulation
    from mmrl.registry import plugins
    from mmrl.rollout.simulators.wire.client import WireSimulator
    from mmrl.rollout.simulators.wire.server import Server

    simulation = Simulation(simulator="simulator_wire/bench", options={"size": args.size, "work_ms": args.work_ms})
    token = "a token of this benchmark"
    server = Server([simulation.simulator], token, host="127.0.0.1", port=0, options={}, most=4, say=lambda line: None)
    threading.Thread(target=server.serve, daemon=True).start()
    served = {"address": server.address, "token": token}
    ways = {
        "pipes": plugins.registry().make_simulator(simulation, args.envs, "cpu"),
        "process": WireSimulator(simulation, args.envs, 0, 60.0),
        "loopback": WireSimulator(simulation, args.envs, 0, 60.0, **served),
        "loopback, all on the wire": WireSimulator(simulation, args.envs, 0, 60.0, shared=False, **served),
    }
    found: dict[str, dict[str, float]] = {}
    for _ in range(args.rounds):
        for name, simulator in ways.items():
            one = measure(simulator, args.seconds / args.rounds)
            if name not in found or one["steps_per_s"] > found[name]["steps_per_s"]:
                found[name] = one
    for simulator in ways.values():
        simulator.close()
    server.close()
    base = found["pipes"]["steps_per_s"]
    shares = {name: one | {"of_pipes": round(one["steps_per_s"] / base, 3)} for name, one in found.items()}
    print(json.dumps({"envs": args.envs, "size": args.size, "work_ms": args.work_ms, "ways": shares, "machine": machine()}))


if __name__ == "__main__":
    main()
