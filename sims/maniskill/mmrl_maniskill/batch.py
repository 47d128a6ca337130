"""`maniskill/batch`: one ManiSkill environment with N sub-scenes on a GPU (`physx_cuda`), in the engine's process.

The start of each environment depends on its seed alone. The later steps are not exactly reproducible: rounding of PhysX on a GPU
makes equal states in two sub-scenes diverge (ManiSkill issue 787). So the spec doesn't list `per-env-seed`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from mmrl import UserError
from mmrl.api.simulators.checks import check_states, check_variant, checked_actions, checked_ids, checked_seeds
from mmrl.api.simulators.gpus import gpu_index
from mmrl.api.simulators.types import ActionSpec, Observation, Transition
from mmrl_maniskill import environment
from mmrl_maniskill.options import check_options
from mmrl_maniskill.rendering import choose

Place = tuple[str, ...]
"""The keys that lead from an environment's attributes to a tensor, through dictionaries and poses."""
STEPS: Place = ("_elapsed_steps",)
"""Where an environment keeps its numbers of steps, int32 [N]."""
TURN = threading.Lock()
"""Held by the thread in which ManiSkill seeds and uses the global generators, which all lanes of a process share."""


class Batch:
    """N sub-scenes in lock-step. After a step, inactive environments are restored from a snapshot.

    Example::

        simulator = Batch(num_envs=1024, device="cuda", env_id="PickCube-v1", instruction="pick up the cube", obs="state")
        simulator.reset(torch.arange(1024))
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
        rendering: Literal["auto", "gpu", "software", "none"] = "auto",
        backend: Literal["physx_cuda", "physx_cpu"] = "physx_cuda",
    ) -> None:
        """backend: physx_cuda, or physx_cpu for one environment, for trials without a GPU. Other options: see `ManiSkill`."""
        self.what = f"maniskill/batch ({env_id})"
        check_options(self.what, num_envs, size, cameras, obs)
        if backend == "physx_cpu" and num_envs > 1:
            raise UserError(f"{self.what}: physx_cpu supports one environment, not {num_envs}: use maniskill/env")
        if "target" in control_mode:
            raise UserError(f"{self.what}: ManiSkill doesn't restore the targets of {control_mode!r}: use maniskill/env")
        if importlib.util.find_spec("mani_skill") is None:
            raise UserError(f"{self.what}: no module named 'mani_skill': pip install \"multimodal-rl[maniskill]\"")
        self.device = torch.device(device)
        where = str(backend)
        if backend == "physx_cuda":
            self._check_gpu()
            where += f":{gpu_index(device)}"  # without a number, SAPIEN takes the first GPU
        wanted = "gpu" if rendering == "auto" and backend == "physx_cuda" and obs == "rgb" else rendering
        rung = choose(wanted, obs == "rgb", gpu=gpu_index(device))
        import os

        os.environ.update(rung.environment)  # sapien reads them at import
        with self._refusing(), _generators_kept():
            self._env, self.max_steps = environment.made(
                env_id, num_envs, where, obs=obs, size=size, control_mode=control_mode, reward=reward, rendering=rung.rendering
            )
            environment.check_scenes(self._env)
            self._cameras = tuple(cameras) if obs == "rgb" else ()
            if goals and obs == "rgb":
                environment.show_goals(self._env)
            facts = environment.facts(self._env, control_mode)
            self._variables = _written(self._env, lambda: environment.check_names(self._env, self._cameras, ()))
        self.num_envs, self.instruction, self._obs = num_envs, instruction, obs
        self.action = ActionSpec(dims=facts["dims"], control_mode=facts["frame"], gripper=facts["gripper"], units=facts["units"])

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        """See `mmrl.Simulator.reset`. Each environment is reset alone: in a joint reset, the starts would depend on N. They are
        observed once, together."""
        ids_n = self._ids(env_ids_n)
        check_variant(self.what, variant, ())
        seeds = checked_seeds(seeds_n, len(ids_n), "cpu")
        with environment.unseen(self._opened()), _generators_kept():
            for env, seed in zip(ids_n.tolist(), seeds.tolist(), strict=True):
                self._begin(env, seed % environment.SEEDS)
        return self._observe()[0].rows(ids_n)

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        """See `mmrl.Simulator.step`."""
        env = self._opened()
        actions_NA, active_N = checked_actions(actions_NA, active_N, self.num_envs, self.action.dims, self.device)
        if self.action.gripper is not None:
            actions_NA[:, self.action.gripper] *= -1  # ManiSkill opens the gripper above 0
        idle_n = (~active_N).nonzero()[:, 0]
        before = self.snapshot(idle_n) if len(idle_n) else None
        with environment.unseen(env), _generators_kept():  # observed below, when the inactive ones are restored
            _, reward_N, *_ = env.step(actions_NA)
        reward_N = reward_N.float().clone()
        if before is not None:
            self._put(idle_n, before)
        observation, rows = self._observe()
        return Transition(
            observation=observation,
            reward_N=reward_N,
            terminated_N=rows["terminated"],
            truncated_N=rows["truncated"],
            success_N=rows["success"],
        )

    def snapshot(self, env_ids_n: torch.Tensor) -> dict[str, Any]:
        """These environments' rows of ManiSkill's state dictionary, and of the task's own variables, such as its goal."""
        ids_n, env = self._ids(env_ids_n), self._opened()
        own = {place: _holder(env, place)[place[-1]] for place in self._variables}
        return {
            "state": _mapped(env.get_state_dict(), lambda value: value[ids_n].clone()),
            "own": {place: value[ids_n.to(value.device)].clone() for place, value in own.items()},
        }

    def join(self, states: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """One snapshot of the environments of several, in order."""
        return _joined(states)

    def restore(self, env_ids_n: torch.Tensor, state: Any) -> Observation:
        """See `mmrl.Simulator.restore`."""
        ids_n = self._ids(env_ids_n)
        check_states(self.what, len(ids_n), len(state["own"][STEPS]))
        self._put(ids_n, state)
        return self._observe()[0].rows(ids_n)

    def render(self, env_ids_n: torch.Tensor) -> torch.Tensor:
        """Pictures for human viewers, uint8 [n, H, W, 3]."""
        if self._opened().backend.render_device is None:
            raise UserError(f"{self.what} can't render pictures: no device that renders was found, or rendering is set to none")
        return self._env.render_rgb_array()[self._ids(env_ids_n)].to(self.device)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = None

    def _begin(self, env: int, seed: int) -> None:
        """A seeded reset of one environment. seed: below `environment.SEEDS`.

        ManiSkill's `reset(seed=...)` would make two generators for each of the N environments, every time: 150 ms for 256.
        """
        import numpy

        made = self._opened()
        torch.manual_seed(seed)
        made._episode_rng = made._batched_episode_rng[env] = numpy.random.RandomState(seed)
        made.reset(options={"env_idx": torch.tensor([env], device=made.device)})

    def _put(self, ids_n: torch.Tensor, state: Any) -> None:
        env, order_n = self._opened(), ids_n.argsort()  # ManiSkill writes rows to the environments of a mask, in ascending order
        env.set_state_dict(_mapped(state["state"], lambda value: value.to(env.device)[order_n]), ids_n[order_n])
        for place, rows in state["own"].items():
            holder, key = _holder(env, place), place[-1]
            there = holder[key].device
            holder[key] = holder[key].index_copy(0, ids_n.to(there), rows.to(there))

    def _observe(self) -> tuple[Observation, dict[str, torch.Tensor]]:
        env = self._opened()
        with _generators_kept():
            info = env.get_info()
            rows = environment.tensors(env.get_obs(info), info, self._cameras, (), torch)
        rows = {name: row.clone().to(self.device) for name, row in rows.items()}
        images = {name.removeprefix("camera/"): row for name, row in rows.items() if name.startswith("camera/")}
        return Observation(images=images, state=rows["state"], instructions=[self.instruction] * self.num_envs), rows

    def _ids(self, env_ids_n: torch.Tensor | None) -> torch.Tensor:
        return checked_ids(env_ids_n, self.num_envs, self.device)

    def _opened(self) -> Any:
        if self._env is None:
            raise UserError(f"{self.what} is closed: make a new one")
        return self._env

    def _check_gpu(self) -> None:
        """Raises UserError without a GPU, or without PhysX's GPU library, which sapien would download without asking."""
        if not torch.cuda.is_available() or self.device.type != "cuda":
            raise UserError(
                f"{self.what} needs a CUDA device, not {self.device}: use maniskill/env, which has one process per environment"
            )
        with _generators_kept():
            from sapien import physx
        folder = Path.home() / ".sapien" / "physx" / physx.version()
        if not (folder / "libPhysXGpu_64.so").is_file():
            place = f"https://github.com/sapien-sim/physx-precompiled/releases/download/{physx.version()}/linux-so.zip"
            raise UserError(f"{self.what}: {folder / 'libPhysXGpu_64.so'} is missing: unzip {place} in that folder")

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turns the environment's Refused into a UserError."""
        try:
            yield
        except environment.Refused as error:
            raise UserError(f"{self.what} can't be made: {error}") from error


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    """Restores the states of the global generators, which ManiSkill seeds and uses. One thread at a time."""
    import numpy

    with TURN:
        before, others = random.getstate(), numpy.random.get_state()
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            try:
                yield
            finally:
                random.setstate(before)
                numpy.random.set_state(others)


def _written(env: Any, reset: Callable[[], None]) -> list[Place]:
    """Where the task keeps variables of its own: its tensors [N, ...] that a reset writes, such as a goal, and the numbers of
    steps. ManiSkill's state dictionary lacks them. A constant may have N rows by chance, but no reset writes it."""

    def found() -> dict[Place, torch.Tensor]:  # other names with an underscore are ManiSkill's own, such as the last observation
        return dict(_tensors({key: value for key, value in vars(env).items() if not key.startswith("_")}))

    before = {place: (value, value._version) for place, value in found().items()}
    reset()
    places = [STEPS]
    for place, value in found().items():
        old, version = before.get(place, (None, 0))
        if value.shape[:1] == (env.num_envs,) and (value is not old or value._version != version):
            places.append(place)
    return places


def _tensors(holder: Mapping[str, Any], place: Place = ()) -> Iterator[tuple[Place, torch.Tensor]]:
    for key, value in holder.items():
        if isinstance(value, torch.Tensor):
            yield (*place, key), value
        else:
            yield from _tensors(_inside(value), (*place, key))


def _holder(env: Any, place: Place) -> dict[str, Any]:
    """The mapping that has the last key."""
    found = vars(env)
    for key in place[:-1]:
        found = _inside(found[key])
    return found


def _inside(value: Any) -> dict[str, Any]:
    """The contents of a dictionary or of ManiSkill's poses of N things; nothing of other values."""
    from mani_skill.utils.structs.pose import Pose

    return value if isinstance(value, dict) else vars(value) if isinstance(value, Pose) else {}


def _mapped(value: Any, change: Any) -> Any:
    return {key: _mapped(part, change) for key, part in value.items()} if isinstance(value, dict) else change(value)


def _joined(values: Sequence[Any]) -> Any:
    if isinstance(values[0], dict):
        return {key: _joined([value[key] for value in values]) for key in values[0]}
    return torch.cat(list(values))
