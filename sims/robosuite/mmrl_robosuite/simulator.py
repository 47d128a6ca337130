"""`robosuite/...`: N environments of robosuite, one process each."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Literal

import torch

from mmrl import UserError
from mmrl.api.simulators.checks import check_count
from mmrl.api.simulators.mujoco_rendering import choose
from mmrl.api.simulators.processes import EnvironmentProcesses
from mmrl.api.simulators.processes.simulator import ProcessSimulator
from mmrl.api.simulators.types import ActionSpec
from mmrl_robosuite.packages import CURE, interpreter
from mmrl_robosuite.tasks import CONTROL_HZ, POSE, TASKS, WRISTS

START_S = 300.0
"""Timeout in seconds for a process to build its first scene."""


class Robosuite(ProcessSimulator):
    """A task of robosuite. A seed draws the start: sizes and places of things, and the arm's pose.

    Example::

        simulator = Robosuite(num_envs=4, device="cpu", task="lift", max_steps=400, python="robosuite/bin/python")
        simulator.reset(torch.arange(4))
    """

    def __init__(
        self,
        *,
        num_envs: int,
        device: str | torch.device,
        task: str,
        max_steps: int,
        robots: Sequence[str] | None = None,
        controller: Literal["OSC_POSE", "OSC_POSITION", "JOINT_POSITION", "JOINT_VELOCITY"] = "OSC_POSE",
        control: Literal["delta", "absolute"] = "delta",
        control_hz: float = CONTROL_HZ,
        lite_physics: bool = True,
        cameras: Sequence[str] = ("agentview", "wrist"),
        size: int = 84,
        state: Sequence[str] | None = None,
        shaped: bool = False,
        demonstrations: str | None = None,
        filter_key: str | None = None,
        rendering: Literal["auto", "gpu", "software", "none"] = "auto",
        python: str | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        """task: its id after `robosuite/`. max_steps: steps of an episode. robots: robosuite's names, one for each arm; by
        default Panda. controller: of each arm, with robosuite's defaults. control: what an action is, a difference or a pose in
        the world; with JOINT_POSITION, of angles. control_hz: actions in a second. lite_physics: robosuite's shorter step of the
        physics. cameras: agentview, wrist, or robosuite's other names; empty for states alone. size: side of the pictures in
        pixels. state: names of robosuite's or robomimic's observations, in this order, such as robot0_eef_pos and object; by
        default place, orientation and fingers of each hand. shaped: robosuite's shaped reward instead of success.
        demonstrations: a file of robomimic, which the split `demo` plays; robots, controllers, control_hz and lite_physics are
        then the file's. filter_key: a subset of it, such as train. rendering: auto, gpu (EGL), software (OSMesa) or none.
        python: the interpreter with robosuite, by default that of MMRL_ROBOSUITE_PYTHON, or this one. timeout_s: seconds after
        which a process that doesn't answer is killed."""
        what = f"robosuite/{task}"
        check_count(what, num_envs)
        if task not in TASKS:
            raise UserError(f"robosuite: there is no task {task!r}: there are {', '.join(TASKS)}")
        told = TASKS[task]
        _check_options(what, told.robots, robots, controller, control, cameras, size, state, max_steps, control_hz)
        if filter_key is not None and demonstrations is None:
            raise UserError(f"{what}: filter_key names a subset of demonstrations: set demonstrations too, or leave it out")
        python = interpreter(python)
        if python is None and importlib.util.find_spec("robosuite") is None:
            raise UserError(f"{what}: robosuite is not installed: {CURE}")
        pictures = bool(cameras) and rendering != "none"
        rung = choose("robosuite", rendering if pictures else "none", python, device=str(device))
        workers = EnvironmentProcesses(
            "mmrl_robosuite.environment:Environment",
            {
                "env": told.env,
                "cameras": {name: WRISTS.get(name, name) for name in cameras} if pictures else {},
                "size": size,
                "state": list(told.state if state is None else state),
                "shaped": shaped,
                "poses": POSE,
                "demonstrations": demonstrations,
                "filter_key": filter_key,
                "scripted": told.expert,
                "robots": ["Panda"] * told.robots if robots is None else list(robots),
                "controller": controller,
                "control": control,
                "control_hz": float(control_hz),
                "lite_physics": lite_physics,
            },
            num_envs,
            what=what,
            python=python,
            environment=rung.environment,
            start_s=START_S,
            timeout_s=timeout_s,
        )
        facts = workers.facts
        action = ActionSpec(dims=facts["dims"], control_mode=facts["kind"], gripper=facts["gripper"], units=tuple(facts["units"]))
        super().__init__(workers, instruction=told.instruction, action=action, max_steps=max_steps, device=device)
        self.rendering = rung
        """What renders."""
        self.demonstrations: int = facts["demonstrations"]
        """Number of demonstrations that the split `demo` plays, one after the other; 0 without a file."""

    def expert(self) -> torch.Tensor:
        """float32 [N, A]: what the demonstration did, or a scripted expert would do now; zeros where an environment is lost.
        Raises UserError for a task that has no scripted expert, where no demonstration is played."""
        return self._expert()


def _check_options(
    what: str,
    arms: int,
    robots: Sequence[str] | None,
    controller: str,
    control: str,
    cameras: Sequence[str],
    size: int,
    state: Sequence[str] | None,
    max_steps: int,
    control_hz: float,
) -> None:
    """Raises UserError for options that no environment supports."""
    for name, names in {"robots": robots, "cameras": cameras, "state": state}.items():
        if names is not None and (isinstance(names, str) or not all(isinstance(each, str) and each for each in names)):
            raise UserError(f"{what}: {name} = {names!r} must be a list of names")
    if robots is not None and len(robots) != arms:
        raise UserError(f"{what}: robots = {list(robots)} must be {arms}, one for each arm: such as {['Panda'] * arms}")
    if len(set(cameras)) < len(cameras):
        raise UserError(f"{what}: cameras = {list(cameras)} names one twice: leave one out")
    if not cameras and state is not None and not state:
        raise UserError(f"{what}: observations would be empty: set a camera or a state")
    if control == "absolute" and controller == "JOINT_VELOCITY":
        raise UserError(f'{what}: JOINT_VELOCITY has no absolute actions: set control = "delta", or another controller')
    for name, (value, least, most) in {"size": (size, 8, 1024), "max_steps": (max_steps, 1, 10**6)}.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UserError(f"{what}: {name} = {value!r} must be a whole number of {least} to {most}")
    if isinstance(control_hz, bool) or not isinstance(control_hz, int | float) or not 1 <= control_hz <= 500:
        raise UserError(f"{what}: control_hz = {control_hz!r} must be a number of 1 to 500")
