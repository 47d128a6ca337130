"""What scoring through an adapter costs over the judge alone: TRL's reward function, and verl's, EasyR1's and ms-swift's.

    python benchmarks/interop.py [--completions 1000] [--group 8] [--rounds 9]

Each round scores the same completions by the judge alone and by each adapter, in turn, in one process with one worker. `ratio`
is the median over the rounds of an adapter's time by the judge's in its round. verl calls its function for one completion at a
time, from threads. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from mmrl_interop import easyr1, scoring, swift, verl
from mmrl_interop.rows import read_stored
from mmrl_interop.trl import TrlTask

from mmrl import open_task
from mmrl.judge import local_judge

TASK = "grounding/refer"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--completions", type=int, default=1000)
    parser.add_argument("--group", type=int, default=8, help="completions per prompt")
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    with open_task(TASK) as task, local_judge({name: {} for name in task.verifiers}) as judge:
        made = TrlTask(task, "train", 0, -(-args.completions // args.group), False, 1)
        rows = [row for row in made.train_dataset["mmrl"] for _ in range(args.group)][: args.completions]
        texts = [f"{8 * (k % 9)} 0 {8 * (k % 9) + 24} {k % 40}" for k in range(len(rows))]
        cases = [read_stored(row).completed(text) for row, text in zip(rows, texts, strict=True)]
        said = [[{"role": "assistant", "content": text}] for text in texts]
        ids = [[1] * len(text) for text in texts]
        weights = [task.verifiers] * len(cases)
        inputs = [
            {"response": text, "response_length": len(text), "ground_truth": row} for text, row in zip(texts, rows, strict=True)
        ]
        with ThreadPoolExecutor(32) as pool:
            ways: dict[str, Callable[[], Any]] = {
                "judge": lambda: [score.value for score in judge.score(cases, weights)],
                "trl": lambda: made.reward(completions=said, mmrl=rows, completion_ids=ids, log_metric=lambda *a: None),
                "easyr1": lambda: [one["overall"] for one in easyr1.compute_score(inputs)],
                "swift": lambda: swift.reward(texts, mmrl=rows),
                "verl": lambda: list(
                    pool.map(lambda row, text: verl.compute_score("", text, "", {"mmrl": row})["score"], rows, texts)
                ),
            }
            seconds = measured(ways, args.rounds)
        scoring.close()
    ratios = {name: statistics.median(a / b for a, b in zip(s, seconds["judge"], strict=True)) for name, s in seconds.items()}
    told = {name: {"seconds": round(statistics.median(s), 4), "ratio": round(ratios[name], 3)} for name, s in seconds.items()}
    machine = {"python": platform.python_version(), "machine": platform.machine(), "system": platform.system()}
    print(json.dumps({"task": TASK, "completions": len(rows), "group": args.group, "rounds": args.rounds, **told, **machine}))


def measured(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Way -> seconds of each round. All give the same scores. One round before them starts workers and fills caches."""
    expected = ways["judge"]()
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 1):
        for name, way in ways.items():
            start = time.perf_counter()
            found = way()
            took = time.perf_counter() - start
            assert found == expected, f"{name} gives other scores"
            if number:
                seconds[name].append(took)
    return seconds


if __name__ == "__main__":
    main()
