"""A table, objects and a gripper, simulated and rendered as one batch of tensors."""

from mmrl import SimulatorSpec, hookimpl
from mmrl.api.simulators.types import ActionSpec

MMRL_CONTRACT = 2

PARTS = ("reached", "grasped", "lifted", "held", "placed")
VARIANTS = (
    "vision.images",
    "vision.texture-03",
    "vision.texture-05",
    "vision.whole-03",
    "vision.whole-05",
    "semantic.object",
    "semantic.receptacle",
    "semantic.instruction",
    "semantic.distractor-object",
    "semantic.distractor-receptacle",
    "execution.position",
    "execution.robot-pose",
    "execution.moved",
)


@hookimpl
def mmrl_simulators() -> list[SimulatorSpec]:
    return [
        SimulatorSpec(
            id="tabletop/table",
            target="mmrl_tabletop.table:Table",
            summary="a gripper and objects on a table: tasks reach, push, pick, put-on, stack",
            cameras=("front", "wrist", "top"),
            action=ActionSpec(dims=7, control_mode="end-effector-delta", gripper=6, units=(0.1, 0.1, 0.1, 0.3, 0.3, 0.3, 1.0)),
            control_hz=5.0,
            max_steps=16,
            parts=PARTS,
            capabilities=frozenset(
                ("partial-reset", "per-env-seed", "snapshot", "batched-gpu", "expert", "render-gpu", "render-cpu")
            ),
            variants=VARIANTS,
        )
    ]
