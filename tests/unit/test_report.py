"""The static report. `python tests/unit/test_report.py runs/fake` writes a realistic run to look at."""

from __future__ import annotations

import math
import random
import sys
from pathlib import Path
from typing import Any

from mmrl.record import RunFolder
from mmrl.types import user
from mmrl.view.report import write_report

CONFIG = {"seed": 1, "tasks": [{"id": "classification/digits"}], "policy": {"model": "tiny:qwen2_5_vl"},
          "stages": [{"kind": "sft", "steps": 60}, {"kind": "rl", "steps": 250, "group_size": 8}]}


def wilson(right: int, n: int) -> tuple[float, float]:
    p, z = right / n, 1.96
    middle, half = p + z * z / (2 * n), z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def fake_run(path: Path, sft: int = 60, rl: int = 250, seed: int = 1) -> RunFolder:
    """A run that looks like digits trained by GRPO, written through RunFolder: pictures, spikes, failures and all."""
    from PIL import Image
    from sklearn.datasets import load_digits

    digits, draw = load_digits(), random.Random(seed)
    pictures = [Image.fromarray((255 - image * 15.9).astype("uint8")).resize((112, 112), Image.Resampling.NEAREST)
                for image in digits.images[:200]]
    run = RunFolder.create(path, CONFIG, seed)
    results = {}

    def evaluate(step: int, stage: str, accuracy: float) -> dict[str, Any]:
        low, high = wilson(right := round(accuracy * 397), 397)
        result = {"metric": "classification/exact", "value": right / 397, "low": low, "high": high, "n": 397}
        run.evaluation(step, stage, "classification/digits", "test", **result)
        results[step] = result
        return {"classification/digits": result}

    for step in range(1, sft + 1):
        run.metrics(step, "sft", {"loss": 2.3 * math.exp(-step / 18) + 0.35 + draw.gauss(0, 0.05), "learning_rate": 1e-3 * min(step / 10, 1),
                                  "grad_norm": 1.5 + draw.random(), "time/process": 0.02, "time/update": 0.11, "time/step": 0.13})
    before = evaluate(sft, "sft", 0.766)
    for i in range(1, rl + 1):
        step, done = sft + i, 1 - math.exp(-i / 70)
        skill = 0.70 + 0.25 * done
        noise = draw.gauss(0, 0.035)
        run.metrics(step, "rl", {
            "reward/mean": min(skill * 1.1 + noise, 1.1), "reward/std": 0.42 - 0.25 * done + draw.gauss(0, 0.02),
            "reward/classification/exact": min(skill + noise, 1.0), "reward/classification/answer": min(0.8 + 0.2 * done + noise / 3, 1.0),
            "length/mean": 4.4 - 1.8 * done + draw.gauss(0, 0.1), "length/max": 12 - 5 * done + draw.choice([0, 1, 2]),
            "length/truncated_share": max(0.04 * (1 - done) + draw.gauss(0, 0.004), 0), "entropy": 0.9 * math.exp(-i / 110) + 0.08 + abs(noise) / 4,
            "kl": 0.03 * done + abs(draw.gauss(0, 0.002)), "clip_share": abs(draw.gauss(0.01, 0.006)),
            "zero_spread_share": min(0.3 + 0.45 * done + draw.gauss(0, 0.06), 1), "loss": draw.gauss(0, 0.02),
            "grad_norm": 0.8 + draw.random() * 0.5 + (25 if i == 140 else 0), "learning_rate": 3e-4,
            "logprob_gap": abs(draw.gauss(0, 3e-7)), "judge/failed_share": 0.0078 if i in (33, 90, 91) else 0.0,
            "time/process": 0.012, "time/generate": 0.12 + draw.random() * 0.02, "time/judge": 0.012, "time/update": 0.21 + draw.random() * 0.03,
            "time/other": 0.01, "time/step": 0.38})
        if i in (33, 90, 91):
            run.error(step, "classification/answer", "TimeoutError: no verdict within 5 s")
        if i % 50 == 0:
            evaluate(step, "rl", skill + 0.015 + draw.gauss(0, 0.006))
        if i % 10 == 0 or i == 1:
            run.rollouts(step, fake_rollouts(draw, pictures, digits.target, skill))
    best = max((r for s, r in results.items()), key=lambda r: r["value"])
    run.summary({"status": "finished", "before": before, "best": {"classification/digits": best},
                 "last": {"classification/digits": results[max(results)]}, "peak_memory_mb": 1312,
                 "seconds": {"total": 128.4, "generate": 32.1, "judge": 3.2, "update": 61.5, "process": 4.9, "other": 26.7}})
    return run


def fake_rollouts(draw: random.Random, pictures: list[Any], targets: Any, skill: float) -> list[dict[str, Any]]:
    rows = []
    for group in range(8):
        item = draw.randrange(len(pictures))
        truth = str(targets[item])
        prompt = user("Which digit is shown? Answer with <answer>digit</answer>.", pictures[item])
        wrong = draw.sample([d for d in "0123456789" if d != truth], 2)
        values = []
        for _ in range(8):
            digit = truth if draw.random() < skill else draw.choice(wrong)
            text = draw.choice([f"<answer>{digit}</answer>"] * 5 + [f"The digit is {digit}"])
            parts = {"classification/exact": float(digit == truth), "classification/answer": float("<answer>" in text)}
            values.append((text, parts["classification/exact"] + 0.1 * parts["classification/answer"], parts))
        mean = sum(v for _, v, _ in values) / 8
        std = math.sqrt(sum((v - mean) ** 2 for _, v, _ in values) / 8)
        for text, value, parts in values:
            rows.append({"task": "classification/digits", "prompt_id": f"digits-{item}", "group": group, "messages": [prompt], "answer": truth,
                         "completion": text, "tokens": len(text) // 4, "status": "finished", "advantage": (value - mean) / (std + 1e-4),
                         "score": {"value": value, "parts": parts, "detail": "", "status": "ok"}})
    return rows


if __name__ == "__main__":
    print(write_report(fake_run(Path(sys.argv[1])).path))
