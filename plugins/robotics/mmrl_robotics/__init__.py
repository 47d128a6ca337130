"""Robots: language-conditioned manipulation in simulators. The tasks name a simulator; the engine plays their episodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrl import PolicySpec, TaskSpec, VerifierSpec, hookimpl

if TYPE_CHECKING:
    import click

MMRL_CONTRACT = 2

TABLETOP = {
    "reach": "Move the gripper to the thing that is named",
    "push": "Push the thing that is named to its mark",
    "pick": "Pick up the thing that is named",
    "put-on": "Put the thing that is named on another",
    "stack": "Stack one thing on another",
}
SUCCESS = {"robotics/success": 0.0}
"""The reward comes from the simulator, by stages; the verifier says whether the episode succeeded, for evaluations."""

MOST = 1000.0
"""Bound of what is added up over an episode."""
LOOKING = [
    VerifierSpec(
        id="robotics/judge",
        target="mmrl_robotics.looking:Judge",
        model=True,
        rollout=True,
        graded=True,
        timeout_s=60.0,
        summary="How likely a vision-language model is to say that it was done",
    ),
    VerifierSpec(
        id="robotics/progress",
        target="mmrl_robotics.looking:Progress",
        model=True,
        rollout=True,
        graded=True,
        low=-MOST,
        high=MOST,
        timeout_s=120.0,
        summary="What a vision-language model says of the progress from moment to moment",
    ),
    VerifierSpec(
        id="robotics/vlm-rm",
        target="mmrl_robotics.vlm_rm:Closeness",
        model=True,
        rollout=True,
        graded=True,
        low=-MOST,
        high=MOST,
        timeout_s=60.0,
        summary="How close CLIP finds each picture to a text",
    ),
]
"""Models that look at an episode; the last two pay for each call of the policy."""


@hookimpl
def mmrl_tasks() -> list[TaskSpec]:
    return [
        *(
            TaskSpec(
                id=f"robotics/{name}",
                target="mmrl_robotics.task:Episodes",
                options={"simulator": "tabletop/table", "task": name},
                verifiers=SUCCESS,
                summary=f"{summary}, on the embedded table",
            )
            for name, summary in TABLETOP.items()
        ),
        TaskSpec(
            id="robotics/episodes",
            target="mmrl_robotics.task:Episodes",
            verifiers=SUCCESS,
            summary="Episodes of any simulator, with a reward by stages",
        ),
        TaskSpec(
            id="robotics/progress-pairs",
            target="mmrl_robotics.pairs:ProgressPairs",
            verifiers={"robotics/percent": 1.0},
            summary="By how much one moment of an expert's episode is ahead of another",
        ),
        TaskSpec(
            id="robotics/demos",
            target="mmrl_robotics.demos:Demos",
            verifiers=SUCCESS,
            summary="Demonstrations of a data set in LeRobot's format, and a simulator to evaluate in",
        ),
    ]


@hookimpl
def mmrl_policies() -> list[PolicySpec]:
    return [
        PolicySpec(
            id="robotics/small",
            target="mmrl_robotics.small:Small",
            acts=True,
            summary="A convolutional network on a camera (model = cnn), or a perceptron on the state (model = mlp)",
        ),
        PolicySpec(
            id="robotics/residual",
            target="mmrl_robotics.residual:Residual",
            acts=True,
            summary="A small policy that corrects the actions of a frozen one",
        ),
    ]


@hookimpl
def mmrl_commands(cli: click.Group) -> None:
    from mmrl_robotics.commands import record

    cli.add_command(record)


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(id="robotics/success", target="mmrl_robotics.verifiers:success", summary="The task was solved at any time"),
        VerifierSpec(id="robotics/success-at-end", target="mmrl_robotics.verifiers:at_end", summary="It was solved at the end"),
        VerifierSpec(
            id="robotics/quick", target="mmrl_robotics.verifiers:quick", graded=True, summary="Solved, and the sooner the better"
        ),
        VerifierSpec(
            id="robotics/percent",
            target="mmrl_robotics.verifiers:percent",
            graded=True,
            summary="How close the completion is to the right percentage",
        ),
        *LOOKING,
    ]
