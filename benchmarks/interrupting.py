"""Sampling ahead with answers that new weights interrupt, against answers that finish with the old ones (`compute.interrupt`).

    python benchmarks/interrupting.py [--token 0.01] [--learn 0.6] [--steps 16] [--rounds 3] [--staleness 1 2 4]

Whole runs of a tiny model, whose answers end after a geometrically distributed number of tokens (`--mean-tokens`, at most 64).
Each pass of the sampler sleeps for `--token` more seconds, one of several tokens (a prompt, a cache that is computed anew) four
times as long, and each update for `--learn`, so that sampling and learning don't compete for cores. For each bound of the
staleness, runs with and without interruption alternate. Prints one JSON object: of each kind of run the medians over its rounds.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from asynchronous import Watcher, slower
from machine import machine
from mmrl.config.load import parse_config
from mmrl.policies.vlm.families import Family
from mmrl.policies.vlm.vlm import VLM
from mmrl.train.start import train
from mmrl.train.update.learner import Learner

PREFILL = 4
"""A pass of several tokens takes as long as so many of one token."""
LONGEST = 64


def decode_slower(token_s: float) -> None:
    """Let each pass of the sampler sleep."""
    step = Family.step

    def slow(family: Family, ids: Any, *given: Any) -> Any:
        time.sleep(token_s * (PREFILL if ids.shape[1] > 1 else 1))
        return step(family, ids, *given)

    Family.step = slow  # type: ignore[method-assign]


def end_after(mean: float) -> None:
    """Let a policy of random weights end its answers after so many tokens on average."""
    make = VLM.__init__

    def made(vlm: VLM, *given: Any, **options: Any) -> None:
        make(vlm, *given, **options)
        likely = int(vlm.bias_V.isfinite().sum()) / len(vlm.eos)
        vlm.bias_V[sorted(vlm.eos)] += math.log(likely / mean)

    VLM.__init__ = made  # type: ignore[method-assign]


def run(runs: Path, staleness: int, interrupt: bool, steps: int) -> dict[str, float]:
    """Figures of one run, from its third step on."""
    data = {
        "name": f"cut-{staleness}-{interrupt}-{time.time_ns()}",
        "runs_dir": str(runs),
        "policy": {"model": "tiny:qwen2_5_vl:hidden=32,layers=1"},
        "tasks": [{"id": "classification/digits"}],
        "stages": [{"kind": "rl", "steps": steps, "prompts_per_step": 4, "group_size": 4}],
        "generate": {"max_tokens": LONGEST},
        "evaluate": {"num_prompts": 0},
        "train": {"threads": 1},
        "compute": {"staleness": staleness, "interrupt": interrupt},
        "limits": {"logprob_gap": {"stop": 10.0}},
    }
    watcher = Watcher()
    folder = train(parse_config(data), watcher)
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line)["metrics"] for line in lines if '"metrics"' in line][2:]
    return {
        "steps_per_s": (len(watcher.ended) - 2) / (watcher.ended[-1] - watcher.ended[1]),
        "learner_waits_s": statistics.fmean(row["time/wait"] for row in rows),
        "sampling_s": statistics.fmean(row["async/generate"] for row in rows),
        "versions_behind": statistics.fmean(row["staleness/mean"] for row in rows),
        "interrupted_share": statistics.fmean(row.get("interrupted/share", 0.0) for row in rows),
        "tokens_mean": statistics.fmean(row["length/mean"] for row in rows),
        "tokens_max": statistics.fmean(row["length/max"] for row in rows),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--token", type=float, default=0.01)
    parser.add_argument("--learn", type=float, default=0.6)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--staleness", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--mean-tokens", type=float, default=12.0)
    args = parser.parse_args()
    decode_slower(args.token)
    end_after(args.mean_tokens)
    Learner.update = slower(Learner.update, args.learn)  # type: ignore[method-assign]
    kinds = [(k, cut) for k in args.staleness for cut in (False, True)]
    with tempfile.TemporaryDirectory() as folder:
        found = [{kind: run(Path(folder), *kind, args.steps) for kind in kinds} for _ in range(args.rounds)]

    def median(kind: tuple[int, bool]) -> dict[str, float]:
        return {name: round(statistics.median(one[kind][name] for one in found), 4) for name in found[0][kind]}

    print(
        json.dumps(
            {
                "benchmark": "interrupting",
                "token_s": args.token,
                "learn_s": args.learn,
                "staleness": {
                    k: {
                        "finished": median((k, False)),
                        "interrupted": median((k, True)),
                        "steps_per_s_times": [
                            round(one[k, True]["steps_per_s"] / one[k, False]["steps_per_s"], 3) for one in found
                        ],
                    }
                    for k in args.staleness
                },
                "machine": machine(),
            }
        )
    )


if __name__ == "__main__":
    main()
