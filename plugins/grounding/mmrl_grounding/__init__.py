"""Referring expressions, detection, counting, pointing on pictures: IoU, GIoU, AP; the rewards of VLM-R1, Vision-R1 and VisionReasoner."""

from mmrl import TaskSpec, VerifierSpec, hookimpl


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return []


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return []
