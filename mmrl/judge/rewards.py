"""Which verifiers make a task's reward, with which weights, and which of them is its metric."""

from __future__ import annotations

from collections.abc import Mapping

from mmrl.api.errors import UserError
from mmrl.api.specs import TaskSpec
from mmrl.config.sections import TaskConfig

Weights = Mapping[str, tuple[float, float]]
"""Verifier id -> its weight in the reward at the beginning and at the end of a stage."""


def weights_of(entry: TaskConfig, spec: TaskSpec) -> Weights:
    """The weights of a task's verifiers: its own, unless the run file gives others. UserError where there are none."""
    given = entry.verifiers or spec.verifiers
    if not given:
        raise UserError(
            f'task {entry.label!r} names no verifiers: give some in the run file, [[tasks]] verifiers = {{ "plugin/name" = 1.0 }}'
        )
    return {name: (w, w) if isinstance(w, int | float) else w for name, w in given.items()}


def task_metric(entry: TaskConfig, spec: TaskSpec) -> str:
    """The verifier that evaluates a task: that of its spec, or the run file's first verifier if the run file leaves that out."""
    replaced = entry.verifiers and spec.metric in spec.verifiers and spec.metric not in entry.verifiers
    return next(iter(entry.verifiers)) if replaced or not spec.metric else spec.metric


def weights_at(weights: Weights, share: float) -> dict[str, float]:
    """Verifier id -> weight, from those at the beginning and at the end of a stage. share: the finished share of the stage, 0 to
    1."""
    return {verifier: first + (last - first) * share for verifier, (first, last) in weights.items()}
