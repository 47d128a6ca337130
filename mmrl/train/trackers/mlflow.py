"""MLflow."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.run_folder import files
from mmrl.train.trackers.tables import picture

STATUS = {"finished": "FINISHED", "stopped": "KILLED", "failed": "FAILED"}
_REFUSED = re.compile(r"[^\w\-. :/]")
"""Characters that MLflow allows in no name, such as the @ of a published verifier's id."""


class MLflow:
    """A run of MLflow, at MLFLOW_TRACKING_URI. Its id is in `mlflow/run-id` of the run folder, so that a resumed run continues
    it."""

    def start(self, *, name: str, folder: Path, config: Mapping[str, Any], project: str, step: int) -> None:
        import mlflow

        path = folder / "mlflow" / "run-id"
        mlflow.set_experiment(project)
        if step and path.exists():
            mlflow.start_run(run_id=path.read_text())
            return
        run = mlflow.start_run(run_name=name)
        path.parent.mkdir(exist_ok=True)
        files.replace_file(path, run.info.run_id.encode())
        mlflow.log_params(dict(_flat(config)))

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        import mlflow

        mlflow.log_metrics({_REFUSED.sub("_", key): value for key, value in metrics.items()}, step=step)

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        import mlflow
        from PIL import Image

        table = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
        for name, cells in table.items():
            if any(isinstance(cell, Path) for cell in cells):  # all cells of a column must be pictures then
                table[name] = [mlflow.Image(picture(cell) or Image.new("RGB", (1, 1), "white")) for cell in cells]
        mlflow.log_table(table, f"rollouts/step-{step:06d}.json")

    def finish(self, status: str) -> None:
        import mlflow

        mlflow.end_run(STATUS[status])


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every leaf; an entry of a list of tables has its index as the key."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        value = {str(i): item for i, item in enumerate(value)}
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}" if key else name)
    else:
        yield _REFUSED.sub("_", key), value
