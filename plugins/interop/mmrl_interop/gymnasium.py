"""Tasks that act in simulators, for whatever drives Gymnasium's vector environments: CleanRL, Stable-Baselines3, LeRobot."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mmrl import OpenTask
from mmrl_interop.peers import peer

if TYPE_CHECKING:
    from mmrl_interop.vector_env import TaskVectorEnv


def to_gymnasium(task: OpenTask, num_envs: int, **options: Any) -> TaskVectorEnv:
    """The task's environments as a `gymnasium.vector.VectorEnv`; options: see `mmrl_interop.vector_env.TaskVectorEnv`."""
    peer("gymnasium", ">=1.0,<2", "to_gymnasium")
    from mmrl_interop.vector_env import TaskVectorEnv

    return TaskVectorEnv(task, num_envs, **options)


def to_sb3(task: OpenTask, num_envs: int, **options: Any) -> Any:
    """The task's environments as a `VecEnv` of Stable-Baselines3; options: see `to_gymnasium`."""
    peer("stable_baselines3", ">=2.4,<3", "to_sb3", "stable-baselines3")
    from mmrl_interop.sb3 import SB3VecEnv

    return SB3VecEnv(to_gymnasium(task, num_envs, **options, autoreset="same-step"))
