"""PPO of a full-size vision-language-action model with random weights on a GPU: environment steps per second, and seconds by
part.

    python benchmarks/vla_gpu.py [--size 3b|7b|tiny] [--environments 64] [--episode 20] [--decoding one-by-one|parallel]
        [--chunk 1] [--pixels 224] [--steps 3] [--lanes 1] [--checkpointing] [--no-profile] [--streams] [--graphs] [--compile]

LoRA of rank 32 in all parts, the embedded table as the simulator, one episode per environment and step, an update of 32
mini-batches, without gradient checkpointing. If memory runs out, that is switched on, then the calls of a forward pass
(`--calls`) are halved, and `error` says so. For comparison: about 13 environment steps per second on an A100 (RL4VLA, 2 million
in 42 hours), about 41 on six GPUs (RLinf, from a user's report). `--size tiny --device cpu` runs the same code anywhere. Prints
one JSON object.

`--streams` then times episodes alone, in turn: in one lane, in two with simulator and policy on one CUDA stream, and in two with
a stream of its own for the policy (`streams`: environment steps per second of each, and how many times the second the last is).
`--graphs` then times the same episodes without and with `generate.cuda_graphs`, in turn (`graphs`: seconds of each in the last
round, how many times as fast; captures, and why nothing was captured, if so; share of equal actions; greatest difference of a
log-probability in the first calls). What follows acts by graphs. `--compile` then runs updates on the same episodes without and
with `train.compile`, in turn: an update of so short rows starts kernels for longer than they compute (README.md).
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

from machine import keep, machine
from mmrl.algorithms.presets import load_algorithm
from mmrl.algorithms.signals import Signals
from mmrl.api.simulators.types import Simulation
from mmrl.api.types import Prompt, Score
from mmrl.config.sections import CriticConfig, LoraConfig, PolicyConfig, RlStage, SimulateConfig, TrainConfig
from mmrl.policies.acting.call_graphs import CallGraphs
from mmrl.policies.acting.vla import VLA
from mmrl.policies.critic import Critic
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.lockstep import SimulatorCollector
from mmrl.rollout.simulators.streams import ActingStream
from mmrl.train.stages.base import collected_values
from mmrl.train.update.learner import Learner
from mmrl.train.update.pack_trajectories import pack_trajectories
from mmrl.train.update.packer import PackOptions
from on_device import EVERYWHERE, SIZES, name_of, weights_made
from step_gpu import clock, compiled, kernels, lowering


class Episodes:
    """The parts of a task that the collector needs."""

    def __init__(self, **options: Any) -> None:
        self.simulation = Simulation(simulator="tabletop/table", reward="own", **options)


class Step:
    """Runs steps: the episodes of all environments, and an update on them."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        lora = LoraConfig(rank=32, alpha=32, target_modules=EVERYWHERE)
        dtype = "float32" if args.size == "tiny" else "bfloat16"
        config = PolicyConfig(model=name_of(args.size), kind="vla", dtype=dtype, lora=lora)  # type: ignore[arg-type]
        with weights_made(args.size, args.device):
            self.policy = VLA(config, device=args.device, dims=7, chunk=args.chunk, bins=64, decoding=args.decoding)
        self.stage = RlStage(
            kind="rl", steps=99, algorithm="ppo", ratio="action", credit="action", learning_rate=1e-4, critic=CriticConfig()
        )
        self.algorithm = load_algorithm("ppo", {"gamma": 0.99})
        critic = Critic(self.policy, CriticConfig(hidden_sizes=[512, 128]), 0, args.chunk)
        self.learner = Learner(
            self.policy, self.stage, self.algorithm, critic=critic, train=TrainConfig(gradient_checkpointing=args.checkpointing)
        )
        self.critic = critic
        self.collector = self.acting(args.lanes)
        self.peaks: dict[str, int] = {}
        """Part of a step -> the most MiB of GPU memory during it."""

    def __call__(self, number: int) -> dict[str, float]:
        """Seconds and figures of one step."""
        rollouts, collect_s = self._part("collect", lambda: self.collect(number))
        figures = self.collector.metrics()
        metrics, update_s = self._part("update", lambda: self.update(rollouts, number))
        steps = figures["simulator/steps"]
        return {
            "environment_steps": steps,
            "steps_per_s": steps / (collect_s + update_s),
            "collect_s": collect_s,
            "collect_steps_per_s": steps / collect_s,
            "update_s": update_s,
            "policy_idle_share": figures["policy/idle_share"],
            "simulator_busy_share": figures["simulator/busy_share"],
            "logprob_gap": metrics["logprob_gap"],
        }

    def acting(self, lanes: int) -> SimulatorCollector:
        """The policy with simulators in so many lanes."""
        simulation = {"terminate_on_success": False, "options": {"size": self.args.pixels, "task": "put-on"}}
        task: Any = Episodes(max_steps=self.args.episode, **simulation)
        simulate = SimulateConfig(num_envs=self.args.environments, lanes=lanes)
        made = SimulatorCollector(self.policy, {"table": task}, simulate, self.args.device)
        made.critic = self.critic
        return made

    def collect(self, number: int) -> list[Any]:
        count = self.args.environments
        prompts = [Prompt(messages=[], id=str(i), task="table", seed=1000 * number + i) for i in range(count)]
        sampling = SamplingParams(max_tokens=1, temperature=1.0, seed=number)
        return self.collector.collect(prompts, [None] * count, 1, sampling)

    def update(self, rollouts: list[Any], number: int) -> dict[str, float]:
        scores = [Score(0.0)] * len(rollouts)
        credit = self.algorithm.credit(
            Signals(rollouts, scores, self.stage, measure=lambda names: collected_values(rollouts, "action"))
        )
        options = PackOptions(keep_zero=True, minibatches=self.args.minibatches, seed=number, ratio="action")
        return self.learner.update(pack_trajectories(rollouts, credit, options, budget=self.args.calls), number)

    def _part(self, name: str, work: Callable[[], Any]) -> tuple[Any, float]:
        if self.policy.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        result, seconds = clock(self.policy, work)
        if self.policy.device.type == "cuda":
            self.peaks[name] = max(self.peaks.get(name, 0), round(torch.cuda.max_memory_allocated() / 2**20))
        return result, seconds


