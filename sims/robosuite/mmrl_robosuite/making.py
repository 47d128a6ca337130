"""What robosuite is told when an environment is made, and what an action of it is. Imports nothing of mmrl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


def arguments(
    env: str, robots: Sequence[str], controller: str, control: str, control_hz: float, lite_physics: bool
) -> dict[str, Any]:
    """Arguments of `robosuite.make`. controller: of each arm, in robosuite's composite controller BASIC. control: what an action
    is, a difference or a pose, which then is one of the world."""
    return {
        "robots": list(robots),
        "controller_configs": [_controllers(robot, controller, control) for robot in robots],
        "control_freq": control_hz,
        "lite_physics": lite_physics,
    }


def _controllers(robot: str, controller: str, control: str) -> dict[str, Any]:
    from robosuite.controllers import load_composite_controller_config, load_part_controller_config

    found: dict[str, Any] = load_composite_controller_config(robot=robot)
    for name, part in found["body_parts"].items():
        if "gripper" not in part:  # no arm
            continue
        if controller != part["type"]:
            part = load_part_controller_config(default_controller=controller) | {"gripper": part["gripper"]}
        found["body_parts"][name] = (
            part | {"input_type": control} | ({"input_ref_frame": "world"} if control == "absolute" else {})
        )
    return found


def composite(given: Any, robots: Sequence[str]) -> Any:
    """Controllers of a file from before robosuite 1.5, which names those of the arm alone, as composite ones."""
    from robosuite.controllers.composite.composite_controller_factory import refactor_composite_controller_config

    if not isinstance(given, dict):
        return given
    return [refactor_composite_controller_config(given, robot, ["right"]) for robot in robots]


def action_of(env: Any, poses: Sequence[float]) -> tuple[tuple[float, ...], int | None, bool]:
    """(what 1 is in each number of an action, the index of the only gripper, whether arms get poses). poses: units of a pose."""
    units: list[float] = []
    grippers: list[int] = []
    absolute = False
    for robot in env.robots:
        for name, controller in robot.part_controllers.items():
            if name in robot.arms:
                absolute = getattr(controller, "input_type", "delta") == "absolute"
                units += _poses(controller, poses) if absolute else [float(each) for each in controller.output_max]
            else:
                first, last = robot.composite_controller._action_split_indexes[name]
                grippers += range(len(units), len(units) + last - first)
                units += [1.0] * (last - first)
    return tuple(units), grippers[0] if len(grippers) == 1 else None, absolute


def _poses(controller: Any, poses: Sequence[float]) -> list[float]:
    """A pose in space, a place alone, or angles of joints."""
    return list(poses[: controller.control_dim]) if hasattr(controller, "use_ori") else [poses[-1]] * controller.control_dim


def kind_of(env: Any, absolute: bool) -> str:
    """`control_mode` of an `ActionSpec`."""
    arms = [robot.part_controllers[arm] for robot in env.robots for arm in robot.arms]
    if len(arms) > 1:
        return "other"
    if hasattr(arms[0], "use_ori"):
        return "other" if absolute or not arms[0].use_ori else "end-effector-delta"
    return "other" if arms[0].name != "JOINT_POSITION" else "joint" if absolute else "joint-delta"
