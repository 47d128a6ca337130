"""What a probe is: a further question that an evaluation asks of a policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mmrl.evaluation.answers import Answering, Answers
from mmrl.rollout.generate.steering import Steering


@dataclass(frozen=True, slots=True)
class Probed:
    """What a probe found."""

    extra: Mapping[str, float] = field(default_factory=dict)
    """Figures by name, for `Evaluation.extra`."""
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Bounds of some of them."""


class Probe:
    """Subclass it and write `__call__`. Each probe makes itself from the run file by `of(config)`, or gives None where it isn't
    asked for."""

    def observer(self) -> Steering | None:
        """What observes the decoding of the plain answers to videos, for this probe; by default nothing does."""
        return None

    def __call__(self, asking: Answering, label: str, plain: Answers, observer: Steering | None) -> Probed:
        """asking: answers the task's prompts otherwise. label: the task's. plain: its prompts as they were answered first.
        observer: what observed those answers."""
        raise NotImplementedError
