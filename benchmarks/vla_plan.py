"""What `mmrl plan` expects of the part `vla` of `gpu_all.py`, a 7B policy with LoRA that acts: environment steps a second, by the
share of the GPU's peak rate that matrix products reach and by the time to start a kernel.

    python benchmarks/vla_plan.py [--machine h200] [--model Qwen/Qwen2.5-VL-7B] [--environments 64] [--episode 10] [--graphs]

The shares are those of the arithmetic in README.md (0.35, 0.5) and of the plan (0.65). A kernel takes 7 us to start in a loop of
its own, and 16 us in the plan, as from Python in a decoding step that was measured. `--graphs` plans with `generate.cuda_graphs`.

Prints one JSON object, whose `rows` have for each `share` and `launch_us`: `steps_per_s`, the environments' steps in a second of
collecting and updating; and `seconds` of the parts of a training step, as `mmrl plan` names them. Simulators take no time here.
Where rows of one `launch_us` are equal, starting kernels takes longer than what they compute. `machine` is the one of which the
figures are, `machine_here` the computer that ran the command.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from typing import Any

from machine import machine
from mmrl.config.sections import RunConfig
from mmrl.train.plan import predict
from mmrl.train.plan.machines import GPUS
from mmrl.train.resolve import with_algorithm_defaults
from on_device import EVERYWHERE

SHARES, LAUNCHES = (0.35, 0.5, 0.65), (7e-6, 16e-6)


def run_file(args: argparse.Namespace) -> RunConfig:
    """That of `vla_gpu.py`."""
    options = {"decoding": "one-by-one", "dims": 7, "chunk": 1, "bins": 64}
    lora = {"rank": 32, "alpha": 32, "target_modules": list(EVERYWHERE)}
    stage = {"kind": "rl", "steps": 1, "algorithm": "ppo", "ratio": "action", "credit": "action", "critic": {}, "group_size": 1}
    data: dict[str, Any] = {
        "name": "vla",
        "policy": {"kind": "vla", "model": args.model, "dtype": "bfloat16", "lora": lora, "options": options},
        "tasks": [{"id": "tabletop/table", "options": {"max_steps": args.episode}}],
        "stages": [stage | {"prompts_per_step": args.environments, "minibatches": 32}],
        "simulate": {"num_envs": args.environments},
        "generate": {"cuda_graphs": args.graphs},
    }
    return with_algorithm_defaults(RunConfig.model_validate(data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--machine", choices=sorted(GPUS), default="h200")
    parser.add_argument("--model", default="Qwen/Qwen2.5-VL-7B")
    parser.add_argument("--environments", type=int, default=64)
    parser.add_argument("--episode", type=int, default=10)
    parser.add_argument("--graphs", action="store_true", help="start the kernels of action tokens at once")
    args = parser.parse_args()
    config, rows = run_file(args), []
    for launch in LAUNCHES:
        for share in SHARES:
            stage = predict(config, replace(GPUS[args.machine], matmul=share, launch=launch), online=False).stages[0]
            parts = {part.name: round(part.seconds, 2) for part in stage.seconds}
            steps = round(args.environments * args.episode / stage.step_s, 1)
            rows.append({"share": share, "launch_us": round(launch * 1e6), "steps_per_s": steps, "seconds": parts})
    print(json.dumps({"benchmark": "vla_plan", **vars(args), "rows": rows, "machine_here": machine()}))


if __name__ == "__main__":
    main()
