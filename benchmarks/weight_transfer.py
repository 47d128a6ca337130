"""The learner's weights on their way to engines elsewhere: through Ray's object store against broadcasts in buckets.

    python benchmarks/weight_transfer.py [--hidden 1024] [--layers 6] [--engines 2] [--rounds 3]

Starts a local Ray and real engines (mmrl's own sampler), changes all weights of a model of random ones, and measures until every
engine has them; both ways in turn, in one run. On GPUs (`--device cuda`, one for the learner and one for each engine) a broadcast
goes over NCCL, on CPUs over gloo on loopback. Memory is the learner's process's: its greatest resident size in the first sync
above that before it, with the pages of the object store that it writes. On a CPU the store is given views of the weights; those
of a GPU need one more copy on the host. Prints one JSON object; seconds are the median of the rounds behind the first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import threading
import time
from typing import Any

import psutil
import torch

from machine import machine
from mmrl.config.load import parse_config
from mmrl.config.sections import RunConfig
from mmrl.policies.vlm.vlm import VLM
from mmrl.rollout.generate.engines import EngineActors
from mmrl.rollout.generate.sampling import SamplingParams
from mmrl.rollout.generate.transfer import engine_answers

WAYS = ("store", "broadcast")
EVERY_S = 0.002
"""Seconds between two looks at the memory."""


class Peak:
    """Greatest resident size of this process inside the block, above that at its beginning."""

    def __enter__(self) -> Peak:
        self.process, self.over, self.bytes = psutil.Process(), threading.Event(), 0
        self.before = self.process.memory_info().rss
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def _watch(self) -> None:
        while not self.over.wait(EVERY_S):
            self.bytes = max(self.bytes, self.process.memory_info().rss - self.before)

    def __exit__(self, *raised: object) -> None:
        self.over.set()
        self.thread.join()


def config_of(given: argparse.Namespace, **compute: Any) -> RunConfig:
    """A run file of the model."""
    rest = {"tasks": [{"id": "demo/digits"}], "stages": [{"kind": "rl", "steps": 1}]}
    return parse_config({"name": "weights", "policy": {"model": given.model}, "compute": compute, **rest})


def engines(how: str, given: argparse.Namespace, policy: VLM) -> EngineActors:
    """Started ones, that get weights this way."""
    made = EngineActors(config_of(given, placement="separate", engines=given.engines, weight_transfer=how), policy)
    made.ready()
    return made


def sync(actors: EngineActors, policy: VLM) -> dict[str, float]:
    """Change all weights, and send them."""
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(1e-3)
    with Peak() as peak:
        began = time.perf_counter()
        actors.wake_up()
        actors.transfer.wait()
        sampling = SamplingParams(max_tokens=1, temperature=0.0)
        calls = [e.generate.remote(actors.syncs, actors.transfer.references, [], 1, sampling, []) for e in actors.engines]
        answers = engine_answers(calls, 0)  # of no prompts: each reads the weights, if they are in the store
        seconds = time.perf_counter() - began
    assert answers == [[]] * len(actors.engines), "every engine has this version"
    actors.sleep()
    return {"seconds": seconds, "host_bytes": float(peak.bytes), "sent_bytes": float(actors.sent)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=1024)
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    given.model = f"tiny:qwen2_5_vl:hidden={given.hidden},layers={given.layers}"
    policy = VLM(config_of(given).policy, device=given.device, seed=0)
    found: dict[str, Any] = {}
    for how in WAYS:
        actors = engines(how, given, policy)
        first = sync(actors, policy)
        rounds = [sync(actors, policy) for _ in range(given.rounds)]
        seconds = statistics.median(one["seconds"] for one in rounds)
        found[how] = first | {"first_seconds": first["seconds"], "seconds": seconds}
        actors.close()
    found |= {"engines": given.engines, "model": given.model, "parameters": sum(p.numel() for p in policy.model.parameters())}
    print(json.dumps(found | {"device": given.device, "machine": machine("ray")}, indent=1))


if __name__ == "__main__":
    main()
