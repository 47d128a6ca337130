"""Steps a second of `playground`'s simulators against bare MuJoCo Playground, on this machine.

    python benchmarks/playground_steps.py --python PYTHON [--tasks CartpoleBalance] [--counts 64 256] [--seconds 12] [--rounds 6]

PYTHON is the interpreter that has Playground. Bare is `jax.jit(jax.vmap(step))` over all environments, with MJX's own physics
(`impl` jax), whose observations and rewards come to the host in each step, as the plugin's do. `plugin` computes in blocks of 64,
`whole` with `block` set to the number of environments. All take random actions. Rounds of the three alternate, so that a busy
machine slows all; medians are given, and the median of the ratios to bare within a round. Prints one JSON object.
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
    import torch
    from mmrl_playground.simulator import Playground

    active_N = torch.ones(count, dtype=torch.bool)
    ways: dict[str, Callable[[float], float]] = {}
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

        ways[way] = lambda seconds, stepped=stepped: timed(stepped, seconds) * count  # type: ignore[misc]
    command = [args.python, str(Path(__file__)), "--bare", task, str(count)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin and process.stdout

        def bare(seconds: float) -> float:
            assert process.stdin and process.stdout
            print(seconds, file=process.stdin, flush=True)
            return float(process.stdout.readline()) * count

        ways["bare"] = bare
        bare(0.0)  # compiles it
        seen: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(args.rounds):
            for name, way in ways.items():
                seen[name].append(way(args.seconds / args.rounds))
        process.stdin.close()
    for simulator in made:
        simulator.close()
    ratios = {f"{name}_of_bare": statistics.median(map(ratio, seen[name], seen["bare"])) for name in ("plugin", "whole")}
    return {name: round(statistics.median(values)) for name, values in seen.items()} | {k: round(v, 3) for k, v in ratios.items()}


def ratio(one: float, other: float) -> float:
    return one / other


def timed(step: Callable[[int], None], seconds: float) -> float:
    """Calls in a second, over so many seconds."""
    began, calls = time.perf_counter(), 0
    while not calls or time.perf_counter() < began + seconds:
        step(calls)
        calls += 1
    return calls / (time.perf_counter() - began)


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
        print(timed(step, float(line)), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--bare"]:
        serve_bare(sys.argv[2], int(sys.argv[3]))
    else:
        main()
