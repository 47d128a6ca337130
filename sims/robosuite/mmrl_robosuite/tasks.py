"""robosuite's tasks, the steps of their episodes, and what an action of a Panda is."""

from __future__ import annotations

import math
from dataclasses import dataclass

from mmrl.api.simulators.types import ActionSpec

CONTROL_HZ = 20.0
"""Default of robosuite and of robomimic's data sets."""
METRES, RADIANS = (0.05,) * 3, (0.5,) * 3
"""What 1 is in robosuite's default_panda.json: of a difference in place, and in orientation."""
POSE = (2.0,) * 3 + (math.pi,) * 3
"""What 1 is of a pose: an absolute action has a place in metres and an orientation as axis times angle."""
CAMERAS = ("agentview", "wrist", "frontview", "sideview", "birdview")
"""Ours, of the tasks with one arm. `wrist` is robosuite's `robot0_eye_in_hand`."""
WRISTS = {"wrist": "robot0_eye_in_hand", "wrist1": "robot1_eye_in_hand"}
"""Ours -> robosuite's; all others have robosuite's names."""
PROPRIOCEPTION = ("eef_pos", "eef_quat", "gripper_qpos")
"""What robomimic's policies read of each robot besides pictures, behind `robot0_` or `robot1_` (robomimic,
config/base_config.py and scripts/generate_paper_configs.py)."""
PANDA = ActionSpec(dims=7, control_mode="end-effector-delta", gripper=6, units=(*METRES, *RADIANS, 1.0))
WIPING = ActionSpec(dims=6, control_mode="end-effector-delta", units=(*METRES, *RADIANS))
TWO = ActionSpec(dims=14, units=PANDA.units * 2)
TWO_WITHOUT_HANDS = ActionSpec(dims=12, units=WIPING.units * 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class RobosuiteTask:
    """A task of robosuite."""

    env: str
    """robosuite's name."""
    instruction: str
    max_steps: int = 500
    """robomimic's horizon for data of a proficient operator (robomimic/__init__.py) where it has one, else that of robosuite's
    own benchmark."""
    action: ActionSpec = PANDA
    expert: bool = False
    """Whether there is a scripted expert."""

    @property
    def robots(self) -> int:
        return 2 if self.env.startswith("TwoArm") else 1

    @property
    def cameras(self) -> tuple[str, ...]:
        return CAMERAS if self.robots == 1 else (*CAMERAS, "wrist1")

    @property
    def state(self) -> tuple[str, ...]:
        """Default of the option `state`. A hand without fingers has no place of theirs."""
        last = 3 if self.action.gripper is not None or self.action is TWO else 2
        return tuple(f"robot{number}_{name}" for number in range(self.robots) for name in PROPRIOCEPTION[:last])


TASKS = {
    "lift": RobosuiteTask(env="Lift", instruction="lift the red cube", max_steps=400, expert=True),
    "stack": RobosuiteTask(env="Stack", instruction="put the red cube onto the green cube", expert=True),
    "can": RobosuiteTask(env="PickPlaceCan", instruction="put the can into its bin", max_steps=400, expert=True),
    "milk": RobosuiteTask(env="PickPlaceMilk", instruction="put the milk into its bin"),
    "bread": RobosuiteTask(env="PickPlaceBread", instruction="put the bread into its bin"),
    "cereal": RobosuiteTask(env="PickPlaceCereal", instruction="put the cereal into its bin"),
    "pick-place": RobosuiteTask(env="PickPlace", instruction="put the milk, the bread, the cereal and the can into their bins"),
    "square": RobosuiteTask(env="NutAssemblySquare", instruction="put the square nut onto its peg", max_steps=400),
    "round": RobosuiteTask(env="NutAssemblyRound", instruction="put the round nut onto its peg"),
    "nut-assembly": RobosuiteTask(env="NutAssembly", instruction="put the two nuts onto their pegs"),
    "tool-hang": RobosuiteTask(env="ToolHang", instruction="assemble the frame and hang the tool onto it", max_steps=700),
    "door": RobosuiteTask(env="Door", instruction="open the door"),
    "wipe": RobosuiteTask(env="Wipe", instruction="wipe the table", action=WIPING),
    "two-arm-lift": RobosuiteTask(env="TwoArmLift", instruction="lift the pot by its handles and keep it level", action=TWO),
    "two-arm-peg": RobosuiteTask(env="TwoArmPegInHole", instruction="put the peg into the hole", action=TWO_WITHOUT_HANDS),
    "two-arm-handover": RobosuiteTask(env="TwoArmHandover", instruction="hand the hammer over", action=TWO),
    "transport": RobosuiteTask(
        env="TwoArmTransport",
        instruction="move the hammer into the target bin and the cube into the trash",
        max_steps=700,
        action=TWO,
    ),
}
"""Id after `robosuite/` -> the task."""
