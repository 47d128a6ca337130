"""An arm at a table in MuJoCo, thousands at once on a GPU by mujoco-warp, and by the same kernels on a CPU."""

from mmrl import SimulatorSpec, hookimpl
from mmrl.api.simulators.types import ActionSpec

MMRL_CONTRACT = 2

CAMERAS = ("front", "wrist", "top")
REACH, TURN = 0.05, 0.15
"""Metres and radians of an action of 1."""
SUMMARIES = {
    "reach": (("reached",), 40, "move the gripper to the ball that is named"),
    "pick": (("reached", "grasped", "lifted"), 60, "pick up the cube that is named"),
    "stack": (("reached", "grasped", "lifted", "placed"), 100, "stack a cube on another"),
    "door": (("reached", "opened"), 100, "open the door with the handle that is named"),
}
"""Task -> its parts, its steps, and what is asked for: plain data, so that listing simulators imports no physics."""
ABILITIES = ("partial-reset", "per-env-seed", "snapshot", "batched-gpu", "expert", "render-gpu", "render-cpu")


@hookimpl
def mmrl_simulators() -> list[SimulatorSpec]:
    return [
        SimulatorSpec(
            id=f"mjx/{task}",
            target="mmrl_mjx.simulator:Mjx",
            options={"task": task},
            summary=f"{summary}; thousands at once on a GPU",
            cameras=CAMERAS,
            action=ActionSpec(dims=7, control_mode="end-effector-delta", gripper=6, units=(*(REACH,) * 3, *(TURN,) * 3, 1.0)),
            control_hz=20.0,
            max_steps=steps,
            parts=parts,
            doctor="mmrl_mjx.diagnosis:findings",
            capabilities=frozenset(ABILITIES),
        )
        for task, (parts, steps, summary) in SUMMARIES.items()
    ]
