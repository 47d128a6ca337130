"""One Gymnasium environment in a worker process, see `mmrl.api.simulators.processes`. Imports nothing of mmrl; works with numpy 1
and 2."""

from __future__ import annotations

import contextlib
import difflib
import hashlib
import importlib
import importlib.util
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _beside(name: str) -> Any:
    """Imports a module of this folder by its path, as another interpreter may not have the package."""
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


spaces = _beside("spaces")
SEEDS = 2**31
"""Seeds of Gymnasium's and numpy's generators are below this."""
RENDERED = "camera"
"""The camera that is what `render` draws."""


class Refused(Exception):
    """An error that the user can fix; the message is one line."""

    plain = True


class Environment:
    """An environment, its observations, and the seed and actions that led to its state."""

    def __init__(
        self,
        env_id: str,
        make: dict[str, Any],
        modules: tuple[str, ...],
        size: int | None,
        cameras: tuple[str, ...],
        state: bool,
        flip: bool,
        remake: bool,
        success_key: str | None,
        success_return: float | None,
        interventions: bool = False,
    ) -> None:
        """cameras: names of pictures in the observation, and `camera`, which is what `render` draws."""
        import numpy

        self.numpy, self.env_id, self.remake = numpy, env_id, remake
        self.making = env_id, make, modules
        with drawing(env_id):
            self.env, limit = made(*self.making)
            if RENDERED in cameras:  # the renderer is only loaded when it is needed
                self.env.reset(seed=0)
                self.env.render()
        try:
            self.observed = spaces.Observed(self.env.observation_space)
        except spaces.Unknown as error:
            raise Refused(f"{env_id}: its observations hold {error}; mmrl shows numbers, choices, texts and pictures") from None
        try:
            self.acted = spaces.Acted(self.env.action_space, numpy)
        except spaces.Unknown as error:
            raise Refused(f"{env_id}: its actions are {error}; mmrl supports Box, Discrete, MultiDiscrete, MultiBinary") from None
        known = [RENDERED, *self.observed.pictures]
        if unknown := [camera for camera in cameras if camera not in known]:
            raise Refused(f"{env_id} has no camera {unknown[0]!r}: choose among {', '.join(known)}")
        if state and not self.observed.numbers and not cameras:
            raise Refused(f"{env_id}: its observations have no numbers, so nothing would be shown: set pictures to true")
        self.size, self.cameras, self.flip = size, cameras, flip
        self.state = state and bool(self.observed.numbers)
        self.success_key, self.success_return, self.interventions = success_key, success_return, interventions
        self.facts: dict[str, Any] = {
            "max_steps": limit or 0,
            "env_id": env_id,
            "dims": self.acted.dims,
            "choices": self.acted.choices,
            "bounds": self.acted.bounds,
            "tells": bool(self.observed.texts),
        }
        self.seed, self.actions, self.total, self.used = 0, list[Any](), 0.0, False

    def reset(self, seed: int, variant: str | None) -> dict[str, Any]:
        self.seed, self.actions, self.total = seed, [], 0.0
        if self.remake and self.used:
            self.env.close()
            self.env, _ = made(*self.making)
        self.used = True
        random.seed(seed % SEEDS)  # an environment may use the global generators of its process
        self.numpy.random.seed(seed % SEEDS)
        from gymnasium.utils import seeding

        self.env.unwrapped.np_random = seeding.np_random(seed % SEEDS)[0]  # for environments whose reset forgets its seed
        obs, info = self.env.reset(seed=seed % SEEDS)
        self.shown = obs, info
        return self._rows(0.0, False, False)

    def step(self, action: Any) -> dict[str, Any]:
        return self._rows(*self._step(action))

    def snapshot(self) -> dict[str, Any]:
        """The seed and actions that led to the state, and a digest of its observation, with which `restore` checks the restored
        state."""
        return {"env": self.env_id, "seed": self.seed, "actions": list(self.actions), "digest": self._digest()}

    def restore(self, state: dict[str, Any]) -> dict[str, Any]:
        if state["env"] != self.env_id:
            raise Refused(f"the snapshot is of {state['env']}, but this environment is {self.env_id}")
        for drawn in (False, True):  # in some, such as Fetch, drawing a picture changes what follows
            rows = self.reset(state["seed"], None)
            for action in state["actions"]:
                self._step(self.numpy.frombuffer(action, self.numpy.float32))
                if drawn:
                    rows = self._rows(0.0, False, False)
            if self._digest() == state["digest"]:
                return self._rows(0.0, False, False) if state["actions"] and not drawn else rows
        cure = "" if self.remake else "; perhaps with remake = true"
        raise Refused(f"{self.env_id} is not deterministic: the snapshot's seed and actions led to another state{cure}")

    def text(self) -> str:
        """What the observation says in words, such as MiniGrid's mission."""
        return str(self.observed.text(self.shown[0]))

    def render(self) -> tuple[int, int, bytes]:
        """Height, width and bytes of a picture for human viewers."""
        picture = self._rendered(None)
        return picture.shape[0], picture.shape[1], picture.tobytes()

    def _step(self, action: Any) -> tuple[float, bool, bool]:
        self.actions.append(action.tobytes())
        obs, reward, terminated, truncated, info = self.env.step(self.acted.of(action))
        self.shown = obs, info
        self.total += float(reward)
        if not self.interventions and taken(info) is not None:
            raise Refused(f"{self.env_id}: its info says that another action was carried out: set interventions to true")
        return float(reward), bool(terminated), bool(truncated)

    def _rows(self, reward: float, terminated: bool, truncated: bool) -> dict[str, Any]:
        numpy = self.numpy
        obs, info = self.shown
        rows = {
            "reward": numpy.array(reward, numpy.float32),
            "terminated": numpy.array(terminated),
            "truncated": numpy.array(truncated),
            "success": numpy.array(self._success(info)),
        }
        if self.interventions:
            rows["intervention"] = self._intervention(info)
        for camera in self.cameras:
            shown = None if camera == RENDERED else self.observed.picture(obs, camera, numpy)
            rows[f"camera/{camera}"] = self._rendered(self.size) if shown is None else self._sized(shown, self.size)
        if self.state:
            rows["state"] = self.observed.state(obs, numpy)
        return rows

    def _intervention(self, info: dict[str, Any]) -> Any:
        """float32 [A]: the action of whoever took over in the last step; NaN if nobody did."""
        action = taken(info) if self.actions else None
        if action is None:
            return self.numpy.full(self.acted.dims, self.numpy.nan, self.numpy.float32)
        try:
            return self.acted.numbers(action)
        except (spaces.Unknown, TypeError, ValueError, KeyError, IndexError) as error:
            raise Refused(f"{self.env_id}: the action that its info says was carried out is none of its own: {error}") from None

    def _success(self, info: dict[str, Any]) -> bool:
        if self.success_return is not None:
            return self.total >= self.success_return
        if self.success_key is None or not self.actions:  # the info of a reset doesn't have it
            return False
        if self.success_key not in info:
            known = ", ".join(sorted(info)) or "nothing"
            raise Refused(f"{self.env_id}: info has no {self.success_key!r} after a step (it has {known}): set success_key")
        return bool(info[self.success_key])

    def _rendered(self, size: int | None) -> Any:
        picture = self.env.render()
        if not hasattr(picture, "ndim") or picture.ndim != 3 or picture.shape[2] != 3:
            raise Refused(f'{self.env_id} returned no picture: it must support render_mode "rgb_array"')
        return self._sized(picture, size)

    def _sized(self, picture: Any, size: int | None) -> Any:
        if self.flip:
            picture = picture[::-1, ::-1]
        return self.numpy.ascontiguousarray(picture if size is None else resized(picture, size, self.numpy), dtype="uint8")

    def _digest(self) -> str:
        return hashlib.sha256(self.observed.everything(self.shown[0], self.numpy)).hexdigest()


