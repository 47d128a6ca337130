"""What a run reports while it goes on, and to whom."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mmrl.config.sections import Training


class RelayedProgress:
    """The `Progress` of the first learner: what it is told goes to the terminal, from where a wish to stop comes back."""

    def __init__(self, relay: Any) -> None:
        self.relay = relay
        self.run: Any = None
        self.stop = False

    def begun(self, run: Any) -> None:
        """run: the one to stop (`Run.stop`) when the person wants it to end."""
        self.run, run.stop = run, run.stop or self.stop

    def tell(self, name: str, *arguments: Any) -> None:
        import ray

        self.stop = ray.get(self.relay.send.remote(name, arguments))
        if self.stop and self.run is not None:
            self.run.stop = True

    def stage_started(self, number: int, count: int, stage: Any, done: int) -> None:
        self.tell("stage_started", number, count, stage, done)

    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None:
        self.tell("step_finished", step, dict(metrics))

    def evaluated(self, step: int, figures: Sequence[Any]) -> None:
        self.tell("evaluated", step, [replace(f, items=(), episodes=()) for f in figures])  # those are the run folder's

    def note(self, text: str) -> None:
        self.tell("note", text)

    def stopping(self) -> None: ...  # it is the terminal that is asked


class NullProgress:
    """Watches a run in the learners that nobody hears."""

    def begun(self, run: Any) -> None: ...

    def stage_started(self, *_: Any) -> None: ...

    def step_finished(self, *_: Any) -> None: ...

    def evaluated(self, *_: Any) -> None: ...

    def note(self, text: str) -> None: ...

    def stopping(self) -> None: ...


class Progress(Protocol):
    """Who watches a run; see `mmrl.ui.report.progress`."""

    def stage_started(self, number: int, count: int, stage: Training, done: int) -> None: ...
    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def evaluated(self, step: int, figures: Sequence[Any]) -> None: ...
    def note(self, text: str) -> None: ...
    def stopping(self) -> None:
        """The run was asked to end after this step. Called from a signal handler."""
