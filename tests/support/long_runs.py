"""Run folders of any length, as a run would leave them, without the run: for the board's benchmark and tests."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mmrl.run_folder.writer import RunFolder

WORDS = (
    "blue",
    "red",
    "square",
    "circle",
    "left",
    "right",
    "three",
    "seven",
    "box",
    "picture",
    "shows",
    "because",
    "edge",
    "corner",
)


def figures(step: int, steps: int, chance: random.Random) -> dict[str, float]:
    """Forty metrics of a step that look like those of training."""
    far, noise = step / steps, chance.gauss(0, 0.03)
    found = {
        "reward/mean": 0.2 + 0.7 * (1 - math.exp(-4 * far)) + noise,
        "reward/std": 0.4 - 0.3 * far + noise / 3,
        "length/mean": 40 + 60 * far + 100 * noise,
        "length/max": 128.0,
        "length/truncated_share": max(0.0, 0.05 + noise / 5),
        "entropy": 1.2 * math.exp(-3 * far) + abs(noise) / 5,
        "kl": 0.02 * far + abs(noise) / 50,
        "clip_share": max(0.0, 0.02 + noise / 10),
        "zero_std_share": min(1.0, 0.2 + 0.5 * far + abs(noise)),
        "answers/most_common_share": 0.2 + abs(noise),
        "logprob_gap": 1e-4 * (1 + abs(noise)),
        "loss": noise / 3,
        "grad_norm": 0.5 + abs(noise) * 3,
        "learning_rate": 1e-5 * (1 - far),
        "judge/failed_share": 0.0,
    }
    times = {"process": 0.1, "generate": 2.0 + far, "judge": 0.2, "update": 1.5, "other": 0.1}
    found |= {f"time/{name}": seconds * (1 + noise) for name, seconds in times.items()}
    found["memory/process"] = 900 + 200 * far + 20 * noise
    found["time/step"] = sum(found[f"time/{name}"] for name in times)
    for task in ("grounding", "jigsaw", "digits"):
        own = chance.gauss(0, 0.05)
        found |= {f"task/{task}/reward": 0.3 + 0.5 * far + own, f"task/{task}/length": 50 + 100 * own}
        found |= {
            f"task/{task}/zero_std_share": 0.3,
            f"task/{task}/reward/format": 1 - abs(own),
            f"task/{task}/reward/answer": 0.5,
        }
    return found


def rollout(step: int, group: int, member: int, picture: str | None, chance: random.Random) -> dict[str, Any]:
    """A row of `rollouts/`."""
    said = " ".join(chance.choices(WORDS, k=30))
    value = float(chance.random() < 0.5)
    shown = [{"type": "image", "path": picture}] if picture else []
    return {
        "step": step,
        "task": ("grounding", "jigsaw", "digits")[group % 3],
        "prompt_id": f"item-{(step * 7 + group) % 5000}",
        "group": group,
        "messages": [{"role": "user", "content": [*shown, {"type": "text", "text": "What does the picture show?"}]}],
        "answer": chance.choice(WORDS),
        "completion": f"<think>{said}</think><answer>{chance.choice(WORDS)}</answer>",
        "source": "policy",
        "tokens": 40 + member,
        "policy_versions": [step - 1],
        "status": "finished" if member else "truncated-length",
        "score": {"value": value, "parts": {"format": 1.0, "answer": value}, "status": "ok", "detail": ""},
        "reward": value,
        "advantage": value - 0.5,
        **({"overlays": boxes(value)} if group % 3 == 0 else {}),
    }


def boxes(value: float) -> list[dict[str, Any]]:
    """A true box, and one that was said: near it where it was paid."""
    x = 0.22 if value else 0.6
    said = {"kind": "box", "source": "said", "coordinates": [x, 0.25, x + 0.25, 0.5], "label": "cup 0.82"}
    return [{"kind": "box", "source": "true", "coordinates": [0.2, 0.2, 0.45, 0.5], "label": "cup"}, said]


def write_episodes(run: Path, step: int) -> None:
    """Two videos of an evaluation in a simulator, of twelve pictures each."""
    import numpy as np

    from mmrl.run_folder.webp import Video, encode_webp

    folder = run / "episodes" / f"step-{step:06d}"
    folder.mkdir(parents=True)
    rows = []
    for n, success in enumerate((1.0, 0.0)):
        frames = np.zeros((12, 48, 48, 3), np.uint8)
        for t in range(12):
            frames[t, 20:28, 4 * t : 4 * t + 4] = (60, 200, 60) if success else (200, 60, 60)
        (folder / f"pick-{n}.webp").write_bytes(encode_webp(Video(frames_THWC=frames, times_ms=(100,) * 11 + (1000,))))
        about = {"step": step, "task": "pick", "prompt_id": f"test-{n}", "seed": n, "variant": None, "temperature": 0.0}
        outcome = {"success": success, "success_at_end": success, "return": success, "steps": 11.0}
        rows.append(
            {**about, "instruction": "pick up the cup", "status": "finished", "outcome": outcome, "video": f"pick-{n}.webp"}
        )
    (folder / "episodes.jsonl").write_text("".join(map(_line, rows)), encoding="ascii")


def write_items(run: Path, step: int, right: float, n: int = 40) -> None:
    """What held-out prompts scored: a share of them is right."""
    folder = run / "evaluations"
    folder.mkdir(exist_ok=True)
    rows = []
    for i in range(n):
        value = float((i * 7 % n) < right * n)
        about = {"step": step, "task": "grounding", "split": "test", "verifier": "grounding/iou", "id": f"held-{i}"}
        seen = {"type": "image", "path": f"media/{i % 8:064x}.png"}
        asked = [{"role": "user", "content": [seen, {"type": "text", "text": f"Where is cup {i}?"}]}]
        row = {
            **about,
            "value": value,
            "values": [value],
            "completion": f"answer {value:g} of {run.name} to {i}",
            "answer": "[1, 2, 3, 4]",
        }
        rows.append(row | ({"messages": asked} if i < 16 else {}))
    (folder / f"step-{step:06d}.jsonl").write_text("".join(map(_line, rows)), encoding="ascii")


def write_run(
    path: Path, steps: int, every: int, groups: int, size: int, planned: int = 0, tell: Any = None, **config: Any
) -> Path:
    """A run of so many steps, with groups of `size` rollouts at every `every`-th. planned: steps of its run file. tell: is
    given the step now and then."""
    from PIL import Image

    plan = {"name": path.name, "seed": 0, "policy": {"model": "tiny:qwen2_5_vl"}, "tasks": [{"id": "grounding/boxes"}]}
    plan["stages"] = [{"kind": "rl", "algorithm": "grpo", "steps": planned or steps}]
    folder = RunFolder.create(path, {**plan, **config}, seed=0)
    chance = random.Random(0)
    for n in range(8):
        Image.effect_noise((64, 64), 40 + 10 * n).convert("RGB").save(path / "rollouts" / "media" / f"{n:064x}.png")
    with open(path / "metrics.jsonl", "w", encoding="ascii") as file:
        for step in range(1, steps + 1):
            row = {"step": step, "stage": "rl", "time": 4.0 * step, "metrics": figures(step, steps, chance)}
            file.write(_line(row))
            if step % max(1, steps // 20) == 0:
                file.write(_line({"step": step, "stage": "rl", "time": 4.0 * step, "eval": evaluation(step / steps)}))
            if step % every == 0:
                rows = [
                    rollout(step, g, m, f"media/{(step + g) % 8:064x}.png", chance) for g in range(groups) for m in range(size)
                ]
                (path / "rollouts" / f"step-{step:06d}.jsonl").write_text("".join(map(_line, rows)), encoding="ascii")
            if tell and step % 1000 == 0:
                tell(step)
    return folder.path


def evaluation(far: float) -> dict[str, Any]:
    value = 0.3 + 0.6 * far
    return {
        "task": "grounding",
        "split": "test",
        "metric": "accuracy",
        "value": value,
        "low": value - 0.04,
        "high": value + 0.04,
        "n": 400,
        "extra": {"episode/steps": 60 - 30 * far},
        "intervals": {"episode/steps": [55 - 30 * far, 64 - 30 * far]},
    }


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":")) + "\n"
