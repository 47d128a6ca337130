"""trackio, Hugging Face's tracker without a server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.train.trackers.tables import picture


class Trackio:
    """A run of trackio. A resumed run continues the newest one of the same project and name."""

    def start(self, *, name: str, folder: Path, config: Mapping[str, Any], project: str, step: int) -> None:
        import trackio

        self._run = trackio.init(
            project=project, name=name, config=dict(config), resume="allow" if step else "never", embed=False
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def rollouts(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        import trackio

        data = [[trackio.Image(picture(v)) if isinstance(v, Path) else v for v in row.values()] for row in rows]
        self._run.log({"rollouts": trackio.Table(columns=list(rows[0]) if rows else [], data=data)}, step=step)

    def finish(self, status: str) -> None:
        self._run.finish()
