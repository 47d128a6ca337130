"""Questions about pictures: choice, number, math, yes or no, short text, the game of 24."""

from mmrl import TaskSpec, VerifierSpec, hookimpl


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return []


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return []
