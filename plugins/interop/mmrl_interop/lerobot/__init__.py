"""LeRobot: a task that acts in a simulator as its environment `mmrl`, for `lerobot-eval` and for a file on its EnvHub.

`lerobot-eval --env.discover_packages_path=mmrl_interop.lerobot --env.type=mmrl --env.task=robotics/pick --policy.path=...`
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from lerobot.configs import FeatureType, PolicyFeature
from lerobot.envs.configs import EnvConfig

from mmrl import OpenTask, UserError, open_task
from mmrl_interop.vector_env import STATE, TaskVectorEnv

ACTION, PIXELS, POSE = "action", "pixels", "agent_pos"


class LeRobotEnv(VectorEnv[Any, Any, Any]):
    """N environments of a task as LeRobot's programs use them: pictures under `pixels`, the state as `agent_pos`, instructions by
    `call("task_description")`, success in `final_info`.

    A seed is the place of a prompt in the split, counted round: an evaluation plays the same starts whatever its batch size."""

    def __init__(self, task: OpenTask, envs: TaskVectorEnv, split: str) -> None:
        self.opened, self.envs_of_task, self.count = task, envs, len(task.prompts(split))
        self.num_envs, self.render_mode = envs.num_envs, envs.render_mode
        self.metadata = {**envs.metadata, "render_fps": round(envs.metadata["render_fps"])}  # LeRobot's videos have whole rates
        self.single_action_space, self.action_space = envs.single_action_space, envs.action_space
        self.single_observation_space, self.observation_space = envs.single_observation_space, envs.observation_space
        self._texts: Sequence[str] = ()

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        seeds = [seed + i for i in range(self.num_envs)] if isinstance(seed, int) else list(seed or ())
        given = [one for one in seeds if one is not None]
        chosen = {"prompts": [one % self.count for one in given]} if len(given) == self.num_envs else {}
        seen, infos = self.envs_of_task.reset(options=chosen)
        self._texts = list(infos["instruction"])
        return self._named(seen), infos

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """One step; actions beyond [-1, 1], which an untrained policy gives, are cut off there."""
        seen, rewards_N, terminated_N, truncated_N, infos = self.envs_of_task.step(np.clip(actions, -1.0, 1.0))
        self._texts = list(infos["instruction"])
        if (terminated_N | truncated_N).any():
            infos["final_info"] = {"is_success": infos["success"]}
        return self._named(seen), rewards_N, terminated_N, truncated_N, infos

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """One value of each environment: `task_description`, `task`, `_max_episode_steps` and `render`."""
        if name == "render":
            return self.envs_of_task.render()
        return self.get_attr(name)

    def get_attr(self, name: str) -> tuple[Any, ...]:
        if name in ("task_description", "task"):
            return tuple(self._texts)
        if name == "_max_episode_steps":
            return (self.envs_of_task.max_steps,) * self.num_envs
        raise AttributeError(f"an environment of mmrl has no {name!r}")

    def render(self) -> tuple[np.ndarray, ...]:
        return self.envs_of_task.render()

    def close_extras(self, **kwargs: Any) -> None:
        self.envs_of_task.close()
        self.opened.close()

    @staticmethod
    def _named(seen: Mapping[str, np.ndarray]) -> dict[str, Any]:
        pictures = {name: rows for name, rows in seen.items() if name != STATE}
        return ({PIXELS: pictures} if pictures else {}) | ({POSE: seen[STATE]} if STATE in seen else {})


def make_envs(
    id: str, n_envs: int = 1, options: Mapping[str, Any] | None = None, *, split: str = "test", device: str = "cpu"
) -> dict[str, dict[int, LeRobotEnv]]:
    """{suite: {0: environments}} of a task, as LeRobot's `make_env` returns them; a file env.py on the hub calls this.

    id, options: of `mmrl.open_task`. split: whose starts are played. device: of the simulator. Raises UserError for a task that
    doesn't act."""
    task = open_task(id, options)
    try:
        if not task.acts:
            raise UserError(f"task {id!r} is answered in words: LeRobot's policies act, so name one of robotics/...")
        envs = TaskVectorEnv(task, n_envs, split=split, observe=None, device=device)
        return {suite(id): {0: LeRobotEnv(task, envs, split)}}
    except BaseException:
        task.close()
        raise


def suite(id: str) -> str:
    """The name under which LeRobot lists the task, and by which it names folders."""
    return id.replace("/", "-")


@EnvConfig.register_subclass("mmrl")
@dataclass
class MmrlEnv(EnvConfig):
    """`--env.type=mmrl`: the task `--env.task`, with its options."""

    task: str | None = "robotics/pick"
    options: dict[str, Any] = field(default_factory=dict)
    split: str = "test"
    device: str = "cpu"
    """Of the simulator."""

    def __post_init__(self) -> None:
        """Look at one environment: policies are built for its pictures, state and actions."""
        if self.features:
            return
        envs = self.create_envs(1)[suite(str(self.task))][0]
        try:
            self.fps = envs.metadata["render_fps"]
            self._describe(ACTION, ACTION, FeatureType.ACTION, envs.single_action_space.shape)
            for name, space in envs.single_observation_space.spaces.items():  # type: ignore[attr-defined]
                if name == STATE:
                    self._describe(POSE, "observation.state", FeatureType.STATE, space.shape)
                else:
                    self._describe(f"{PIXELS}/{name}", f"observation.images.{name}", FeatureType.VISUAL, space.shape)
        finally:
            envs.close()

    def _describe(self, key: str, name: str, kind: FeatureType, shape: tuple[int, ...] | None) -> None:
        self.features[key], self.features_map[key] = PolicyFeature(type=kind, shape=shape), name

    @property
    def gym_kwargs(self) -> dict[str, Any]:
        return {}

    def create_envs(self, n_envs: int, use_async_envs: bool = False) -> dict[str, dict[int, LeRobotEnv]]:
        """use_async_envs: has no effect, since the simulator itself steps all environments at once."""
        return make_envs(str(self.task), n_envs, self.options, split=self.split, device=self.device)
