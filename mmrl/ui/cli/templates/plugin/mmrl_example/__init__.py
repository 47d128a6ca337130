"""What this plugin brings. Only hooks and specs stand here, so that listing it imports nothing heavy."""

from mmrl import TaskSpec, VerifierSpec, hookimpl

MMRL_CONTRACT = 2
"""The hook contract of mmrl that this plugin was written for."""


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        TaskSpec(
            id="example/colour",
            target="mmrl_example.task:Colour",
            verifiers={"example/exact": 1.0},
            summary="Name the colour of a drawn shape",
        )
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [VerifierSpec(id="example/exact", target="mmrl_example.task:exact", summary="The colour and nothing else")]