def taken(info: dict[str, Any]) -> Any:
    """The action of a person who took over, by what the info of a step says of it; None if nobody did. `intervene_action` is
    that of SERL, HIL-SERL and RLinf, there only if somebody did; `is_intervention` is that of gym_hil, beside
    `action_intervention`, and of LeRobot, beside `teleop_action`."""
    if info.get("intervene_action") is not None:
        return info["intervene_action"]
    if not info.get("is_intervention"):
        return None
    for key in ("action_intervention", "teleop_action"):
        if info.get(key) is not None:
            return info[key]
    raise Refused("info says is_intervention, and has neither action_intervention nor teleop_action, which say what was done")


@contextlib.contextmanager
def drawing(env_id: str) -> Iterator[None]:
    """Explains errors of MuJoCo's rendering: a missing library raises only an AttributeError of None."""
    try:
        yield
    except Exception as error:
        way = os.environ.get("MUJOCO_GL")
        if way is None or getattr(error, "plain", False):
            raise
        cure = "apt-get install libosmesa6" if way == "osmesa" else 'set environment = { MUJOCO_GL = "osmesa" }'
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:150]}"
        raise Refused(f"{env_id} can't render with MUJOCO_GL = {way!r}, or has another error ({why}): {cure}") from error


def _missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # its package
        return True


