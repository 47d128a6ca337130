"""Weights & Biases."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.run_folder import files
from mmrl.train.trackers.tables import picture


class Wandb:
    """A run of Weights & Biases. Its id is in `wandb/run-id` of the run folder, so that a resumed run continues it."""

    def start(self, *, name: str, folder: Path, config: Mapping[str, Any], project: str, step: int) -> None:
        import wandb

        path = folder / "wandb" / "run-id"
        path.parent.mkdir(exist_ok=True)
        if not step or not path.exists():
            files.replace_file(path, uuid.uuid4().hex.encode())
        self._run = wandb.init(
            project=project,
            name=name,
            id=path.read_text(),
            resume="allow",
            dir=str(folder),
            config=dict(config),
            settings={"console": "off"},  # capturing the terminal would break the live panel
        )
        # wandb's own step counter can't go back to the step of a checkpoint; a metric as the x axis can
        self._run.define_metric("step", hidden=True)
        self._run.define_metric("*", step_metric="step")

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log({**metrics, "step": step})

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        import wandb

        data = [[wandb.Image(picture(v)) if isinstance(v, Path) else v for v in row.values()] for row in rows]
        columns = list(rows[0]) if rows else []
        self._run.log({"rollouts": wandb.Table(columns=columns, data=data), "step": step})

    def finish(self, status: str) -> None:
        self._run.finish(exit_code=0 if status == "finished" else 1)
