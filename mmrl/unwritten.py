"""The run folder in those of several ranks that don't write it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mmrl.record import RunFolder


class Unwritten(RunFolder):
    """Everything can be read; what is written goes nowhere, since the first rank writes the same."""

    def _append(self, name: str, row: Mapping[str, Any]) -> None: ...

    def rollouts(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None: ...

    def items(self, step: int, rows: Iterable[Mapping[str, Any]]) -> None: ...

    def episodes(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None: ...

    def keep_episodes(self, steps: Container[int | None]) -> None: ...

    def summary(self, values: Mapping[str, Any]) -> None: ...

    def report(self, page: str) -> Path:
        return self.path / "report.html"

    def rewind(self, step: int) -> None:
        self._continue_clock()
