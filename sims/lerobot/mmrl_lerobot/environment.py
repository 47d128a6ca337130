"""One environment of LeRobot in a worker process, see `mmrl.api.simulators.processes`. Imports nothing of mmrl.

Observations are what LeRobot's policies see in `lerobot-eval`: through its `preprocess_observation` and the environment's own
processors. Its vector environments of one are used as `lerobot-eval` uses them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.metadata
import random
from collections.abc import Iterator
from typing import Any

VERSIONS = ("0.6.",)
SEEDS = 2**31
"""Seeds of numpy's generators are below this."""
PICTURES = ("observation.images.", "observation.image")
STATES = ("observation.state", "observation.environment_state")


class Refused(Exception):
    """An error that the user can fix; the message is one line."""

    plain = True


class Environment:
    """Tasks of a suite; a seed chooses the task and its start."""

    def __init__(
        self,
        env: str,
        config: dict[str, Any],
        tasks: tuple[int, ...] | None,
        pictures: bool,
        state: bool,
        trust_remote_code: bool,
    ) -> None:
        """env: a type of LeRobot's environments, or a hub repository. tasks: places in the list of its tasks, all by default."""
        checked_version()
        import numpy

        self.numpy, self.name = numpy, env
        with explained(env):
            self.made, processors = made(env, config, trust_remote_code)
        self.before, self.after = processors
        every = [(suite, task) for suite, found in self.made.items() for task in found]
        if wrong := [place for place in tasks or () if not 0 <= place < len(every)]:
            raise Refused(f"{env} has {len(every)} tasks, and no task {wrong[0]}: set tasks to places from 0")
        self.tasks = [every[place] for place in tasks] if tasks else every
        self.pictures, self.state = pictures, state
        self.seed, self.actions = 0, list[bytes]()
        self.vector = self._vector(0)
        space = self.vector.single_action_space
        if not hasattr(space, "low") or not numpy.isfinite([space.low, space.high]).all():
            raise Refused(f"{env}: its actions are {space}; mmrl needs a Box with finite bounds")
        self.low, self.high = space.low.astype("float64"), space.high.astype("float64")
        ends = self.low.reshape(-1).tolist(), self.high.reshape(-1).tolist()
        self.facts: dict[str, Any] = {"dims": int(space.low.size), "max_steps": self._limit(), "bounds": ends}

    def reset(self, seed: int, variant: str | None) -> dict[str, Any]:
        self.seed, self.actions = seed, []
        random.seed(seed % SEEDS)  # an environment may use the global generators of its process
        self.numpy.random.seed(seed % SEEDS)
        self.vector, number = self._vector(seed), seed // len(self.tasks) % SEEDS
        for env in getattr(self.vector, "envs", ()):
            if hasattr(env.unwrapped, "init_state_id"):  # LIBERO's counts its resets, whatever their seeds
                env.unwrapped.init_state_id = number
        with explained(self.name):
            obs, _ = self.vector.reset(seed=[number])
        return self._rows(obs, 0.0, False, False, False)

    def step(self, action: Any) -> dict[str, Any]:
        import torch

        self.actions.append(action.tobytes())
        spread = self.low + (action.astype("float64") + 1) / 2 * (self.high - self.low)
        sent = self.after({"action": torch.from_numpy(spread.astype("float32"))[None]})["action"]
        obs, reward, terminated, truncated, info = self.vector.step(sent.numpy())
        if "final_obs" in info:  # the vector has begun another episode
            obs, info = info["final_obs"][0], info.get("final_info", info)
        success = self.numpy.ravel(info.get("is_success", False))[0]
        return self._rows(obs, float(reward[0]), bool(terminated[0]), bool(truncated[0]), bool(success))

    def snapshot(self) -> dict[str, Any]:
        """The seed and actions that led to the state, and a digest of what is seen, with which `restore` checks it."""
        return {"env": self.name, "seed": self.seed, "actions": list(self.actions), "digest": self.digest}

    def restore(self, state: dict[str, Any]) -> dict[str, Any]:
        if state["env"] != self.name:
            raise Refused(f"the snapshot is of {state['env']}, but this environment is {self.name}")
        rows = self.reset(state["seed"], None)
        for action in state["actions"]:
            rows = self.step(self.numpy.frombuffer(action, self.numpy.float32))
        if self.digest != state["digest"]:
            raise Refused(f"{self.name} is not deterministic: the snapshot's seed and actions led to another state")
        nothing = {
            "reward": self.numpy.float32(0),
            **dict.fromkeys(("terminated", "truncated", "success"), self.numpy.bool_(False)),
        }
        return rows | {name: self.numpy.array(value) for name, value in nothing.items()}

    def text(self) -> str:
        """The task in words; empty if the environment has none."""
        for name in ("task_description", "task"):
            with contextlib.suppress(AttributeError, NotImplementedError):
                return str(self.vector.call(name)[0])
        return ""

    def render(self) -> tuple[int, int, bytes]:
        """Height, width and bytes of a picture for human viewers."""
        picture = self.numpy.ascontiguousarray(self.vector.call("render")[0], dtype="uint8")
        return picture.shape[0], picture.shape[1], picture.tobytes()

    def _vector(self, seed: int) -> Any:
        suite, task = self.tasks[seed % len(self.tasks)]
        return self.made[suite][task]

    def _limit(self) -> int:
        for name in ("_max_episode_steps", "max_episode_steps"):
            with contextlib.suppress(AttributeError, NotImplementedError):
                if limit := self.vector.call(name)[0]:
                    return int(limit)
        return 0

    def _rows(self, obs: dict[str, Any], reward: float, terminated: bool, truncated: bool, success: bool) -> dict[str, Any]:
        from lerobot.envs.utils import preprocess_observation

        numpy = self.numpy
        seen = self.before({**preprocess_observation(obs), "task": [self.text()]})
        rows = {
            "reward": numpy.array(reward, numpy.float32),
            "terminated": numpy.array(terminated),
            "truncated": numpy.array(truncated),
            "success": numpy.array(success),
        }
        shown = {key: seen[key][0] for key in sorted(seen) if key.startswith(PICTURES)}
        state = [seen[key][0].numpy().reshape(-1) for key in STATES if key in seen]
        if self.pictures:
            for key, picture in shown.items():  # [3, H, W], 0 to 1
                camera = key.removeprefix("observation.images.").removeprefix("observation.")
                rows[f"camera/{camera}"] = (picture * 255).round().byte().permute(1, 2, 0).contiguous().numpy()
        if self.state and state:
            rows["state"] = numpy.concatenate(state).astype(numpy.float32)
        if not any(name == "state" or name.startswith("camera/") for name in rows):
            raise Refused(f"{self.name} shows nothing of what was asked for (it has {', '.join(sorted(seen))})")
        everything = [*(picture.numpy().tobytes() for picture in shown.values()), *(part.tobytes() for part in state)]
        self.digest = hashlib.sha256(b"".join(everything)).hexdigest()
        return rows