def made(env_id: str, make: dict[str, Any], modules: tuple[str, ...]) -> tuple[Any, int | None]:
    """The environment without a time limit, and that limit. Raises Refused for an unknown module or environment."""
    for module in ("gymnasium", *modules):
        if _missing(module):
            cure = (
                'pip install "multimodal-rl[gym]"'
                if module == "gymnasium"
                else f"pip install {module}, set the option python to an interpreter that has it, or, if it is a file of yours, "
                f"start mmrl with PYTHONPATH=FOLDER, the one that has {module.partition('.')[0]}.py"
            )
            raise Refused(f"no module named {module!r}: {cure}")
        importlib.import_module(module)  # registers environments
    import gymnasium

    if env_id not in gymnasium.registry:
        near = difflib.get_close_matches(env_id, list(gymnasium.registry), 1)
        raise Refused(
            f"gymnasium {gymnasium.__version__} has no environment {env_id!r}: the option modules names those that register some"
            + (f"; did you mean {near[0]!r}?" if near else "")
        )
    try:
        env = gymnasium.make(env_id, **{"render_mode": "rgb_array", **make})
    except gymnasium.error.DependencyNotInstalled as error:
        raise Refused(f"{env_id} lacks a package: {' '.join(str(error).split())}") from error
    limit = env.spec.max_episode_steps if env.spec else None
    outer: Any = env
    while hasattr(outer, "env"):  # the engine applies the time limit
        if type(outer).__name__ == "TimeLimit":
            limit = limit or outer._max_episode_steps
            outer._max_episode_steps = 2**31
        outer = outer.env
    return env, limit


def resized(picture: Any, size: int, numpy: Any) -> Any:
    """uint8 [size, size, 3]: each new pixel is the mean over its area."""
    for axis in (0, 1):
        picture = _shrunk(numpy.moveaxis(picture, axis, 0), size, numpy)
        picture = numpy.moveaxis(picture, 0, axis)
    return numpy.rint(picture)


def _shrunk(rows: Any, size: int, numpy: Any) -> Any:
    """Means of the rows, weighted by their overlap with the new row; rows are repeated for larger sizes. float64 [size, ...]."""
    edges = numpy.arange(size + 1) * (len(rows) / size)
    sums = numpy.concatenate([numpy.zeros((1, *rows.shape[1:])), numpy.cumsum(rows, 0, dtype=numpy.float64)])
    whole = numpy.minimum(edges.astype(int), len(rows) - 1)
    part = (edges - whole).reshape(-1, *[1] * (rows.ndim - 1))
    at = sums[whole] + part * rows[whole]
    return (at[1:] - at[:-1]) * (size / len(rows))
