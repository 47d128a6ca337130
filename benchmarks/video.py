"""Reading a video once per group against once per completion; and growth of memory in training.

    python benchmarks/video.py [--clips 12] [--group 8] [--rounds 3] [--steps 200] [--size middle]

Both ways sample the same groups of completions of a `tiny:qwen2_5_vl` to questions about generated clips (224 pixels, 8 to 16
seconds, H.264). `once` is mmrl's way: a clip is decoded and processed once per prompt, and the group shares the results of the
vision tower and the prefill. `each` decodes, processes and prefills for each completion, like a sampler that gets a list of
repeated prompts. Rounds alternate. Then `--steps` steps train on different clips: decoded files are counted (four more are read
before the first step), and memory in the last fifth of the steps is compared with the second fifth. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from machine import machine
from mmrl.api.media.decoding import Count, clear_cache


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clips", type=int, default=12, help="prompts per round")
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--size", default="middle")
    parser.add_argument("--tokens", type=int, default=8, help="maximum tokens of a completion")
    args = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    print(json.dumps({"benchmark": "video", **compared(args), **memory(args), "machine": machine()}))


def compared(args: argparse.Namespace) -> dict[str, object]:
    """Completions per second of both ways, and their ratio."""
    from mmrl.api.types import Prompt
    from mmrl.config.sections import PolicyConfig
    from mmrl.policies.vlm.vlm import VLM
    from mmrl.rollout.generate.local import LocalGenerator
    from mmrl.rollout.generate.sampling import SamplingParams
    from mmrl.rollout.turns import ConversationCollector

    policy = VLM(PolicyConfig(model="tiny:qwen2_5_vl:hidden=64,layers=2"))
    collector = ConversationCollector(policy, LocalGenerator(policy, batch_size=256))
    sampling = SamplingParams(max_tokens=args.tokens, temperature=1.0)
    prompts = _prompts(args.size, args.clips)

    def once(asked: Sequence[Prompt]) -> int:
        clear_cache()
        return len(collector.collect(asked, collector.encode(asked), args.group, sampling))

    def each(asked: Sequence[Prompt]) -> int:
        made = 0
        for _ in range(args.group):
            clear_cache()
            made += len(collector.collect(asked, collector.encode(asked), 1, sampling))
        return made

    rates: dict[str, list[float]] = {"once": [], "each": []}
    decoded: dict[str, int] = {}
    once(prompts[:2])
    for _ in range(args.rounds):
        for name, way in (("once", once), ("each", each)):
            before, started = Count.files, time.perf_counter()
            made = way(prompts)
            rates[name].append(made / (time.perf_counter() - started))
            decoded[name] = Count.files - before
    ratios = [a / b for a, b in zip(rates["once"], rates["each"], strict=True)]
    return {
        "completions_per_s": {name: round(statistics.median(found), 2) for name, found in rates.items()},
        "times": round(statistics.median(ratios), 2),
        "rounds": [round(r, 2) for r in ratios],
        "files_decoded": decoded,
        "clips": args.clips,
        "group": args.group,
        "prompt_tokens": round(statistics.fmean(len(policy.encode(p).ids) for p in prompts[:4])),
    }


def memory(args: argparse.Namespace) -> dict[str, object]:
    """The growth of resident memory over training steps, each with different clips."""
    import tempfile

    from mmrl.config.load import parse_config
    from mmrl.train.start import train

    per_step = 2
    found: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        config = parse_config(
            {
                "name": "memory",
                "runs_dir": folder,
                "policy": {"model": "tiny:qwen2_5_vl:hidden=32,layers=1"},
                "tasks": [{"id": "video/temporal", "options": {"train": per_step * args.steps, "size": "small"}}],
                "stages": [{"kind": "rl", "steps": args.steps, "prompts_per_step": per_step, "group_size": 4}],
                "generate": {"max_tokens": 4},
                "evaluate": {"num_prompts": 0},
                "record": {"rollouts_every": 0, "trackers": []},
            }
        )
        before = Count.files
        train(config, Watched(found))
        decoded = Count.files - before
    fifth = len(found) // 5
    early, late = statistics.median(found[fifth : 2 * fifth]), statistics.median(found[-fifth:])
    return {"steps": len(found), "steps_decoded": decoded, "memory": round(late / early, 3), "memory_mb": round(late / 2**20)}


class Watched:
    """Records the memory after each step of a run."""

    def __init__(self, found: list[int]) -> None:
        self.found = found

    def stage_started(self, *_: Any) -> None: ...

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        self.found.append(_resident())

    def evaluated(self, *_: Any) -> None: ...

    def note(self, text: str) -> None: ...

    def say(self, text: str) -> None: ...

    def stopping(self) -> None: ...


def _prompts(size: str, count: int) -> list[Any]:
    from mmrl.registry.plugins import registry

    task = registry().make_task("video/temporal", {"size": size, "train": count})
    return list(task.prompts("train", 0))[:count]


def _resident() -> int:
    import psutil

    return int(psutil.Process().memory_info().rss)


if __name__ == "__main__":
    main()
