"""The plugin's hooks and specs. Keep heavy imports out of this file: mmrl imports it to list plugins."""

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
    return [VerifierSpec(id="example/exact", target="mmrl_example.task:exact", summary="1 for the colour alone, else 0")]