def made(env: str, config: dict[str, Any], trust_remote_code: bool) -> tuple[dict[str, dict[int, Any]], tuple[Any, Any]]:
    """({suite: {task: vector environment of one}}, (processor of observations, of actions))."""
    from lerobot.envs.configs import EnvConfig
    from lerobot.envs.factory import make_env, make_env_config
    from lerobot.processor import PolicyProcessorPipeline

    if "/" in env:
        if not trust_remote_code:
            raise Refused(f"{env} is code of a hub repository, which would run here: read it, then set trust_remote_code = true")
        nothing = PolicyProcessorPipeline(steps=[]), PolicyProcessorPipeline(steps=[])
        return make_env(env, n_envs=1, trust_remote_code=True), nothing
    known = sorted(EnvConfig.get_known_choices())
    if env not in known:
        raise Refused(f"LeRobot has no environment {env!r}: choose one of {', '.join(known)}, or a hub repository")
    try:
        settings = make_env_config(env, **config)
    except TypeError as error:
        raise Refused(f"{env} refuses its config ({error}): see LeRobot's configuration of it") from None
    return make_env(settings, n_envs=1), settings.get_env_processors()


def checked_version() -> None:
    """Raises Refused without LeRobot, or with another version than those that are tested."""
    try:
        version = importlib.metadata.version("lerobot")
    except importlib.metadata.PackageNotFoundError:
        raise Refused('no LeRobot here: set python to an interpreter that has it (pip install "lerobot>=0.6,<0.7")') from None
    if not version.startswith(VERSIONS):
        raise Refused(f"LeRobot {version} is here, and 0.6 is needed: set python to an interpreter that has it")


@contextlib.contextmanager
def explained(env: str) -> Iterator[None]:
    """Errors of an environment's making in one line: packages and assets that are missing, mostly."""
    try:
        yield
    except Exception as error:
        if getattr(error, "plain", False):
            raise
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise Refused(f"LeRobot can't make {env} ({why}): install what it needs into its interpreter") from error
