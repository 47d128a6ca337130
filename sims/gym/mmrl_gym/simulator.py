"""`gym/env`: N Gymnasium environments, one process each."""

from __future__ import annotations

import importlib.util
import warnings
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


class Gym(ProcessSimulator):
    """A Gymnasium environment. For a Box, -1 to 1 of an action is scaled to its bounds; for a Discrete, the largest number is
    chosen; others see `mmrl_gym.spaces`.

    Example::

        simulator = Gym(num_envs=4, device="cpu", env_id="Pendulum-v1", instruction="swing the pole up and keep it there")
        simulator.reset(torch.arange(4))
    """

    def __init__(
        self,
        *,
        num_envs: int,
        device: str | torch.device,
        env_id: str,
        instruction: str = "",
        make: Mapping[str, Any] | None = None,
        modules: Sequence[str] = (),
        size: int | None = 128,
        pictures: bool = True,
        cameras: Sequence[str] = ("camera",),
        state: bool = True,
        flip: bool = False,
        remake: bool = False,
        success_key: str | None = None,
        success_return: float | None = None,
        interventions: bool = False,
        frame: Literal["end-effector-delta", "joint-delta", "joint", "other"] = "other",
        gripper: int | None = None,
        units: Sequence[float] = (),
        max_steps: int | None = None,
        python: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """env_id: of Gymnasium's registry. instruction: the task, in words; by default those of the observation, such as
        MiniGrid's mission. make: further arguments of `gymnasium.make`, such as a camera. modules: modules to import first,
        which register environments. size: side of the pictures in pixels, to which they are resized; None keeps the rendered
        size. pictures: show pictures. cameras: which: `camera` is what the environment renders, others are pictures in its
        observations, by the last key. state: show the numbers of observations. flip: rotate pictures by 180 degrees. remake:
        make a new environment for each episode, where `reset` leaves something of the last. success_key: key of `info` that
        says whether the task is solved. success_return: alternatively, the sum of rewards from which it is solved.
        interventions: `info` says when another action was carried out, see `mmrl_gym.environment.taken`. frame: control mode of
        the actions, see `ActionSpec.control_mode`. gripper: index of the gripper in an action. units: see
        `ActionSpec.units`, by default a Box's own. max_steps: maximum steps of an episode, by default the environment's.
        python: another interpreter for the processes, with numpy and gymnasium. environment: environment variables of the
        processes. timeout_s: seconds after which a process that doesn't answer is killed.
        """
        what = f"gym ({env_id})"
        check_count(what, num_envs)
        _check_observation(what, size, pictures, state)
        _check_success(what, success_key, success_return)
        if python is None and importlib.util.find_spec("gymnasium") is None:
            raise UserError(f"{what}: no module named 'gymnasium': pip install \"multimodal-rl[gym]\"")
        workers = EnvironmentProcesses(
            "mmrl_gym.environment:Environment",
            {
                "env_id": env_id,
                "make": dict(make or {}),
                "modules": tuple(modules),
                "size": size,
                "cameras": tuple(cameras) if pictures else (),
                "state": state,
                "flip": flip,
                "remake": remake,
                "success_key": success_key,
                "success_return": success_return,
                "interventions": interventions,
            },
            num_envs,
            what=what,
            python=python,
            environment={**QUIET, **egl_variables(device), **(environment or {})},
            timeout_s=timeout_s,
        )
        self.tells = not instruction
        """The observation says the instruction."""
        self.warned = False
        if self.tells and not workers.facts["tells"]:
            workers.close()
            raise UserError(f"{what}: its observations have no text that says what to do: set instruction")
        try:
            own = {"units": tuple(units)} if units else units_of_bounds(workers.facts["bounds"])
            action = ActionSpec(dims=workers.facts["dims"], control_mode=frame, gripper=gripper, **own)
        except ValueError as error:
            workers.close()
            raise UserError(f"{what}: {error}") from error
        most = max_steps or workers.facts["max_steps"]
        super().__init__(workers, instruction=instruction, action=action, max_steps=most, device=device)

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        observation = super().reset(seeds_n, env_ids_n, variant)
        if not self.warned and len(set(seeds_n.tolist())) > 1 and _alike(observation):
            self.warned = True
            warnings.warn(
                f"{self.workers.what}: episodes of different seeds begin alike, so all groups have one start", stacklevel=2
            )
        return self._told(observation, env_ids_n)

    def restore(self, env_ids_n: torch.Tensor, state: Sequence[Any]) -> Observation:
        return self._told(super().restore(env_ids_n, state), env_ids_n)

    def _told(self, observation: Observation, env_ids_n: torch.Tensor | None) -> Observation:
        """With what the environments say is to be done, if that is their instruction."""
        if not self.tells:
            return observation
        envs = self._ids(env_ids_n)
        for env, text in zip(envs, self.workers.call(envs, "text"), strict=True):
            self.instructions[env] = text
        return replace(observation, instructions=[self.instructions[env] for env in envs])


def _check_observation(what: str, size: int | None, pictures: bool, state: bool) -> None:
    if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 8 <= size <= 2048):
        raise UserError(f"{what}: size = {size!r} must be a whole number of 8 to 2048, or None")
    if not pictures and not state:
        raise UserError(f"{what}: pictures and state are both off, so there is no observation: set one to true")


def _check_success(what: str, key: str | None, least: float | None) -> None:
    if key is not None and least is not None:
        raise UserError(f"{what}: success_key and success_return both define success: set one of them")
    if least is not None and not least > 0:
        raise UserError(f"{what}: success_return = {least!r} must be above 0, the return at the start of an episode")


def _alike(observation: Observation) -> bool:
    """Whether several environments show the same."""
    rows = [*observation.images.values(), *([] if observation.state is None else [observation.state])]
    return all(bool((each == each[:1]).all()) for each in rows)
