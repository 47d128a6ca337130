"""ManiSkill's `examples/baselines/ppo/ppo.py`, unchanged, on CPU processes of PhysX instead of a GPU.

    python benchmarks/maniskill_baseline.py PPO.PY SCALARS.jsonl FIRST HELD_OUT ARGUMENTS...

Used by `maniskill_ppo.py`. Runs the file with ARGUMENTS in an interpreter with ManiSkill, and writes its metrics to
SCALARS.jsonl, one JSON object per value. Replaces what needs a GPU: `gym.make` and `ManiSkillVectorEnv` return one process per
environment, with ManiSkill's wrappers (`TimeLimitWrapper`, `CPUGymWrapper`) and gymnasium's `AsyncVectorEnv`, which resets in the
step that ends an episode. Environments for evaluation play the HELD_OUT starts with seeds from FIRST, those of mmrl's test split,
in every evaluation, without building a new scene for each episode.
"""

from __future__ import annotations

import json
import sys
import types
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch

PACKAGE = Path(__file__).parents[1] / "sims" / "maniskill" / "mmrl_maniskill"
MAKE = gym.make


class Starts(gym.Wrapper):
    """Plays given starts in turn, and begins with the first again after `rewind`."""

    def __init__(self, env: gym.Env, seeds: Sequence[int]) -> None:
        super().__init__(env)
        self.seeds, self.played = seeds, 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        if options and options.get("rewind"):
            self.played = 0
        seed = self.seeds[self.played % len(self.seeds)]
        self.played += 1
        return self.env.reset(seed=seed)


def environment(env_id: str, control_mode: str, endless: bool, seeds: Sequence[int]) -> gym.Env:
    """One environment, in its own process. endless: success doesn't end an episode. seeds: its starts; the environment's own if
    empty."""
    torch.set_num_threads(1)
    sys.path[:0] = [str(PACKAGE)]
    gym.make = MAKE  # gymnasium also makes one in this process, to read its spaces
    from environment import made
    from mani_skill.utils.registration import TimeLimitWrapper
    from mani_skill.utils.wrappers.gymnasium import CPUGymWrapper

    env, limit = made(
        env_id, 1, "physx_cpu", obs="state", size=0, control_mode=control_mode, reward="normalized_dense", rendering="none"
    )
    env = CPUGymWrapper(TimeLimitWrapper(env, limit), ignore_terminations=endless, record_metrics=True)
    return Starts(env, seeds) if seeds else env


class Asked:
    """The arguments of `gym.make`."""

    action_space = gym.spaces.Box(-1.0, 1.0, (1,))
    """A placeholder: `ppo.py` only checks that it isn't a dictionary."""

    def __init__(self, env_id: str, *, num_envs: int, control_mode: str, reconfiguration_freq: int | None, **_: Any) -> None:
        self.env_id, self.control_mode = env_id, control_mode
        self.evaluates = reconfiguration_freq is not None  # `ppo.py` sets it only for evaluation


class Vector:
    """N environments with the interface of ManiSkill's vector environment: tensors, and the end of an episode in `infos`."""

    def __init__(self, asked: Asked, num_envs: int, *, ignore_terminations: bool, record_metrics: bool, held_out: range) -> None:
        if len(held_out) % num_envs:
            raise SystemExit(f"{len(held_out)} held-out starts must be a multiple of {num_envs} environments")
        starts = [held_out[i::num_envs] if asked.evaluates else () for i in range(num_envs)]
        makers: list[Callable[[], gym.Env]] = [
            partial(environment, asked.env_id, asked.control_mode, ignore_terminations, seeds) for seeds in starts
        ]
        same = gym.vector.AutoresetMode.SAME_STEP
        self.envs = gym.vector.AsyncVectorEnv(makers, context="spawn", autoreset_mode=same)
        self.single_observation_space, self.single_action_space = (
            self.envs.single_observation_space,
            self.envs.single_action_space,
        )
        self._env = asked

    def reset(self, seed: int | None = None) -> tuple[torch.Tensor, dict[str, Any]]:
        obs, _ = self.envs.reset(seed=seed, options={"rewind": True} if self._env.evaluates else None)
        return torch.from_numpy(obs.copy()), {}

    def step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        obs, reward, terminated, truncated, infos = self.envs.step(actions.cpu().numpy())
        found: dict[str, Any] = {}
        if "final_info" in infos:
            ended = infos["_final_info"]
            last = np.stack([row if there else zero for row, there, zero in zip(infos["final_obs"], ended, obs * 0, strict=True)])
            episode = {k: v for k, v in infos["final_info"]["episode"].items() if not k.startswith("_")}
            found = {
                "final_info": {"episode": {k: torch.as_tensor(np.asarray(v, dtype=np.float32)) for k, v in episode.items()}},
                "_final_info": torch.from_numpy(ended),
                "final_observation": torch.from_numpy(last.astype(np.float32)),
            }
        return (
            torch.from_numpy(obs.copy()),
            torch.from_numpy(reward.astype(np.float32)),
            torch.from_numpy(terminated.copy()),
            torch.from_numpy(truncated.copy()),
            found,
        )

    def close(self) -> None:
        self.envs.close()


class Scalars:
    """Replaces TensorBoard's writer: writes values as lines of JSON."""

    def __init__(self, path: Path, folder: str) -> None:
        Path(folder).mkdir(parents=True, exist_ok=True)  # `ppo.py` saves its models there
        self.file = path.open("w")

    def add_scalar(self, name: str, value: Any, step: int) -> None:
        self.file.write(json.dumps({"step": step, "name": name, "value": float(value)}) + "\n")
        self.file.flush()

    def add_text(self, name: str, text: str) -> None:
        self.file.write(json.dumps({"step": 0, "name": name, "text": text}) + "\n")

    def close(self) -> None:
        self.file.close()


def main() -> None:
    path, scalars, first, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    sys.argv = [str(path), *sys.argv[5:]]
    import mani_skill.vector.wrappers.gymnasium as vectors
    from mani_skill.utils import gym_utils

    torch.set_num_threads(1)
    board = types.ModuleType("torch.utils.tensorboard")
    board.SummaryWriter = partial(Scalars, scalars)  # type: ignore[attr-defined]
    sys.modules["torch.utils.tensorboard"] = board
    gym.make = Asked  # type: ignore[assignment]
    vectors.ManiSkillVectorEnv = partial(Vector, held_out=range(first, first + count))
    gym_utils.find_max_episode_steps_value = lambda env: None  # only reported
    # in this module, so that processes import it and not `ppo.py`
    code = compile(path.read_text(), str(path), "exec", dont_inherit=True)
    exec(code, globals() | {"__name__": "__main__", "__file__": str(path)})


if __name__ == "__main__":
    main()
