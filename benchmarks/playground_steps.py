"""Steps a second of `playground`'s simulators against bare MuJoCo Playground, on this machine.

    python benchmarks/playground_steps.py --python PYTHON [--tasks CartpoleBalance] [--counts 64 256] [--seconds 12] [--rounds 6]

PYTHON is the interpreter that has Playground. Bare is `jax.jit(jax.vmap(step))` over all environments, with MJX's own physics
(`impl` jax), whose observations and rewards come to the host in each step, as the plugin's do. `plugin` computes in blocks as
it does by default, `whole` with `block` set to the number of environments. All take random actions. Rounds of the three
alternate, so that a busy machine slows all; medians are given, and the median of the ratios to bare within a round. On a busy
machine two processes that wait for each other lose their turns, so the processor time of a step, in all processes of a way, is
told too (`_cpu_ms`). Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--tasks", nargs="+", default=["CartpoleBalance"])
    parser.add_argument("--counts", type=int, nargs="+", default=[64, 256])
    parser.add_argument("--seconds", type=float, default=12.0, help="of each way, all rounds together")
    parser.add_argument("--rounds", type=int, default=6)
    args = parser.parse_args()
    found = {task: {str(count): measured(args, task, count) for count in args.counts} for task in args.tasks}

    from mmrl.run_folder import manifest

    print(json.dumps({"steps_per_s": found, "settings": vars(args), "machine": manifest.machine()}))


def measured(args: argparse.Namespace, task: str, count: int) -> dict[str, float]:
    """Steps of environments in a second, and ratios to bare Playground."""
    import psutil
    import torch
    from mmrl_playground.simulator import Playground

    active_N = torch.ones(count, dtype=torch.bool)
    ways: dict[str, Callable[[float], tuple[float, float]]] = {}
    made = []
    for way, block in (("plugin", None), ("whole", count)):
        simulator = Playground(
            num_envs=count, device="cpu", python=args.python, task=task, instruction="measure", obs="state", block=block
        )
        made.append(simulator)
        simulator.reset(torch.arange(count))
        actions = torch.rand(8, count, simulator.action.dims, generator=torch.Generator().manual_seed(0)) * 2 - 1

        def stepped(i: int, simulator: Any = simulator, actions: Any = actions) -> None:
            simulator.step(actions[i % 8], active_N)

        def spent(worker: psutil.Process = psutil.Process(simulator._process.pid(0))) -> float:
            return time.process_time() + sum(worker.cpu_times()[:2])

        ways[way] = lambda seconds, stepped=stepped, spent=spent: timed(stepped, seconds, spent)  # type: ignore[misc]
    command = [args.python, str(Path(__file__)), "--bare", task, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout

        def bare(seconds: float) -> tuple[float, float]:
            assert process.stdin and process.stdout
            print(seconds, file=process.stdin, flush=True)
            calls_per_s, cpu_s = json.loads(process.stdout.readline())
            return calls_per_s, cpu_s

        ways["bare"] = bare
        bare(0.0)  # compiles it
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, way in ways.items():
                seen[name].append(way(args.seconds / args.rounds))
        process.stdin.close()
    for simulator in made:
        simulator.close()
    found: dict[str, float] = {}
    for name, values in seen.items():
        speeds, costs = zip(*values, strict=True)
        found[name] = round(statistics.median(speeds) * count)
        found[f"{name}_cpu_ms"] = round(statistics.median(costs) * 1000, 3)
        if name != "bare":
            found[f"{name}_of_bare"] = round(statistics.median(a[0] / b[0] for a, b in zip(values, seen["bare"], strict=True)), 3)
    return found


def timed(step: Callable[[int], None], seconds: float, spent: Callable[[], float] = time.process_time) -> tuple[float, float]:
    """(calls in a second, seconds of the processor for each), over so many seconds. spent: those that were used so far."""
    began, used, calls = time.perf_counter(), spent(), 0
    while not calls or time.perf_counter() < began + seconds:
        step(calls)
        calls += 1
    return calls / (time.perf_counter() - began), (spent() - used) / calls


def serve_bare(task: str, count: int) -> None:
    """In Playground's interpreter: seconds on each line of stdin -> calls of a step in a second."""
    import jax
    import numpy
    from mujoco_playground import registry

    env = registry.load(task, config_overrides={"impl": "jax"})
    state = jax.jit(jax.vmap(env.reset))(jax.vmap(jax.random.PRNGKey)(jax.numpy.arange(count)))
    actions = numpy.random.default_rng(0).uniform(-1, 1, (8, count, env.action_size)).astype("float32")
    advance = jax.jit(jax.vmap(env.step), donate_argnums=0)

    def step(i: int) -> None:
        nonlocal state
        state = advance(state, actions[i % 8])
        for shown in (state.obs, state.reward, state.done):
            numpy.asarray(shown).copy()

    for line in sys.stdin:
        print(json.dumps(timed(step, float(line))), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        serve_bare(sys.argv[2], int(sys.argv[3]))
    else:
        main()
