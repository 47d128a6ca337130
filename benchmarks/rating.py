"""A reward model as a verifier: a group's answers rated together, its prompt read and computed once, against one after another.

    python benchmarks/rating.py [--device cuda] [--model tiny:qwen2_5_vl:hidden=128,layers=4] [--prompts 4] [--group 8]
        [--pixels 224] [--words 20] [--runs 5]

Both ways rate the same answers in turn. `ratio` is the time of one after another over that of the group, median of the runs;
`difference` the largest one of a rating, of ratings that spread by `spread`. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from typing import Any

import numpy
from PIL import Image

from machine import machine
from mmrl.api.types import Message, user_message
from mmrl.config.sections import PolicyConfig
from mmrl.judge.reward_models import Ratings
from mmrl.policies.reward_model import RewardModel

WORDS = ("a", "red", "square", "blue", "circle", "left", "of", "the", "green", "one")


def answered(args: argparse.Namespace) -> list[tuple[list[Message], str]]:
    noise, words = numpy.random.default_rng(0), random.Random(0)
    made = []
    for _ in range(args.prompts):
        picture = Image.fromarray(noise.integers(0, 255, (args.pixels, args.pixels, 3), dtype=numpy.uint8))
        asked = [user_message("What is shown in this picture?", picture)]
        made += [(asked, " ".join(words.choices(WORDS, k=args.words))) for _ in range(args.group)]
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="tiny:qwen2_5_vl:hidden=128,layers=4")
    for name, value in (("prompts", 4), ("group", 8), ("pixels", 224), ("words", 20), ("runs", 5)):
        parser.add_argument(f"--{name}", type=int, default=value)
    args = parser.parse_args()
    ratings, rows = Ratings(RewardModel(PolicyConfig(model=args.model), device=args.device)), answered(args)
    ways = {"together": lambda: ratings.rate(rows), "one by one": lambda: [ratings.rate([row])[0] for row in rows]}
    found: dict[str, list[float]] = {name: way() for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(args.runs):
        for name, way in ways.items():
            start = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - start)
    ratios = [slow / fast for fast, slow in zip(seconds["together"], seconds["one by one"], strict=True)]
    result: dict[str, Any] = {
        "ratio": round(statistics.median(ratios), 2),
        "ratios": [round(ratio, 2) for ratio in ratios],
        "seconds": {name: round(statistics.median(own), 4) for name, own in seconds.items()},
        "difference": max(abs(a - b) for a, b in zip(*found.values(), strict=True)),
        "spread": statistics.pstdev(found["together"]),
    }
    print(json.dumps(result | vars(args) | machine()))


if __name__ == "__main__":
    main()
