"""Pictures as SVG, charts and web pages: code that is rendered and compared; rewards after RLRF and RRVF."""

from mmrl import TaskSpec, VerifierSpec, hookimpl


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return []


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return []