def measured(args: argparse.Namespace, found: dict[str, Any]) -> None:
    """Adds what the steps take to `found`."""
    started = time.perf_counter()
    step = Step(args)
    found["built_s"] = round(time.perf_counter() - started, 1)
    found["weights"] = sum(p.numel() for p in step.policy.vlm.model.parameters())
    rows: list[dict[str, float]] = []
    for number in range(args.steps + 1):
        rows.append(step(number))
        counted = rows[1:] or rows  # the first one warms up
        found |= {name: round(statistics.median(row[name] for row in counted), 4) for name in rows[0]}
        found["counted_steps"] = len(counted)
        if step.peaks:
            found |= {"peaks_mb": step.peaks, "peak_gpu_memory_mb": max(step.peaks.values())}
        keep(found)
    if args.streams:
        streams(step, found)
    if args.graphs:
        graphs(step, found)
    if args.compile:
        episodes = step.collect(0)
        found["compile"] = compiled(step.policy.vlm, step.learner, lambda: step.update(episodes, 0))
        keep(found)
    if not args.no_profile:
        rollouts: list[Any] = []
        found["kernels"] = {"collect": kernels(step.policy, "episodes", lambda: rollouts.extend(step.collect(99)))}
        found["kernels"]["update"] = kernels(step.policy, "update on episodes", lambda: step.update(rollouts, 99))


def streams(step: Step, found: dict[str, Any], runs: int = 2) -> None:
    """Adds environment steps per second of episodes alone to `found`."""
    before, one, two = step.collector, step.acting(1), step.acting(2)
    own, none = two._stream, ActingStream(torch.device("cpu"), 2)
    rates: dict[str, list[float]] = {"one_lane": [], "one_stream": [], "own_stream": []}
    for number in range(1000, 1001 + runs):  # the first one warms up
        for name, collector, stream in (("one_lane", one, none), ("one_stream", two, none), ("own_stream", two, own)):
            collector._stream, step.collector = stream, collector
            _, seconds = clock(step.policy, functools.partial(step.collect, number))
            rates[name].append(collector.metrics()["simulator/steps"] / seconds)
        medians = {name: round(statistics.median(each[1:] or each), 2) for name, each in rates.items()}
        found["streams"] = {**medians, "times": round(medians["own_stream"] / medians["one_stream"], 3)}
        keep(found)
    step.collector = before


def graphs(step: Step, found: dict[str, Any], rounds: int = 4) -> None:
    """Adds episodes without CUDA graphs and with them to `found`. Each round plays the same ones, and the first ones capture."""
    made = CallGraphs(step.policy.model, step.policy.device)
    for number in range(rounds):
        seconds, played = {}, {}
        for name in ("without", "with"):
            step.policy.graphs = made if name == "with" else None
            played[name], seconds[name] = clock(step.policy, functools.partial(step.collect, 2000))
            print(f"episodes {name} graphs: {seconds[name]:.3f} s", file=sys.stderr, flush=True)
        pairs = [(one.data, other.data) for one, other in zip(played["without"], played["with"], strict=True)]
        first = [(one.logprobs_TKC[0], other.logprobs_TKC[0]) for one, other in pairs]  # later ones may see other states
        found["graphs"] = {
            "rounds": number + 1,
            "seconds": {name: round(one, 4) for name, one in seconds.items()},
            "times": round(seconds["without"] / seconds["with"], 3),
            "captures": made.captured,
            "failure": made.failure,
            "same_actions": round(statistics.mean(float((a.choices == b.choices).float().mean()) for a, b in pairs), 4),
            "logprob_gap": round(max(float((a - b).abs().max()) for a, b in first), 6),
        }
        keep(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", choices=SIZES, default="7b")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--decoding", choices=["one-by-one", "parallel"], default="one-by-one")
    parser.add_argument("--checkpointing", action="store_true", help="compute activations again in the backward pass")
    parser.add_argument("--no-profile", action="store_true", help="leave out the costliest kernels")
    parser.add_argument("--streams", action="store_true", help="time episodes with and without a stream of the policy's own")
    parser.add_argument("--graphs", action="store_true", help="time episodes without and with CUDA graphs")
    parser.add_argument("--compile", action="store_true", help="time updates without and with compiled layers")
    for name, default in dict(
        environments=64, episode=20, chunk=1, pixels=224, steps=3, lanes=1, minibatches=32, calls=32
    ).items():
        parser.add_argument(f"--{name}", type=int, default=default)
    args = parser.parse_args()

    def lower() -> None:
        if args.checkpointing:
            args.calls = max(1, args.calls // 2)
        args.checkpointing = True

    print(json.dumps({"benchmark": "vla_gpu", **lowering(measured, args, lower), "machine": machine()}))


if __name__ == "__main__":
    main()
