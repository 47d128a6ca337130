"""Shared code of the benchmarks of learning: runs of `mmrl train` in separate processes, their held-out metrics, and the curve.

Not a benchmark itself. A run has one thread, so as many runs as there are cores can run at once.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mmrl.ui.report.svg import Series

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
STYLE = "svg { font: 11px system-ui, sans-serif; background: #fff } text { fill: #555 } .grid { stroke: #ddd }" + "".join(
    f" .line.s{n} {{ fill: none; stroke: {c}; stroke-width: 2 }}"
    f" .band.s{n} {{ fill: {c}; opacity: .12 }} .dot.s{n} {{ fill: {c} }}"
    for n, c in enumerate(COLOURS, 1)
)


@dataclass(frozen=True)
class Run:
    """The result of one `mmrl train`: its evaluations by step, and its seconds."""

    evaluations: list[dict[str, Any]]
    """Each `{"step", "task", "value", "low", "high", "n"}`."""
    wall_s: float

    def of(self, task: str) -> list[dict[str, Any]]:
        return [row for row in self.evaluations if row["task"] == task]

    def last(self, task: str) -> dict[str, Any]:
        return self.of(task)[-1]


def train(runs: Path, name: str, text: str, **env: str) -> Run:
    """Trains from the run file `text`, whose name must be `name`; exits with the run's error output if it fails."""
    started, path = time.perf_counter(), runs / f"{name}.toml"
    path.write_text(text)
    command = [sys.executable, "-m", "mmrl", "train", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1", **env})
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stderr[-2000:]}")
    return Run(evaluations(runs / name), round(time.perf_counter() - started, 1))


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """The evaluations that a run has made so far; see `Run`."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{"step": row["step"], **row["eval"]} for row in rows if "eval" in row]


def write_start(folder: Path, words: Sequence[str], family: str = "qwen3_vl") -> int:
    """Writes a random tiny model with a token for each of these texts: linear and convolution weights have the standard deviation
    1 / sqrt(fan-in), position embeddings 1. Returns its number of weights."""
    import torch

    from mmrl.policies.vlm import tiny

    model, processor = tiny.build(family, words=words)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear | torch.nn.Conv3d) and name != "lm_head":  # it is tied to the embedding
                module.weight.normal_(0, 1 / math.sqrt(module.weight[0].numel()), generator=generator)
            elif name.endswith("pos_embed"):
                module.weight.normal_(0, 1, generator=generator)
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
    return sum(p.numel() for p in model.parameters())


def checkpoint(runs: Path, name: str) -> Path:
    """The only checkpoint of a run."""
    (found,) = (runs / name / "checkpoints").glob("step-*/policy")
    return found


def figures(task: str, warm: Run, after: Sequence[Run]) -> dict[str, Any]:
    """Held-out values, with Student's 95% interval of the gain over the seeds (`low` and `high` are None for a single one)."""
    from mmrl.api.statistics import mean_interval

    before, values = warm.last(task)["value"], [run.last(task)["value"] for run in after]
    interval = mean_interval([value - before for value in values])
    low, high = (round(bound, 4) if math.isfinite(bound) else None for bound in interval)
    return {
        "n": warm.last(task)["n"],
        "warm_start": round(before, 4),
        "after": round(statistics.fmean(values), 4),
        "seeds": [round(value, 4) for value in values],
        "gain": round(statistics.fmean(values) - before, 4),
        "low": low,
        "high": high,
        "warm_s": warm.wall_s,
        "rl_s": [run.wall_s for run in after],
    }


def draw(path: Path, task: str, after: Sequence[Run]) -> None:
    """Draws an SVG file: the held-out value over the steps of RL, a line with its 95% interval for each run."""
    from mmrl.ui.report.svg import Series

    series = []
    for color, run in enumerate(after, 1):
        rows = run.of(task)
        xs, ys, low, high = ([row[key] for row in rows] for key in ("step", "value", "low", "high"))
        series.append(Series(name=f"seed {color - 1}", xs=xs, ys=ys, low=low, high=high, color=color))
    save(path, series)


def save(path: Path, series: Sequence[Series]) -> None:
    """Writes a line chart as a separate SVG file."""
    from mmrl.ui.report.svg import WIDTH, line_chart

    height = 200
    _, _, inside = line_chart(series, height=height).partition(">")  # a separate file has neither the page's style nor its margin
    path.parent.mkdir(parents=True, exist_ok=True)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-6 0 {WIDTH + 18} {height}">'
    path.write_text(f"{head}<style>{STYLE}</style>{inside}")
