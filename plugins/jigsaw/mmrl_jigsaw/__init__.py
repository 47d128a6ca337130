"""Jigsaw puzzles of pictures: full, pair, single; the rewards of Jigsaw-R1 and SSL4RL."""

from mmrl import TaskSpec, VerifierSpec, hookimpl


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return []


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return []
