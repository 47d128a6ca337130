"""`maniskill/batch`: one ManiSkill environment with N sub-scenes on a GPU (`physx_cuda`), in the engine's process.

The start of each environment depends on its seed alone. The later steps are not exactly reproducible: rounding of PhysX on a GPU
makes equal states in two sub-scenes diverge (ManiSkill issue 787). So the spec doesn't list `per-env-seed`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from mmrl import UserError
from mmrl.api.simulators.checks import check_states, check_variant, checked_actions, checked_ids, checked_seeds
from mmrl.api.simulators.types import ActionSpec, Observation, Transition
from mmrl_maniskill import environment
from mmrl_maniskill.options import check_options
from mmrl_maniskill.rendering import choose


class Batch:
    """N sub-scenes in lock-step. After a step, inactive environments are restored from ManiSkill's state dictionary.

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
        if backend == "physx_cuda":
            self._check_gpu()
        rung = choose("gpu" if rendering == "auto" and backend == "physx_cuda" and obs == "rgb" else rendering, obs == "rgb")
        import os

        os.environ.update(rung.environment)  # sapien reads them at import
        with self._refusing(), _generators_kept():
            self._env, self.max_steps = environment.made(
                env_id, num_envs, backend, obs=obs, size=size, control_mode=control_mode, reward=reward, rendering=rung.rendering
            )
            self._cameras = tuple(cameras) if obs == "rgb" else ()
            if goals and obs == "rgb":
                environment.show_goals(self._env)
            facts = environment.facts(self._env, control_mode)
            environment.check_names(self._env, self._cameras, ())
        self.num_envs, self.instruction, self._obs = num_envs, instruction, obs
        self.action = ActionSpec(dims=facts["dims"], control_mode=facts["frame"], gripper=facts["gripper"], units=facts["units"])

    def reset(self, seeds_n: torch.Tensor, env_ids_n: torch.Tensor | None = None, variant: str | None = None) -> Observation:
        """See `mmrl.Simulator.reset`. Each environment is reset alone: in a joint reset, the starts would depend on N."""
        ids_n = self._ids(env_ids_n)
        check_variant(self.what, variant, ())
        seeds = checked_seeds(seeds_n, len(ids_n), "cpu")
        with environment.unseen(self._opened()), _generators_kept():
            for env, seed in zip(ids_n, seeds.tolist(), strict=True):
                torch.manual_seed(seed % environment.SEEDS)
                self._opened().reset(seed=seed % environment.SEEDS, options={"env_idx": env[None]})
        return self._observe()[0].rows(ids_n)

    def step(self, actions_NA: torch.Tensor, active_N: torch.Tensor) -> Transition:
        """See `mmrl.Simulator.step`."""
        env = self._opened()
        actions_NA, active_N = checked_actions(actions_NA, active_N, self.num_envs, self.action.dims, self.device)
        if self.action.gripper is not None:
            actions_NA[:, self.action.gripper] *= -1  # ManiSkill opens the gripper above 0
        idle_n = (~active_N).nonzero()[:, 0]
        before = self.snapshot(idle_n)
        with environment.unseen(env), _generators_kept():  # observed below, when the inactive ones are restored
            _, reward_N, *_ = env.step(actions_NA)
        reward_N = reward_N.float().clone()
        if len(idle_n):
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
        """These environments' rows of ManiSkill's state dictionary, and their numbers of steps."""
        ids_n, env = self._ids(env_ids_n), self._opened()
        return {
            "state": _mapped(env.get_state_dict(), lambda value: value[ids_n].clone()),
            "steps": env._elapsed_steps[ids_n].clone(),
        }

    def restore(self, env_ids_n: torch.Tensor, state: Any) -> Observation:
        """See `mmrl.Simulator.restore`."""
        ids_n = self._ids(env_ids_n)
        check_states(self.what, len(ids_n), len(state["steps"]))
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

    def _put(self, ids_n: torch.Tensor, state: Any) -> None:
        env, order_n = self._opened(), ids_n.argsort()  # ManiSkill writes rows to the environments of a mask, in ascending order
        env.set_state_dict(_mapped(state["state"], lambda value: value.to(env.device)[order_n]), ids_n[order_n])
        env._elapsed_steps[ids_n] = state["steps"].to(env.device)

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
    """Restores the states of the global generators, which ManiSkill seeds and uses."""
    import numpy

    before, others = random.getstate(), numpy.random.get_state()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
        try:
            yield
        finally:
            random.setstate(before)
            numpy.random.set_state(others)


def _mapped(value: Any, change: Any) -> Any:
    return {key: _mapped(part, change) for key, part in value.items()} if isinstance(value, dict) else change(value)
