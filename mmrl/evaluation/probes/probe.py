"""The base class of probes, which repeat an evaluation under a change."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mmrl.evaluation.answers import Answering, Answers
from mmrl.rollout.generate.steering import Steering


@dataclass(frozen=True, slots=True)
class Probed:
    """The result of a probe."""

    extra: Mapping[str, float] = field(default_factory=dict)
    """Figures by name, for `Evaluation.extra`."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Name -> bounds, for `Evaluation.intervals`."""


class Probe:
    """Base class of probes; subclasses implement `__call__`, and `of(config)`, which returns the probe of a run file, or None if
    the run file doesn't switch it on."""

    def observer(self) -> Steering | None:
        """An observer of the decoding of the plain answers to videos; None by default."""
        return None

    def __call__(self, asking: Answering, label: str, plain: Answers, observer: Steering | None) -> Probed:
        """asking: answers the task's prompts under a change. label: the task's label. plain: its prompts with their plain
        answers. observer: the observer of these answers."""
        raise NotImplementedError
