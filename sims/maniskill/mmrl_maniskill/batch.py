"""`maniskill/batch`: one ManiSkill environment with N sub-scenes on a GPU (`physx_cuda`), in the engine's own process.

An environment starts from its own seed here too, drawn for it alone. What follows repeats only to within what PhysX rounds on a
GPU, where equal states in two sub-scenes part (ManiSkill issue 787); so it claims no seeds for each environment.
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
    """N sub-scenes in lock-step. Environments that aren't active are put back by ManiSkill's state dictionary after a step.

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
        """backend: `physx_cpu` takes one environment, for trials without a GPU. The rest: see `ManiSkill`."""
        self.what = f"maniskill/batch ({env_id})"
        check_options(self.what, num_envs, size, cameras, obs)
        if backend == "physx_cpu" and num_envs > 1:
            raise UserError(f"{self.what}: physx_cpu takes one environment, and not {num_envs}: take maniskill/env")
        if "target" in control_mode:
            raise UserError(f"{self.what}: ManiSkill doesn't restore the targets of {control_mode!r}: take maniskill/env")
        if importlib.util.find_spec("mani_skill") is None:
            raise UserError(f"{self.what}: no module named 'mani_skill': pip install \"multimodal-rl[maniskill]\"")
        self.device = torch.device(device)
        if backend == "physx_cuda":
            self._check_gpu()
        rung = choose("gpu" if rendering == "auto" and backend == "physx_cuda" and obs == "rgb" else rendering, obs == "rgb")
        import os

        os.environ.update(rung.environment)  # sapien reads them when it is imported
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
        """See `mmrl.Simulator.reset`. Each environment is reset alone: drawn for several at once, a start would depend on N."""
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
            actions_NA[:, self.action.gripper] *= -1  # ManiSkill opens above 0
        idle_n = (~active_N).nonzero()[:, 0]
        before = self.snapshot(idle_n)
        with environment.unseen(env), _generators_kept():  # it is looked at below, when the idle ones are back
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
        """ManiSkill's state dictionary, rows of these environments, and their steps so far."""
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
        """Pictures for people, uint8 [n, H, W, 3]."""
        if self._opened().backend.render_device is None:
            raise UserError(f"{self.what} can't render pictures: no device for it was found, or rendering was set to none")
        return self._env.render_rgb_array()[self._ids(env_ids_n)].to(self.device)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
        self._env = None

    def _put(self, ids_n: torch.Tensor, state: Any) -> None:
        env, order_n = self._opened(), ids_n.argsort()  # ManiSkill writes rows to a mask's places, in their order
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
            raise UserError(f"{self.what} was closed: make another one")
        return self._env

    def _check_gpu(self) -> None:
        """Raises UserError where there is no GPU, or PhysX's library for it, which sapien would download without asking."""
        if not torch.cuda.is_available() or self.device.type != "cuda":
            raise UserError(f"{self.what} needs a CUDA device, and this is {self.device}: take maniskill/env, a process for each")
        with _generators_kept():
            from sapien import physx
        folder = Path.home() / ".sapien" / "physx" / physx.version()
        if not (folder / "libPhysXGpu_64.so").is_file():
            place = f"https://github.com/sapien-sim/physx-precompiled/releases/download/{physx.version()}/linux-so.zip"
            raise UserError(f"{self.what}: {folder / 'libPhysXGpu_64.so'} is missing: unzip {place} in that folder")

    @contextlib.contextmanager
    def _refusing(self) -> Iterator[None]:
        """What the environment refuses is a UserError here."""
        try:
            yield
        except environment.Refused as error:
            raise UserError(f"{self.what} can't be made: {error}") from error


@contextlib.contextmanager
def _generators_kept() -> Iterator[None]:
    """The global generators are left as they were: ManiSkill seeds and draws from them."""
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
