"""`maniskill/env` and the tasks by name: N ManiSkill environments on the CPU, a process each."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Literal

import torch

from mmrl import UserError
from mmrl.api.simulators.processes import EnvironmentProcesses
from mmrl.api.simulators.processes.simulator import ProcessSimulator
from mmrl.api.simulators.types import ActionSpec
from mmrl_maniskill.options import check_options
from mmrl_maniskill.rendering import choose

START_S = 180.0
"""Seconds that a process may take for its first pictures; with a software driver that is a matter of its CPU."""


class ManiSkill(ProcessSimulator):
    """A ManiSkill task; PhysX on the CPU takes one environment a process.

    Example::

        simulator = ManiSkill(num_envs=4, device="cpu", env_id="PickCube-v1", instruction="pick up the cube")
        simulator.reset(torch.arange(4))
    """

    def __init__(
        self,
        *,
        num_envs: int,
        device: str | torch.device,
        env_id: str,
        instruction: str,
        obs: Literal["rgb", "state"] = "rgb",
        size: int = 128,
        cameras: Sequence[str] = ("base_camera",),
        control_mode: str = "pd_ee_delta_pose",
        reward: Literal["normalized_dense", "dense", "sparse", "none"] = "normalized_dense",
        goals: bool = True,
        parts: Sequence[str] = (),
        rendering: Literal["auto", "gpu", "software", "none"] = "auto",
        timeout_s: float = 60.0,
        python: str | None = None,
    ) -> None:
        """env_id: of ManiSkill's registry. obs: `rgb`, pictures beside what the robot knows of itself; `state`, everything that
        is known, and no pictures. size: pixels of a side. cameras: of the task's. control_mode: what an action is. reward:
        the simulator's own. goals: draw the marks of goals that ManiSkill hides from the robot's cameras. parts: what of the
        task's `evaluate` is given as `Transition.parts`. rendering: `auto` takes a GPU, else a software driver, else (for
        `state`) none. timeout_s: seconds after which a process that doesn't answer is killed. python: another interpreter.
        """
        what = f"maniskill ({env_id})"
        check_options(what, num_envs, size, cameras, obs)
        if python is None and importlib.util.find_spec("mani_skill") is None:
            raise UserError(f"{what}: no module named 'mani_skill': pip install \"multimodal-rl[maniskill]\"")
        rung = choose(rendering, obs == "rgb", python)
        workers = EnvironmentProcesses(
            "mmrl_maniskill.environment:Environment",
            {
                "env_id": env_id,
                "obs": obs,
                "size": size,
                "cameras": tuple(cameras),
                "control_mode": control_mode,
                "reward": reward,
                "goals": goals,
                "parts": tuple(parts),
                "rendering": rung.rendering,
            },
            num_envs,
            what=what,
            python=python,
            environment={"MS_SKIP_ASSET_DOWNLOAD_PROMPT": "0", **rung.environment},
            start_s=START_S,
            timeout_s=timeout_s,
        )
        facts = workers.facts
        super().__init__(
            workers,
            instruction=instruction,
            action=ActionSpec(dims=facts["dims"], control_mode=facts["frame"], gripper=facts["gripper"], units=facts["units"]),
            max_steps=facts["max_steps"],
            device=device,
        )
        self.rendering = rung
        """What renders."""
