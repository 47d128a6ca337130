"""Whole runs in tests: small ones, on the toy task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mmrl.api.interfaces import Task
from mmrl.config.load import parse_config
from mmrl.config.sections import RunConfig
from mmrl.data.prompts import Splits
from mmrl.run_folder.writer import RunFolder
from mmrl.train.resolve import resolve
from mmrl.train.setup import Setup
from mmrl.train.start import train

TOY = str(Path(__file__).with_name("toy.py"))


class Silent:
    """A watcher that keeps what it was told."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.notes: list[str] = []
        self.stop_after = stop_after

    def stage_started(self, *_: Any) -> None: ...

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        if step == self.stop_after:
            raise KeyboardInterrupt

    def evaluated(self, *_: Any) -> None: ...

    def note(self, text: str) -> None:
        self.notes.append(text)

    def say(self, text: str) -> None: ...

    def stopping(self) -> None: ...


def toy_config(folder: Path, name: str = "toy", overrides: tuple[str, ...] = (), **sections: Any) -> RunConfig:
    """Two SFT and four RL steps on a tiny model."""
    data = {
        "name": name,
        "runs_dir": str(folder),
        "policy": {"model": "tiny:qwen2_5_vl:hidden=32,layers=1"},
        "tasks": [{"id": "toy/colour"}],
        "stages": [
            {"kind": "sft", "steps": 2, "batch_size": 4, "learning_rate": 1e-3},
            {"kind": "rl", "steps": 4, "prompts_per_step": 3, "group_size": 4, "learning_rate": 1e-3},
        ],
        "generate": {"max_tokens": 6},
        "evaluate": {"num_prompts": 4},
        "record": {"rollouts_every": 2, "rollouts": 8},
        "train": {"threads": 1},
    }
    return parse_config({**data, **sections}, overrides)


def setup(config: RunConfig, tasks: dict[str, Task]) -> Setup:
    """A run file's setup with other tasks, by label, whose held-out split needn't be one that the real ones have."""
    unchecked = config.model_copy(update={"evaluate": config.evaluate.model_copy(update={"num_prompts": 0})})
    return replace(resolve(unchecked), config=config, tasks=tasks, splits=Splits(tasks, config.seed))


def run(config: RunConfig, **options: Any) -> RunFolder:
    return train(config, options.pop("progress", None) or Silent(), **options)


def figure(task: str, value: float, n: int = 10, extra: dict[str, float] | None = None) -> dict[str, Any]:
    """An evaluation as plain data."""
    low, high = value - 0.125, value + 0.125
    return {"task": task, "split": "test", "metric": "accuracy", "value": value, "low": low, "high": high, "n": n} | {
        "extra": extra or {}
    }


def rows(folder: RunFolder | Path) -> list[dict[str, Any]]:
    path = folder.path if isinstance(folder, RunFolder) else folder
    return [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]


CLOCKED = ("simulator/steps_per_s", "simulator/busy_share", "policy/idle_share")
"""Metrics of simulators that depend on the clock."""


def trajectory(folder: RunFolder | Path) -> list[Any]:
    """What of a run must be reproduced bit for bit: metrics but for times and memory, evaluations, rollouts with prompts."""
    path = folder.path if isinstance(folder, RunFolder) else folder
    steps = [
        (r["step"], r.get("eval") or {k: v for k, v in r["metrics"].items() if not k.startswith(("time/", "memory/", *CLOCKED))})
        for r in rows(path)
    ]
    sampled = [json.loads(line) for f in sorted((path / "rollouts").glob("step-*.jsonl")) for line in f.read_text().splitlines()]
    return [steps, sampled]
