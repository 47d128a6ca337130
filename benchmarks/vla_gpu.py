"""PPO of a full-size vision-language-action model with random weights on a GPU: environment steps per second, and seconds by
part.

    python benchmarks/vla_gpu.py [--size 3b|7b|tiny] [--environments 64] [--episode 20] [--decoding one-by-one|parallel]
        [--chunk 1] [--pixels 224] [--steps 3] [--lanes 1]

LoRA of rank 32 in all parts, the embedded table as the simulator, one episode per environment and step, an update of 32
mini-batches. For comparison: about 13 environment steps per second on an A100 (RL4VLA, 2 million in 42 hours), about 41 on six
GPUs (RLinf, from a user's report). `--size tiny --device cpu` runs the same code anywhere. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from typing import Any

import torch

from machine import machine
from mmrl.algorithms.presets import load_algorithm
from mmrl.algorithms.signals import Signals
from mmrl.api.simulators.types import Simulation
from mmrl.api.types import Prompt, Score
from mmrl.config.sections import CriticConfig, LoraConfig, PolicyConfig, RlStage, SimulateConfig
from mmrl.policies.acting.vla import VLA
from mmrl.policies.critic import Critic
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.train.stages.base import collected_values
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_trajectories import pack_trajectories
from mmrl.train.update.packer import PackOptions
from step_gpu import checkpoint


class Episodes:
    """The parts of a task that the collector needs."""

    def __init__(self, **options: Any) -> None:
        self.simulation = Simulation(simulator="tabletop/table", reward="own", **options)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=["tiny", "3b", "7b"], default="7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--decoding", choices=["one-by-one", "parallel"], default="one-by-one")
    for name, default in dict(
        environments=64, episode=20, chunk=1, pixels=224, steps=3, lanes=1, minibatches=32, calls=32
    ).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()
    lora = LoraConfig(rank=32, alpha=32, target_modules=["vision", "projector", "language"])
    dtype = "float32" if args.size == "tiny" else "bfloat16"
    config = PolicyConfig(model=checkpoint(args.size), kind="vla", dtype=dtype, lora=lora)
    policy = VLA(config, device=args.device, dims=7, chunk=args.chunk, bins=64, decoding=args.decoding)
    stage = RlStage(
        kind="rl", steps=99, algorithm="ppo", ratio="action", credit="action", learning_rate=1e-4, critic=CriticConfig()
    )
    algorithm = load_algorithm("ppo", {"gamma": 0.99})
    critic = Critic(policy, CriticConfig(hidden_sizes=[512, 128]), 0, args.chunk)
    learner = Learner(policy, stage, algorithm, critic=critic, checkpointed=args.size != "tiny")
    simulation = {"max_steps": args.episode, "terminate_on_success": False, "options": {"size": args.pixels, "task": "put-on"}}
    task: Any = Episodes(**simulation)
    collector = SimulatorCollector(
        policy, {"table": task}, SimulateConfig(num_envs=args.environments, lanes=args.lanes), args.device
    )
    collector.critic = critic
    rows: list[dict[str, float]] = []
    for step in range(args.steps + 1):
        prompts = [Prompt(messages=[], id=str(i), task="table", seed=1000 * step + i) for i in range(args.environments)]
        started = time.perf_counter()
        rollouts = collector.collect(prompts, [None] * len(prompts), 1, SamplingParams(max_tokens=1, temperature=1.0, seed=step))
        _wait(policy)
        collected = time.perf_counter()
        figures = collector.metrics()
        signals = Signals(
            rollouts, [Score(0.0)] * len(rollouts), stage, measure=lambda names, r=rollouts: collected_values(r, "action")
        )
        credit = algorithm.credit(signals)
        options = PackOptions(keep_zero=True, minibatches=args.minibatches, seed=step, ratio="action")
        batches = pack_trajectories(rollouts, credit, options, budget=args.calls)
        metrics = learner.update(batches, step)
        _wait(policy)
        done = time.perf_counter()
        if step:  # the first one warms up
            steps = figures["simulator/steps"]
            row = {"collect_s": collected - started, "update_s": done - collected, "steps_per_s": steps / (done - started)}
            row |= {"collect_steps_per_s": steps / (collected - started), "policy_idle_share": figures["policy/idle_share"]}
            rows.append(row | {"simulator_busy_share": figures["simulator/busy_share"], "logprob_gap": metrics["logprob_gap"]})
    found = {"benchmark": "vla_gpu", **vars(args)}
    found |= {name: round(statistics.median(row[name] for row in rows), 4) for name in rows[0]}
    found["weights"] = sum(p.numel() for p in policy.vlm.model.parameters())
    if policy.device.type == "cuda":
        found["peak_gpu_memory_mb"] = round(torch.cuda.max_memory_allocated() / 2**20)
    print(json.dumps(found | {"machine": machine()}))


def _wait(policy: VLA) -> None:
    if policy.device.type == "cuda":
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
