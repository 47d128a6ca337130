"""The suites, their published protocol, and the changed environments of LIBERO-Pro."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmrl.api.simulators.types import ActionSpec

STATES = 50
"""Published initial states of each task."""
SETTLING = 10
"""Steps in which nothing is done before an episode begins, while objects fall into place (OpenVLA, OpenVLA-OFT, openpi)."""
CONTROL_HZ = 20.0
CAMERAS = {"agentview": "agentview", "wrist": "robot0_eye_in_hand"}
"""Ours -> robosuite's."""
PANDA = ActionSpec(dims=7, control_mode="end-effector-delta", gripper=6, units=(0.05, 0.05, 0.05, 0.5, 0.5, 0.5, 1.0))
"""The arm's actions: metres and radians of robosuite's operational-space controller (osc_pose.json); the gripper opens below 0
and closes above, as LIBERO's."""
POSES = ActionSpec(dims=7, gripper=6, units=(2.0, 2.0, 2.0, math.pi, math.pi, math.pi, 1.0))
"""Its actions with `control = "absolute"`: where the hand is to be in the world, and its turn as axis times angle."""
PRO = {"pro.language": "lan", "pro.object": "object", "pro.swap": "swap", "pro.task": "task"}
"""Variant -> end of the suite's name in LIBERO-Pro (Zhou et al. 2025): another wording, other objects, swapped places, another
goal."""
REWORDED = ("pro.language", "pro.task")
"""Variants whose files keep the old names, so that the instruction is the one in the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """A published suite."""

    name: str
    """LIBERO's own."""
    tasks: int
    max_steps: int
    """As in OpenVLA's and openpi's evaluations; settling is not counted."""
    about: str
    variants: tuple[str, ...] = tuple(PRO)
    expert: bool = False
    """Whether the scripted expert does most of its tasks."""


SUITES = {
    "spatial": Suite(name="libero_spatial", tasks=10, max_steps=220, about="the same bowl in other places", expert=True),
    "object": Suite(name="libero_object", tasks=10, max_steps=280, about="other objects into the basket", expert=True),
    "goal": Suite(name="libero_goal", tasks=10, max_steps=300, about="other goals in one scene", expert=True),
    "long": Suite(name="libero_10", tasks=10, max_steps=520, about="LIBERO-10: long tasks in other scenes"),
    "90": Suite(name="libero_90", tasks=90, max_steps=400, about="90 short tasks in other scenes", variants=()),
}
"""Id after `libero/` -> the suite."""


def suite_of(suite: str, variant: str | None) -> tuple[str, str]:
    """(LIBERO's name of a suite in a variant, where its instructions come from: see `packages.tasks`)."""
    if variant is None:
        return suite, "name"
    return f"{suite}_{PRO[variant]}", "bddl" if variant in REWORDED else "name"
