"""trackio, Hugging Face's tracker without a server."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any


class Trackio:
    """A run of trackio. A resumed run continues the newest one of the same project and name."""

    def start(self, *, name: str, folder: Path, config: Mapping[str, Any], project: str, step: int) -> None:
        import trackio

        self._run = trackio.init(
            project=project, name=name, config=dict(config), resume="allow" if step else "never", embed=False
        )

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(dict(metrics), step=step)

    def finish(self, status: str) -> None:
        self._run.finish()
