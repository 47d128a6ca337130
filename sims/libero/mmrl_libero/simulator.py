"""`libero/...`: N environments of LIBERO, one process each."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any, Literal

import torch

from mmrl import UserError
from mmrl.api.simulators.checks import check_count, check_variant, checked_ids
from mmrl.api.simulators.mujoco_rendering import choose
from mmrl.api.simulators.processes import EnvironmentProcesses
from mmrl.api.simulators.processes.simulator import ProcessSimulator
from mmrl.api.simulators.types import ActionSpec, Observation
from mmrl_libero.packages import CURE, interpreter
from mmrl_libero.suites import CAMERAS, PANDA, POSES, SETTLING, suite_of

START_S = 300.0
"""Timeout in seconds for a process to build its first scene."""


class Libero(ProcessSimulator):
    """A suite of LIBERO, or one of its tasks. Seed s plays task s % T from the initial state s // T, T being the number of tasks.

    Example::

        simulator = Libero(num_envs=4, device="cpu", suite="libero_spatial", max_steps=220, python="libero/bin/python")
        simulator.reset(torch.arange(4))
    """

    def __init__(
        self,
        *,
        num_envs: int,
        device: str | torch.device,
        max_steps: int,
        suite: str | None = None,
        variants: Sequence[str] = (),
        bddl: str | None = None,
        states: str | None = None,
        task: int | str | None = None,
        initial_states: Sequence[int] | None = None,
        cameras: Sequence[str] = ("agentview", "wrist"),
        size: int = 256,
        rotate: bool | Sequence[str] = True,
        control: Literal["delta", "absolute"] = "delta",
        settling: int = SETTLING,
        placement_seed: int = 0,
        objects: bool = False,
        assets: str | None = None,
        rendering: Literal["auto", "gpu", "software", "none"] = "auto",
        python: str | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        """max_steps: steps of an episode. suite: LIBERO's name. variants: those of `SimulatorSpec.variants` that the suite has.
        bddl, states: instead of a suite, the files of one task and its initial states. task: number or name of a task; all by
        default. initial_states: numbers of those that are used; all by default. cameras: agentview, wrist or both, empty for
        states alone. size: side of the pictures in pixels. rotate: turn pictures by 180 degrees, as the published policies see
        them; or the cameras whose pictures are turned. control: what an action is, a difference from the hand's pose or its pose;
        the state then has the pose of the same frame, the controller's. settling: steps without an action before an episode.
        placement_seed: of what LIBERO's own reset draws, the places of fixtures. objects: the state has also the places of what
        the goal of one `task` names, 3 numbers each, in metres from the hand: for policies without a camera, which no published
        one is. assets: folder of LIBERO's assets. rendering: auto, gpu (EGL), software (OSMesa) or none. python: the interpreter
        with LIBERO, by default that of MMRL_LIBERO_PYTHON, or this one. timeout_s: seconds after which a process that doesn't
        answer is killed."""
        what = f"libero ({suite or bddl or 'no task'})"
        check_count(what, num_envs)
        _check_options(what, suite, bddl, states, cameras, size, settling, initial_states, max_steps)
        turned, action = _turned(what, rotate), _action(what, control)
        if objects and suite and task is None:
            raise UserError(f"{what}: objects = true needs one task, as goals name different numbers of things: set task")
        python = interpreter(python)
        if python is None and importlib.util.find_spec("libero") is None:
            raise UserError(f"{what}: LIBERO is not installed: {CURE}")
        pictures = bool(cameras) and rendering != "none"
        rung = choose("libero", rendering if pictures else "none", python, device=str(device))
        names = ["", *variants] if suite else []
        workers = EnvironmentProcesses(
            "mmrl_libero.environment:Environment",
            {
                "suites": {name: suite_of(suite, name or None) for name in names if suite},
                "bddl": bddl,
                "states": states,
                "task": task,
                "initial_states": None if initial_states is None else tuple(initial_states),
                "cameras": {name: CAMERAS[name] for name in cameras} if pictures else {},
                "size": size,
                "turned": turned,
                "poses": action.units if action is POSES else None,
                "deltas": PANDA.units,
                "settling": settling,
                "placement_seed": placement_seed,
                "assets": assets,
                "objects": objects,
            },
            num_envs,
            what=what,
            python=python,
            environment=rung.environment,
            start_s=START_S,
            timeout_s=timeout_s,
        )
        self.goals: dict[str, list[str]] = workers.facts["instructions"]
        """Variant, or an empty text, -> the instructions of the tasks that are played."""
        super().__init__(
            workers, instruction=self.goals[""][0], action=action, max_steps=max_steps, device=device, variants=variants
        )
        self.rendering = rung
        """What renders."""

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        """See `mmrl.Simulator.reset`. The seed chooses the task and its initial state."""
        ids_n = checked_ids(env_ids_n, self.num_envs, "cpu")
        check_variant(self.workers.what, variant, self.variants)
        goals = self.goals[variant or ""]
        for env, seed in zip(ids_n.tolist(), torch.as_tensor(seeds_n).flatten().tolist(), strict=False):
            self.instructions[env] = goals[int(seed) % len(goals)]
        return super().reset(seeds_n, ids_n, variant)

    def snapshot(self, env_ids_n: torch.Tensor) -> list[Any]:
        """See `mmrl.Simulator.snapshot`."""
        envs = self._ids(env_ids_n)
        return [(self.instructions[env], state) for env, state in zip(envs, super().snapshot(env_ids_n), strict=True)]

    def restore(self, env_ids_n: torch.Tensor, state: Sequence[Any]) -> Observation:
        """See `mmrl.Simulator.restore`. A state of another task builds that task's scene."""
        for env, (instruction, _) in zip(self._ids(env_ids_n), state, strict=False):
            self.instructions[env] = instruction
        return super().restore(env_ids_n, [inner for _, inner in state])

    def expert(self) -> torch.Tensor:
        """float32 [N, 7]: what a scripted expert would do now; zeros where an environment is lost."""
        return self._expert()


