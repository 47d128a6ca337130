"""The position of a run: its step and stage, and the state of the stage."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StepIndex:
    """A step, and the version of the weights that sample for it."""

    step: int
    """Index of the step in the run, from 0."""
    stage_step: int
    """Index of the step in its stage, from 0."""
    version: int
    """Number of training steps of the weights."""


@dataclass
class Position:
    """The position of a run. A resume needs it together with the weights and the optimiser."""

    step: int = 0
    """Steps finished, over all stages."""
    stage: int = 0
    stage_step: int = 0
    """Steps finished in the stage."""
    source: dict[str, Any] = field(default_factory=dict)
    """`PromptStream.state` of this stage."""
    data: dict[str, list[Any]] = field(default_factory=dict)
    """Task -> fingerprint of this stage's prompts (`mmrl.data.fingerprint`)."""
    memory: dict[str, float] = field(default_factory=dict)
    """Values that the stage adapts: the KL coefficient, gradient norms."""
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`before`, `best`, `last`: task -> evaluation."""
    evaluated_step: int | None = None
    best_step: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def moment(self) -> StepIndex:
        """The current step, with the current weights."""
        return StepIndex(self.step, self.stage_step, self.step)
