"""Frames per second of the `maniskill` plugin's processes against as many bare ManiSkill processes, in one run.

    python benchmarks/maniskill.py [--envs 2] [--seconds 5] [--rounds 5] [--cases state rgb-64 rgb-128]

Needs an interpreter with ManiSkill, such as the one of `make simulators`: .simulators/maniskill/bin/python. Both step
`PickCube-v1` with the same actions and read the observations; the bare processes are independent and synchronised only at the
start of a round. Rounds alternate, so that a busy machine slows both. Prints one JSON object; `share` is the plugin's frames over
the bare processes' frames, the median of the rounds. `cpu_ms` is the CPU time of a frame, including the engine's process, which
hardly depends on the load of the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

BARE = """
import sys, time
import torch
torch.set_num_threads(1)
sys.path[:0] = [sys.argv[1]]
from environment import made
obs, size, rendering = sys.argv[2], int(sys.argv[3]), sys.argv[4]
env, _ = made("PickCube-v1", 1, "physx_cpu", obs=obs, size=size, control_mode="pd_ee_delta_pose", reward="normalized_dense",
              rendering=rendering)
env.reset(seed=1)
actions = torch.load(sys.argv[5])
print("ready", flush=True)
for line in sys.stdin:
    env.reset(seed=1)
    before, end, count = time.process_time(), time.perf_counter() + float(line), 0
    while time.perf_counter() < end:
        seen = env.step(actions[count % len(actions)][None])[0]
        if obs == "rgb":
            seen["sensor_data"]["base_camera"]["rgb"].numpy()
        count += 1
    print(count, time.process_time() - before, flush=True)
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--envs", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cases", nargs="+", default=["state", "rgb-64", "rgb-128"], help="state, or rgb-SIZE with the picture's side in pixels"
    )
    args = parser.parse_args()

    from importlib.metadata import version

    from mmrl.run_folder import manifest

    print(
        json.dumps(
            {
                "cases": {case: measured(case, args) for case in args.cases},
                "settings": vars(args),
                "machine": manifest.machine() | {"versions": {p: version(p) for p in ("torch", "mani-skill", "sapien", "numpy")}},
            }
        )
    )


def measured(case: str, args: argparse.Namespace) -> dict[str, Any]:
    """Frames per second of both, and their share, for one kind of observation."""
    import mmrl_maniskill
    from mmrl_maniskill.simulator import ManiSkill

    obs, _, size = case.partition("-")
    (spec,) = [spec for spec in mmrl_maniskill.mmrl_simulators() if spec.id == "maniskill/pick-cube"]
    simulator = ManiSkill(num_envs=args.envs, device="cpu", obs=obs, size=int(size or 128), **spec.options)
    rung = simulator.rendering
    actions_TA = torch.rand(64, 7, generator=torch.Generator().manual_seed(0)) * 2 - 1
    rounds: dict[str, list[tuple[float, float]]] = {"plugin": [], "bare": []}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "actions.pt"
        torch.save(actions_TA, file)
        command = [str(Path(mmrl_maniskill.__file__).parent), obs, size or "128", rung.rendering, str(file)]
        bare = [
            subprocess.Popen(
                [sys.executable, "-c", BARE, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                env={**os.environ, **rung.environment, "OMP_NUM_THREADS": "1"},
            )
            for _ in range(args.envs)
        ]
        for process in bare:
            assert process.stdout and process.stdout.readline().strip() == "ready"
    for _ in range(args.rounds):
        rounds["plugin"].append(plugin(simulator, actions_TA, args.seconds))
        rounds["bare"].append(alone(bare, args.seconds))
    simulator.close()
    for process in bare:
        process.kill()
        process.wait()
    shares = [mine / theirs for (mine, _), (theirs, _) in zip(rounds["plugin"], rounds["bare"], strict=True)]
    return {
        "frames_per_s": {name: round(statistics.median(rate for rate, _ in found), 1) for name, found in rounds.items()},
        "cpu_ms": {name: round(statistics.median(1000 * cpu for _, cpu in found), 3) for name, found in rounds.items()},
        "share": round(statistics.median(shares), 3),
        "shares": [round(share, 3) for share in shares],
        "rendering": rung.rendering,
        "driver": rung.driver,
    }


def plugin(simulator: Any, actions_TA: torch.Tensor, seconds: float) -> tuple[float, float]:
    """Frames per second of all environments in lock-step, and CPU seconds per frame."""
    pids = [os.getpid(), *(simulator.workers.pid(env) for env in range(simulator.num_envs))]
    simulator.reset(torch.ones(simulator.num_envs, dtype=torch.int64))
    active_N = torch.ones(simulator.num_envs, dtype=torch.bool)
    started, before, count = time.perf_counter(), sum(map(cpu_s, pids)), 0
    while time.perf_counter() < started + seconds:
        simulator.step(actions_TA[count % len(actions_TA)].expand(simulator.num_envs, -1), active_N)
        count += simulator.num_envs
    return count / (time.perf_counter() - started), (sum(map(cpu_s, pids)) - before) / count


def alone(bare: list[subprocess.Popen[str]], seconds: float) -> tuple[float, float]:
    """Frames per second of all processes, independently, and CPU seconds per frame."""
    for process in bare:
        assert process.stdin
        process.stdin.write(f"{seconds}\n")
        process.stdin.flush()
    said = [process.stdout.readline().split() for process in bare if process.stdout]
    count = sum(int(frames) for frames, _ in said)
    return count / seconds, sum(float(cpu) for _, cpu in said) / count


def cpu_s(pid: int) -> float:
    """CPU seconds of a process so far, of all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    main()
