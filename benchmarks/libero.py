"""Steps per second of the `libero` plugin's processes against as many bare LIBERO environments, in one run.

    python benchmarks/libero.py --python PYTHON [--envs 2] [--seconds 10] [--rounds 3] [--suite spatial] [--task 0] [--size 128]

PYTHON is an interpreter with LIBERO, such as the one of `make simulators`: .simulators/libero/bin/python. Both step the same task
from the same published state with the same actions and read two cameras; the bare processes are independent and synchronised
only at the start of a round. Rounds alternate, so that a busy machine slows both. Prints one JSON object; `share` is the plugin's
steps over the bare processes', the median of the rounds; `cpu_ms` is the CPU time of a step, including the engine's process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from machine import machine
from maniskill import alone, plugin

BARE = """
import sys, time
import numpy
from libero.libero import benchmark
from libero.libero.envs import OffScreenRenderEnv
suite, task, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
found = benchmark.get_benchmark(suite)()
env = OffScreenRenderEnv(bddl_file_name=found.get_task_bddl_file_path(task), camera_heights=size, camera_widths=size)
start = found.get_task_init_states(task)[0]
actions = numpy.load(sys.argv[4]).astype("float64")
env.seed(0); env.reset()
print("ready", flush=True)
for line in sys.stdin:
    env.set_init_state(start); env.env.timestep = 0; env.env.done = False
    before, end, count = time.process_time(), time.perf_counter() + float(line), 0
    while time.perf_counter() < end:
        obs = env.step(actions[count % len(actions)])[0]
        obs["agentview_image"][::-1, ::-1].copy(), obs["robot0_eye_in_hand_image"][::-1, ::-1].copy()
        count += 1
    print(count, time.process_time() - before, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", required=True)
    parser.add_argument("--envs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--suite", default="spatial")
    parser.add_argument("--task", type=int, default=0)
    parser.add_argument("--size", type=int, default=128)
    args = parser.parse_args()
    print(json.dumps({**measured(args), "settings": vars(args), "machine": machine()}))


def measured(args: argparse.Namespace) -> dict[str, Any]:
    """Steps per second of both, and their share."""
    import mmrl_libero
    from mmrl_libero.simulator import Libero

    (spec,) = [spec for spec in mmrl_libero.mmrl_simulators() if spec.id == f"libero/{args.suite}"]
    options = {**spec.options, "variants": (), "size": args.size, "task": args.task, "python": args.python}
    simulator = Libero(num_envs=args.envs, device="cpu", **options)
    actions_TA = torch.rand(64, 7, generator=torch.Generator().manual_seed(0)) * 2 - 1
    rounds: dict[str, list[tuple[float, float]]] = {"plugin": [], "bare": []}
    bare = bare_processes(args, spec.options["suite"], actions_TA, simulator.rendering.environment)
    for _ in range(args.rounds):
        rounds["plugin"].append(plugin(simulator, actions_TA, args.seconds))
        rounds["bare"].append(alone(bare, args.seconds))
    start = time.perf_counter()
    for _ in range(3):
        simulator.reset(torch.zeros(args.envs, dtype=torch.int64))
    reset_s = (time.perf_counter() - start) / 3
    memory_mb = [rss_mb(simulator.workers.pid(env)) for env in range(args.envs)]
    simulator.close()
    for process in bare:
        process.kill()
        process.wait()
    shares = [mine / theirs for (mine, _), (theirs, _) in zip(rounds["plugin"], rounds["bare"], strict=True)]
    return {
        "steps_per_s": {name: round(statistics.median(rate for rate, _ in found), 2) for name, found in rounds.items()},
        "cpu_ms": {name: round(statistics.median(1000 * cpu for _, cpu in found), 1) for name, found in rounds.items()},
        "share": round(statistics.median(shares), 3),
        "shares": [round(share, 3) for share in shares],
        "reset_s": round(reset_s, 2),
        "memory_mb": memory_mb,
        "rendering": simulator.rendering.rendering,
    }


def bare_processes(
    args: argparse.Namespace, suite: str, actions_TA: torch.Tensor, environment: dict[str, str]
) -> list[subprocess.Popen[str]]:
    """Bare environments that wait for the first round."""
    import numpy

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "actions.npy"
        numpy.save(file, actions_TA.numpy())
        bare = [
            subprocess.Popen(
                [args.python, "-c", BARE, suite, str(args.task), str(args.size), str(file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **environment, "OMP_NUM_THREADS": "1"},
            )
            for _ in range(args.envs)
        ]
        for process in bare:
            while process.stdout and (line := process.stdout.readline()).strip() != "ready":  # LIBERO prints, too
                if not line:
                    raise SystemExit(f"a bare environment ended: {args.python} has no LIBERO that renders")
    return bare


def rss_mb(pid: int | None) -> int:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


if __name__ == "__main__":
    main()
