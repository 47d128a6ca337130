"""The tasks of ManiSkill 3.0 that need no downloads, with their instructions and the parts of their success."""

from __future__ import annotations

from dataclasses import dataclass

CAMERAS = ("base_camera", "hand_camera")
"""The second is on the wrist, if the robot is a `panda_wristcam`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task."""

    env_id: str
    """Name in ManiSkill's registry."""
    instruction: str
    """The task in words, for the policy: ManiSkill has no instructions."""
    parts: tuple[str, ...] = ()
    """Boolean entries of the task's `evaluate` besides `success`."""
    max_steps: int = 50
    """The registry's maximum of steps of an episode."""
    reward: str = "normalized_dense"
    """The densest of ManiSkill's reward modes that the task has."""
    stick: bool = False
    """Whether the arm has no gripper."""


ENVIRONMENTS = {
    "pick-cube": Task(
        env_id="PickCube-v1",
        instruction="pick up the red cube and hold it at the green ball",
        parts=("is_grasped", "is_obj_placed", "is_robot_static"),
    ),
    "push-cube": Task(env_id="PushCube-v1", instruction="push the blue cube onto the red and white target"),
    "pull-cube": Task(env_id="PullCube-v1", instruction="pull the blue cube onto the red and white target"),
    "stack-cube": Task(
        env_id="StackCube-v1",
        instruction="stack the red cube on the green cube",
        parts=("is_cubeA_grasped", "is_cubeA_on_cubeB", "is_cubeA_static"),
    ),
    "stack-pyramid": Task(
        env_id="StackPyramid-v1",
        instruction="put the red cube next to the green cube and the blue cube on top of both",
        max_steps=250,
        reward="sparse",
    ),
    "lift-peg": Task(env_id="LiftPegUpright-v1", instruction="lift the peg and stand it upright on the table"),
    "insert-peg": Task(env_id="PegInsertionSide-v1", instruction="insert the orange end of the peg into the box", max_steps=100),
    "plug-charger": Task(
        env_id="PlugCharger-v1", instruction="plug the charger into the wall receptacle", max_steps=200, reward="sparse"
    ),
    "place-sphere": Task(
        env_id="PlaceSphere-v1",
        instruction="place the sphere into the shallow bin",
        parts=("is_obj_grasped", "is_obj_on_bin", "is_obj_static"),
    ),
    "poke-cube": Task(
        env_id="PokeCube-v1",
        instruction="poke the red cube with the peg to push it to its goal",
        parts=("is_cube_placed", "is_peg_cube_fit", "is_peg_grasped"),
    ),
    "roll-ball": Task(
        env_id="RollBall-v1", instruction="roll the ball to the target at the other end of the table", max_steps=80
    ),
    "pull-cube-with-tool": Task(
        env_id="PullCubeTool-v1", instruction="take the L-shaped tool and pull the cube closer with it", max_steps=100
    ),
    "push-t": Task(env_id="PushT-v1", instruction="push the T-shaped block onto the T-shaped target", max_steps=100, stick=True),
}
"""Id after `maniskill/` -> the task."""
