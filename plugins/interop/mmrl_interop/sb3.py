"""A task's environments as a `VecEnv` of Stable-Baselines3; `mmrl_interop.gymnasium.to_sb3` makes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from stable_baselines3.common.vec_env import VecEnv

from mmrl_interop.vector_env import TaskVectorEnv


class SB3VecEnv(VecEnv):  # type: ignore[misc]
    """Environments that reset in the step in which an episode ends, as Stable-Baselines3 expects."""

    def __init__(self, envs: TaskVectorEnv) -> None:
        self.envs, self.render_mode = envs, "rgb_array"
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> Any:
        """The first observations. The first seed given to `seed()` draws which prompts are played."""
        observations, _ = self.envs.reset(seed=next((s for s in self._seeds if s is not None), None))
        self._reset_seeds()
        return observations

    def step_async(self, actions: np.ndarray) -> None:
        """Keep the actions for `step_wait`."""
        self._actions = actions

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, list[dict[str, Any]]]:
        """(observations, rewards, whether episodes ended, one dict for each environment)."""
        seen, rewards, terminated, truncated, infos = self.envs.step(self._actions)
        rows: list[dict[str, Any]] = [{"TimeLimit.truncated": bool(t)} for t in truncated]
        for i in np.flatnonzero(terminated | truncated):
            final = infos["final_obs"]
            rows[i]["terminal_observation"] = {k: v[i] for k, v in final.items()} if isinstance(final, dict) else final[i]
            rows[i]["episode"] = {"r": float(infos["return"][i]), "l": int(infos["length"][i]), "t": 0.0}
            rows[i]["is_success"] = bool(infos["success"][i])
        return seen, rewards.astype(np.float32), terminated | truncated, rows

    def close(self) -> None:
        """Close the simulator."""
        self.envs.close()

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        """The attribute, which all environments share."""
        return [getattr(self.envs, attr_name)] * len(list(self._get_indices(indices)))

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        """Set the attribute of all environments."""
        setattr(self.envs, attr_name, value)

    def env_method(self, method_name: str, *args: Any, indices: Any = None, **kwargs: Any) -> list[Any]:
        """Call a method of the vector environment once."""
        method: Callable[..., Any] = getattr(self.envs, method_name)
        return [method(*args, **kwargs)] * len(list(self._get_indices(indices)))

    def env_is_wrapped(self, wrapper_class: Any, indices: Any = None) -> list[bool]:
        """No environment is wrapped."""
        return [False] * len(list(self._get_indices(indices)))

    def get_images(self) -> Sequence[np.ndarray]:
        """Images for people."""
        return list(self.envs.render())
