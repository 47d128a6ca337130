"""Two lanes of simulators: environment steps per second with one lane and with two, for given times of simulator and policy.

    python benchmarks/pipelining.py [--episodes 64] [--tabletop]

The delays are sleeps, as if simulator and policy had separate devices: one lane takes their sum, two lanes the larger of them.
With `--tabletop`, the simulator is the embedded table and the policy a tiny vision-language model, which share this machine's
cores. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from typing import Any

import torch

from machine import machine
from mmrl import SimulatorSpec
from mmrl.api.simulators.types import ActionSpec, Observation, Simulation, Transition
from mmrl.api.types import Prompt
from mmrl.config.sections import PolicyConfig, SimulateConfig
from mmrl.policies.acting.action_sample import ActionSample
from mmrl.policies.acting.vla import VLA
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.simulators.lane import Lane
from mmrl.rollout.simulators.lockstep import SimulatorCollector, make_lane

STEPS, TOTAL_MS = 20, 4.0
"""Steps of an episode, and milliseconds of simulator plus policy for all environments."""
SPEC = SimulatorSpec(id="slow/slow", target="-:-", max_steps=STEPS, capabilities=frozenset({"partial-reset", "per-env-seed"}))


class Slow:
    """A simulator whose step takes time proportional to its number of environments."""

    action = ActionSpec(dims=1)

    def __init__(self, num_envs: int, seconds: float) -> None:
        self.num_envs, self.seconds = num_envs, seconds

    def _seen(self, n: int) -> Observation:
        return Observation(images={}, state=torch.zeros(n, 1), instructions=[""] * n)

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        return self._seen(len(seeds_n))

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        time.sleep(self.seconds)
        no = torch.zeros(self.num_envs, dtype=torch.bool)
        return Transition(
            observation=self._seen(self.num_envs), reward_N=no.float(), terminated_N=no, truncated_N=no, success_N=no
        )

    def close(self) -> None: ...


class SlowPolicy:
    """A policy whose call takes time proportional to the number of observations."""

    device, chunk, dims = torch.device("cpu"), 1, 1

    def __init__(self, seconds_each: float) -> None:
        self.seconds_each = seconds_each

    def act(self, seen: Observation, *_: Any) -> ActionSample:
        time.sleep(self.seconds_each * len(seen))
        nothing = torch.zeros(len(seen), 1, 1)
        return ActionSample(actions_nKA=nothing, choices=nothing, logprobs_nKC=nothing)


def delayed(lanes: int, environments: int, episodes: int, simulator: float, policy: float) -> float:
    """Environment steps per second. simulator, policy: their shares of `TOTAL_MS`."""
    acting: Any = SlowPolicy(policy * TOTAL_MS / 1000 / environments)
    collector = SimulatorCollector(acting, {}, SimulateConfig(num_envs=environments, lanes=lanes))
    size = environments // lanes
    simulators: list[Any] = [Slow(size, simulator * TOTAL_MS / 1000 / lanes) for _ in range(lanes)]
    collector._lanes["slow"] = [Lane(s, SPEC, Simulation(simulator="slow/slow", reward="own"), size) for s in simulators]
    return speed(collector, [Prompt(messages=[], id=str(i), task="slow", seed=i) for i in range(episodes)])


def speed(collector: SimulatorCollector, prompts: list[Prompt]) -> float:
    started = time.perf_counter()
    found = collector.collect(prompts, [None] * len(prompts), 1, SamplingParams(max_tokens=1, temperature=1.0))
    steps = sum(r.outcome["steps"] for r in found)
    return steps / (time.perf_counter() - started)


def table(lanes: int, episodes: int) -> float:
    """Environment steps per second of the embedded table with a tiny model, after one warm-up round."""
    policy = VLA(PolicyConfig(model="tiny:qwen2_5_vl:hidden=64,layers=2", kind="vla"), dims=4, bins=32)
    simulation = Simulation(simulator="tabletop/table", options={"dims": 4, "size": 56, "templates": 1})
    collector = SimulatorCollector(policy, {}, SimulateConfig(num_envs=64, lanes=lanes))
    collector._lanes["table"] = [make_lane(simulation, 64 // lanes, "cpu") for _ in range(lanes)]
    prompts = [Prompt(messages=[], id=str(i), task="table", seed=i) for i in range(episodes)]
    speed(collector, prompts[:64])
    rate = speed(collector, [replace(p, seed=p.seed + 10_000) for p in prompts])
    collector.close()
    return rate


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--tabletop", action="store_true")
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    found: dict[str, Any] = {"benchmark": "pipelining", "episodes": args.episodes}
    for name, simulator, policy in (("1:1", 0.5, 0.5), ("1:3", 0.25, 0.75), ("3:1", 0.75, 0.25)):
        ratios, one, two = [], [], []
        for _ in range(args.repeats):  # in turn
            one.append(delayed(1, 32, args.episodes, simulator, policy))
            two.append(delayed(2, 32, args.episodes, simulator, policy))
            ratios.append(two[-1] / one[-1])
        ideal = 1 / max(simulator, policy)
        found[name] = {
            "one_lane_steps_per_s": round(statistics.median(one)),
            "two_lanes_steps_per_s": round(statistics.median(two)),
            "times": round(statistics.median(ratios), 3),
            "ideal_times": round(ideal, 3),
            "share_of_ideal": round(statistics.median(ratios) / ideal, 3),
        }
    if args.tabletop:
        one, two = [], []
        for _ in range(args.repeats):
            one.append(table(1, 256))
            two.append(table(2, 256))
        ratio = statistics.median(b / a for a, b in zip(one, two, strict=True))
        found["tabletop"] = {"one_lane_steps_per_s": round(statistics.median(one)), "times": round(ratio, 3)}
    print(json.dumps(found | {"machine": machine()}))


if __name__ == "__main__":
    main()