def _turned(what: str, rotate: bool | Sequence[str]) -> list[str]:
    """The cameras whose pictures are turned."""
    found = [name for name in CAMERAS if rotate] if isinstance(rotate, bool) else list(rotate)
    if any(name not in CAMERAS for name in found):
        raise UserError(f"{what}: rotate = {rotate!r} must be true, false or a list of {', '.join(CAMERAS)}")
    return found


def _action(what: str, control: str) -> ActionSpec:
    if control not in ("delta", "absolute"):
        raise UserError(f"{what}: control = {control!r} must be delta or absolute")
    return POSES if control == "absolute" else PANDA


def _check_options(
    what: str,
    suite: str | None,
    bddl: str | None,
    states: str | None,
    cameras: Sequence[str],
    size: int,
    settling: int,
    initial_states: Sequence[int] | None,
    max_steps: int,
) -> None:
    """Raises UserError for options that no environment supports."""
    if bool(suite) == bool(bddl):
        raise UserError(f"{what}: set suite, or bddl and states for a task of your own: one of the two")
    if states and not bddl:
        raise UserError(f"{what}: states are those of a task of your own: set bddl too, or choose with initial_states")
    if isinstance(cameras, str) or any(name not in CAMERAS for name in cameras):
        raise UserError(f"{what}: cameras = {cameras!r} must be a list of {', '.join(CAMERAS)}")
    numbers = {"size": (size, 8, 1024), "settling": (settling, 0, 1000), "max_steps": (max_steps, 1, 10**6)}
    for name, (value, least, most) in numbers.items():
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise UserError(f"{what}: {name} = {value!r} must be a whole number of {least} to {most}")
    if initial_states is not None and (
        isinstance(initial_states, str) or not initial_states or not all(type(n) is int and n >= 0 for n in initial_states)
    ):
        raise UserError(f"{what}: initial_states = {initial_states!r} must be a list of numbers from 0, such as [0, 1, 2]")
