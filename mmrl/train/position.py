"""Where a run is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StepIndex:
    """The step that something is done for, and the weights that it is done with."""

    step: int
    """The number of the step in the run, from 0."""
    stage_step: int
    """The same within its stage."""
    version: int
    """How many training steps the weights have seen."""


@dataclass
class Position:
    """Where a run is; together with weights and optimiser this is what a resume needs."""

    step: int = 0
    """Steps finished, over all stages."""
    stage: int = 0
    stage_step: int = 0
    """Steps finished in the stage."""
    source: dict[str, Any] = field(default_factory=dict)
    """`PromptStream.state` of this stage."""
    memory: dict[str, float] = field(default_factory=dict)
    """What the stage adapted so far: the weight of the KL penalty, gradient norms."""
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`before`, `best`, `last`: task -> evaluation."""
    evaluated_step: int | None = None
    best_step: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def moment(self) -> StepIndex:
        """The step under way, with the weights of now."""
        return StepIndex(self.step, self.stage_step, self.step)
