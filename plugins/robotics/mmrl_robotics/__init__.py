"""Robots: language-conditioned manipulation in simulators. The tasks name a simulator; the engine plays their episodes."""

from __future__ import annotations

from mmrl import TaskSpec, VerifierSpec, hookimpl

TABLETOP = {
    "reach": "Move the gripper to the thing that is named",
    "push": "Push the thing that is named to its mark",
    "pick": "Pick up the thing that is named",
    "put-on": "Put the thing that is named on another",
    "stack": "Stack one thing on another",
}
SUCCESS = {"robotics/success": 0.0}
"""The reward comes from the simulator, by stages; the verifier says whether the episode succeeded, for evaluations."""


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
    ]


@hookimpl
def mmrl_verifiers() -> list[VerifierSpec]:
    return [
        VerifierSpec(id="robotics/success", target="mmrl_robotics.verifiers:success", summary="The task was solved at any time"),
        VerifierSpec(id="robotics/success-at-end", target="mmrl_robotics.verifiers:at_end", summary="It was solved at the end"),
        VerifierSpec(
            id="robotics/quick", target="mmrl_robotics.verifiers:quick", graded=True, summary="Solved, and the sooner the better"
        ),
    ]
