"""Grounding: referring expressions, detection, counting and pointing."""

from mmrl import TaskSpec, VerifierSpec, hookimpl


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return []


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return []
