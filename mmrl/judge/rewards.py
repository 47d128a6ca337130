"""Which verifiers make a task's reward, with which weights, and which of them is its metric."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mmrl.api.errors import UserError
from mmrl.config.sections import RunConfig, TaskConfig
from mmrl.registry import plugins


def metric_of(config: RunConfig, label: str) -> str:
    """The verifier that evaluates a task: its own choice, unless the run file replaced that one; then the first that it gives."""
    entry = entry_of(config, label)
    spec = plugins.registry().get("tasks", entry.id)
    replaced = entry.verifiers and spec.metric in spec.verifiers and spec.metric not in entry.verifiers
    return next(iter(entry.verifiers)) if replaced or not spec.metric else spec.metric


def entry_of(config: RunConfig, label: str) -> TaskConfig:
    """The `[[tasks]]` entry of this label."""
    return next(t for t in config.tasks if t.label == label)


def verifier_ids(config: RunConfig) -> dict[str, dict[str, Any]]:
    """Every verifier that the run calls, for rewards or for evaluation, with the options that the run file gives it."""
    registry = plugins.registry()
    given = {registry.get("verifiers", name).id: options for name, options in config.verifiers.items()}
    rewards = [verifier for weights in task_weights(config).values() for verifier in weights]
    wanted = [*rewards, *(metric_of(config, t.label) for t in config.tasks)]
    return {name: given.get(registry.get("verifiers", name).id, {}) for name in wanted}


def task_weights(config: RunConfig) -> dict[str, dict[str, tuple[float, float]]]:
    """Task -> verifier id -> its weight in the reward at the beginning and at the end of a stage."""
    given = {t.label: t.verifiers or plugins.registry().get("tasks", t.id).verifiers for t in config.tasks}
    for task, verifiers in given.items():
        if not verifiers:
            raise UserError(
                f'task {task!r} names no verifiers: give some in the run file, [[tasks]] verifiers = {{ "plugin/name" = 1.0 }}'
            )
    return {t: {v: (w, w) if isinstance(w, int | float) else w for v, w in weights.items()} for t, weights in given.items()}


def weights_at(weights: Mapping[str, tuple[float, float]], share: float) -> dict[str, float]:
    """Verifier id -> weight, from those at the beginning and at the end of a stage. share: of the stage that is over, 0 to 1."""
    return {verifier: first + (last - first) * share for verifier, (first, last) in weights.items()}
