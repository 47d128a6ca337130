"""Where a run is."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Position:
    """Where a run is; together with weights and optimiser this is what a resume needs."""

    step: int = 0
    """Steps finished, over all stages."""
    stage: int = 0
    stage_step: int = 0
    """Steps finished in the stage."""
    source: dict[str, Any] = field(default_factory=dict)
    """`Source.state` of this stage."""
    memory: dict[str, float] = field(default_factory=dict)
    """What the stage adapted so far: the weight of the KL penalty, gradient norms."""
    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    """`before`, `best`, `last`: task -> evaluation."""
    evaluated_step: int | None = None
    best_step: int | None = None
    seconds: dict[str, float] = field(default_factory=dict)
