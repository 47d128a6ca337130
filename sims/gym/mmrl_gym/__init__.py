"""Gymnasium environments with rendering, one process per environment."""

from mmrl import SimulatorSpec, hookimpl
from mmrl.api.simulators.types import ActionSpec

MMRL_CONTRACT = 2

ABILITIES = frozenset(("partial-reset", "per-env-seed", "snapshot", "render-cpu"))


@hookimpl
def mmrl_simulators() -> list[SimulatorSpec]:
    return [
        SimulatorSpec(
            id="gym/env",
            target="mmrl_gym.simulator:Gym",
            summary="any Gymnasium environment that renders: options env_id, instruction",
            cameras=("camera",),
            action=ActionSpec(dims=1),
            doctor="mmrl_gym.diagnosis:findings",
            capabilities=ABILITIES,
        ),
        SimulatorSpec(
            id="gym/metaworld",
            target="mmrl_gym.simulator:Gym",
            options={
                "env_id": "Meta-World/MT1",
                "make": {"env_name": "reach-v3", "camera_name": "corner2", "seed": 0},
                "modules": ("metaworld",),
                "instruction": "reach the red ball",
                "success_key": "success",
                "frame": "end-effector-delta",
                "gripper": 3,
                "units": (0.01, 0.01, 0.01, 1.0),  # its action_scale, in metres
                "flip": True,
                "environment": {"MUJOCO_GL": "osmesa"},
            },
            summary="Meta-World's arm, 50 tasks by make.env_name; needs numpy below 2, so set the option python",
            cameras=("camera",),
            action=ActionSpec(dims=4, control_mode="end-effector-delta", gripper=3, units=(0.01, 0.01, 0.01, 1.0)),
            control_hz=80.0,
            max_steps=500,
            doctor="mmrl_gym.diagnosis:findings",
            capabilities=ABILITIES,
        ),
    ]
