"""`lerobot/env`: N environments of LeRobot, one process each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from mmrl import UserError
from mmrl.api.simulators.checks import check_count
from mmrl.api.simulators.gpus import egl_variables
from mmrl.api.simulators.processes import EnvironmentProcesses
from mmrl.api.simulators.processes.simulator import ProcessSimulator
from mmrl.api.simulators.types import ActionSpec, Observation, units_of_bounds

QUIET = {"SDL_VIDEODRIVER": "dummy", "PYGAME_HIDE_SUPPORT_PROMPT": "1"}


class LeRobot(ProcessSimulator):
    """An environment of LeRobot, or of a hub repository with a `make_env`. -1 to 1 of an action is scaled to its bounds.

    A seed chooses one of its tasks (the remainder by their number) and the start. Cameras have LeRobot's names after
    `observation.images.`, or `image` for its only one.

    Example::

        simulator = LeRobot(num_envs=4, device="cpu", env="pusht", instruction="push the T", python="lerobot/bin/python")
    """

    def __init__(
        self,
        *,
        num_envs: int,
        device: str | torch.device,
        env: str,
        instruction: str = "",
        config: Mapping[str, Any] | None = None,
        tasks: Sequence[int] | None = None,
        pictures: bool = True,
        state: bool = True,
        trust_remote_code: bool = False,
        frame: Literal["end-effector-delta", "joint-delta", "joint", "other"] = "other",
        gripper: int | None = None,
        units: Sequence[float] = (),
        max_steps: int | None = None,
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        """env: a type of LeRobot's environments, such as pusht, or a hub repository, such as user/name@commit:env.py.
        instruction: the task in words, by default the environment's own. config: settings of the environment's type, such as
        task. tasks: places of the tasks that are played in the list of all. pictures, state: show these. trust_remote_code:
        run the code of a hub repository. frame, gripper, units: see `ActionSpec`; units are by default the
        environment's own. max_steps: maximum steps of an episode, by default the environment's. python: an interpreter with
        LeRobot. environment: variables of the processes. timeout_s: seconds after which a process that doesn't answer is killed.

        Raises UserError for what can't be made, without a word of the hub's code being run unless it is trusted.
        """
        what = f"lerobot ({env})"
        check_count(what, num_envs)
        if not pictures and not state:
            raise UserError(f"{what}: pictures and state are both off, so there is no observation: set one to true")
        options = {"env": env, "config": dict(config or {}), "tasks": None if tasks is None else tuple(tasks)}
        workers = EnvironmentProcesses(
            "mmrl_lerobot.environment:Environment",
            {**options, "pictures": pictures, "state": state, "trust_remote_code": trust_remote_code},
            num_envs,
            what=what,
            python=python,
            environment={**QUIET, **egl_variables(device), **(environment or {})},
            timeout_s=timeout_s,
        )
        try:
            meant = {"units": tuple(units)} if units else units_of_bounds(workers.facts["bounds"])
            action = ActionSpec(dims=workers.facts["dims"], control_mode=frame, gripper=gripper, **meant)
        except ValueError as error:
            workers.close()
            raise UserError(f"{what}: {error}") from error
        self.given = instruction
        super().__init__(
            workers, instruction=instruction, action=action, max_steps=max_steps or workers.facts["max_steps"], device=device
        )

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        return self._told(super().reset(seeds_n, env_ids_n, variant), env_ids_n)

    def restore(self, env_ids_n: torch.Tensor, state: Sequence[Any]) -> Observation:
        return self._told(super().restore(env_ids_n, state), env_ids_n)

    def _told(self, observation: Observation, env_ids_n: torch.Tensor | None) -> Observation:
        """With the environments' own instructions, where none was given."""
        if self.given:
            return observation
        envs = self._ids(env_ids_n)
        for env, text in zip(envs, self.workers.call(envs, "text"), strict=True):
            if not text:
                raise UserError(f"{self.workers.what} doesn't say in words what is to be done: set instruction")
            self.instructions[env] = text
        return replace(observation, instructions=[self.instructions[env] for env in envs])
