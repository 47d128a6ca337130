"""Completions per second that the bundled verifiers score on one core: right, wrong and malformed answers in turn.

    python benchmarks/verifiers.py [--seconds 1.0]

The judge's cost is not included, see `judge.py`. Seconds are those of the processor: a round takes a few milliseconds, of which
other programs would take most. Prints one JSON object; `aim` is the required rate of a class of verifiers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from machine import machine
from mmrl import Case
from mmrl.api.media.images import load_image
from mmrl.registry import plugins

SAMPLES = Path(__file__).parents[1] / "assets" / "samples"
AIMS = {"iou": 20_000, "ap": 1_000, "svg": 100, "answer": None}
"""Class of verifiers -> least completions per second."""
MEASURED = (
    *(("iou", name, "grounding/refer", {}) for name in ("grounding/iou", "grounding/giou")),
    *(("iou", name, "grounding/refer", {"style": "tags"}) for name in ("grounding/iou", "grounding/giou")),
    ("iou", "grounding/iou@vlm-r1", "grounding/refer@vlm-r1", {"path": f"{SAMPLES}/refer.jsonl"}),
    *(("ap", name, "grounding/detect", {"style": "json", "objects": 8}) for name in ("grounding/ap", "grounding/ap-length")),
    ("ap", "grounding/hungarian", "grounding/detect", {"style": "json", "objects": 8}),
    ("ap", "grounding/ap@vlm-r1", "grounding/detect@vlm-r1", {"path": f"{SAMPLES}/detect.jsonl"}),
    *(("svg", name, "rendering/svg", {"size": 112}) for name in ("rendering/picture", "rendering/pixel", "rendering/svg@rlrf")),
    ("answer", "jigsaw/placement", "jigsaw/full", {}),
    ("answer", "jigsaw/grid@jigsaw-r1", "jigsaw/full", {}),
    ("answer", "ssl/exact", "ssl/rotation", {}),
    ("answer", "vqa/answer", "vqa/shapes", {}),
    ("answer", "vqa/points24", "vqa/points24", {}),
    ("answer", "transit/route", "transit/plan", {}),
    ("answer", "classification/answer", "classification/digits", {}),
)
PROMPTS = 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds per verifier")
    seconds = parser.parse_args().seconds
    rows = []
    for kind, verifier, task, options in MEASURED:
        cases = cases_of(task, options)
        rate = per_second(plugins.registry().make_verifier(verifier), cases, seconds)
        told = {k: v for k, v in options.items() if k != "path"}
        rows.append({"class": kind, "verifier": verifier, "task": task, **told, "per_second": round(rate), "aim": AIMS[kind]})
    print(json.dumps({"benchmark": "verifiers", "verifiers": rows, "machine": machine()}))


def cases_of(task: str, options: dict[str, Any]) -> list[Case]:
    """Three cases per prompt: its gold completion, that of the next prompt, and prose."""
    made = plugins.registry().make_task(task, options)
    rows = made.prompts("train", 0)
    prompts = [rows[i] for i in range(min(PROMPTS, len(rows)))]
    gold = [made.gold(p) for p in prompts]
    others = [*gold[1:], gold[0]]
    prose = "<think>Let me look at the picture again.</think> <answer>I am not sure about that.</answer>"
    return [
        Case(
            completion=text,
            answer=p.answer,
            meta=p.meta,
            media=p.images,
            image_sizes=(sizes := tuple(load_image(i).size for i in p.images)),
            model_sizes=sizes,
        )
        for p, own, other in zip(prompts, gold, others, strict=True)
        for text in (own, other, prose)
    ]


def per_second(verifier: Callable[[Case], Any], cases: Sequence[Case], seconds: float) -> float:
    """The median rate of rounds over all cases."""
    for case in cases:
        verifier(case)
    rates, end = [], time.process_time() + seconds
    for _ in itertools.count():
        started = time.process_time()
        for case in cases:
            verifier(case)
        now = time.process_time()
        rates.append(len(cases) / (now - started))
        if now > end:
            return sorted(rates)[len(rates) // 2]
    raise AssertionError("itertools.count ends")


if __name__ == "__main__":
    main()
