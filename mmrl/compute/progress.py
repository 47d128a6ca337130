"""The interface to which a run reports its progress, and implementations for learner processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from mmrl.config.sections import Training


class RelayedProgress:
    """The `Progress` of the first learner on a cluster: it sends everything to the terminal, and stops the run if the user wants
    that."""

    def __init__(self, relay: Any) -> None:
        self.relay = relay
        self.run: Any = None
        self.stop = False

    def begun(self, run: Any) -> None:
        """run: the run whose `stop` is set when the user wants it to end."""
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
        self.tell("evaluated", step, [replace(f, items=(), episodes=()) for f in figures])  # the run folder has the items

    def note(self, text: str) -> None:
        self.tell("note", text)

    def say(self, text: str) -> None:
        self.tell("say", text)

    def stopping(self) -> None: ...  # the terminal handles signals


class NullProgress:
    """The `Progress` of the other learners: it does nothing."""

    def begun(self, run: Any) -> None: ...

    def stage_started(self, *_: Any) -> None: ...

    def step_finished(self, *_: Any) -> None: ...

    def evaluated(self, *_: Any) -> None: ...

    def note(self, text: str) -> None: ...

    def say(self, text: str) -> None: ...

    def stopping(self) -> None: ...


class Progress(Protocol):
    """The interface to which a run reports its progress; see `mmrl.ui.report.progress`."""

    def stage_started(self, number: int, count: int, stage: Training, done: int) -> None: ...
    def step_finished(self, step: int, metrics: Mapping[str, float]) -> None: ...
    def evaluated(self, step: int, figures: Sequence[Any]) -> None: ...
    def note(self, text: str) -> None:
        """Something to look at: a warning."""

    def say(self, text: str) -> None:
        """Something to know."""

    def stopping(self) -> None:
        """The run will end after the current step. Called from a signal handler."""
