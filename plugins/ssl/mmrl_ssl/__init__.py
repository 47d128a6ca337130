"""Self-supervised vision: rotation, contrastive pairs, quadrant position, masked patch; the rewards of SSL4RL."""

from mmrl import TaskSpec, VerifierSpec, hookimpl


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return []


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return []
