"""One environment of robosuite in a worker process, see `mmrl.api.simulators.processes`. Imports nothing of mmrl.

Each episode builds its scene, as in robosuite (`hard_reset`), since sizes of things are drawn too: half a second.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import logging
import os
import sys
from pathlib import Path
from typing import Any


def _beside(name: str) -> Any:
    """Imports a module of this folder by its path, as another interpreter may not have the package."""
    spec = importlib.util.spec_from_file_location(f"{__name__}.{name}", Path(__file__).with_name(f"{name}.py"))
    assert spec and spec.loader
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


packages, snapshots, making, playback, experts = map(_beside, ("packages", "snapshots", "making", "playback", "experts"))
Refused = packages.Refused
PEOPLE = 256
"""Least side in pixels of the pictures for human viewers."""
SHOWN = 100_000_000
"""Seeds below play demonstrations, where a file of them is given: those of the split `demo` of robotics/episodes."""


class Environment:
    """A task of robosuite; a seed draws its start."""

    def __init__(
        self,
        env: str,
        cameras: dict[str, str],
        size: int,
        state: list[str],
        shaped: bool,
        poses: tuple[float, ...],
        demonstrations: str | None,
        filter_key: str | None,
        scripted: bool,
        **options: Any,
    ) -> None:
        """env: robosuite's name of the task. cameras: ours -> robosuite's, empty for no pictures. poses: units of absolute
        actions. scripted: whether the task has a scripted expert. options: of `making.arguments`. The others: see
        `mmrl_robosuite.simulator.Robosuite`."""
        packages.check()
        self.cameras, self.size, self.state, self.scripted = cameras, size, state, scripted
        self.shows = playback.File(demonstrations, filter_key, env) if demonstrations else None
        with explained(f"{env} can't be made with {packages.versions()}"):
            import robosuite

            logging.getLogger("robosuite_logs").setLevel(logging.ERROR)  # it tells of each file that it reads
            given = self.shows.arguments() if self.shows else making.arguments(env, **options)
            self.env = robosuite.make(
                env,
                **given
                | {
                    "has_renderer": False,
                    "renderer": "mujoco",
                    "has_offscreen_renderer": bool(cameras),
                    "use_camera_obs": bool(cameras),
                    "use_object_obs": True,
                    "camera_names": list(cameras.values()) or "agentview",
                    "camera_heights": size,
                    "camera_widths": size,
                    "camera_depths": False,
                    "ignore_done": True,
                    "hard_reset": True,
                    "reward_shaping": shaped,
                },
            )
        gc.freeze()  # each reset collects, and what is imported stays
        self.units, self.gripper, self.absolute = making.action_of(self.env, poses)
        self.key: int | None = None
        self.shown: dict[str, Any] = {}
        self.playing: Any = None
        """The demonstration that is played, until an action differs from its own."""
        self.facts = {
            "dims": len(self.units),
            "units": self.units,
            "gripper": self.gripper,
            "kind": making.kind_of(self.env, self.absolute),
            "demonstrations": len(self.shows) if self.shows else 0,
        }

    def reset(self, seed: int, variant: str | None) -> dict[str, Any]:
        """A start is a function of the seed alone: robosuite draws all of it with one generator."""
        import numpy

        self.playing = None
        self.env.rng.bit_generator.state = numpy.random.default_rng(seed).bit_generator.state  # samplers of places hold it too
        self.env.unset_ep_meta()
        with explained("a scene can't be built"):
            if self.shows and seed < SHOWN:
                self.playing = self.shows.episode(seed, self._poses)
                obs = self.playing.begin(self.env)
            else:
                obs = self.env.reset()
        self.key = seed
        return self._rows(obs, 0.0, False)

    def step(self, action: Any) -> dict[str, Any]:
        if self.playing and self.playing.continues(action):
            obs, reward, done = self.playing.step(self.env)
        else:
            self.playing = None
            obs, reward, done, _ = self.env.step(self._robosuites(action))
        return self._rows(obs, float(reward), bool(done))

    def expert(self) -> list[float]:
        """What the demonstration that is played did, or the scripted expert would do now; changes nothing."""
        if self.playing:
            return self.playing.action()
        if not self.scripted:
            raise Refused(
                "the task has no scripted expert, and no demonstration is played: set demonstrations, and the split demo"
            )
        move = experts.act(self.env)
        return experts.as_pose(self.env, move, self.units) if self.absolute else move

    def snapshot(self) -> dict[str, Any]:
        """The seed, which builds the scene, the whole state of its simulation, and what was shown last."""
        at = self.playing.at if self.playing else None
        return {"key": self.key, "at": at, "state": snapshots.take(self.env), "shown": self.shown}

    def restore(self, state: dict[str, Any]) -> dict[str, Any]:
        if state["at"] is not None and not self.shows:
            raise Refused("the snapshot is of a demonstration, and this environment has no file of them: set demonstrations")
        if self.key != state["key"]:
            self.reset(state["key"], None)
        if set(state["shown"]) != set(self.shown):
            raise Refused("the snapshot is of other cameras: restore it with the cameras with which it was taken")
        self.playing = None
        if self.shows and state["at"] is not None:
            self.playing = self.shows.episode(state["key"], self._poses, state["at"])
        snapshots.put(self.env, state["state"])
        self.shown = state["shown"]
        return self.shown

    def render(self) -> tuple[int, int, bytes]:
        """Height, width and bytes of a picture for human viewers."""
        import numpy

        if not self.cameras:
            raise Refused("pictures can't be rendered: rendering is none, or there are no cameras")
        side = max(PEOPLE, self.size)
        picture = self.env.sim.render(camera_name="agentview", width=side, height=side)[::-1]
        return side, side, numpy.ascontiguousarray(picture).tobytes()

    @property
    def _poses(self) -> Any:
        """Units of an action that is a pose; None for differences."""
        return self.units if self.absolute else None

    def _robosuites(self, action: Any) -> Any:
        """An action in robosuite's numbers: differences from -1 to 1, or poses in metres and radians."""
        asked = action.astype("float64")
        return asked * self.units if self.absolute else asked

    def _rows(self, obs: Any, reward: float, done: bool) -> dict[str, Any]:
        import numpy

        names = ["object-state" if name == "object" else name for name in self.state]  # robomimic's name of it
        if lacks := [name for name in names if name not in obs]:
            raise Refused(f"there is no {lacks[0]!r} for the option state: there are object, {', '.join(_numbers(obs))}")
        self.shown = {
            **{f"camera/{name}": numpy.ascontiguousarray(obs[f"{camera}_image"][::-1]) for name, camera in self.cameras.items()},
            "state": numpy.concatenate([numpy.atleast_1d(obs[name]) for name in names] or [numpy.zeros(0)]).astype("float32"),
            "reward": numpy.array(reward, numpy.float32),
            "success": numpy.array(bool(self.env._check_success())),
            "terminated": numpy.array(done),
            "truncated": numpy.array(False),
        }
        return self.shown


def _numbers(obs: Any) -> list[str]:
    return [name for name in obs if not name.endswith(("_image", "object-state", "proprio-state"))]


@contextlib.contextmanager
def explained(what: str) -> Any:
    """Turns what robosuite raises into one line with the cure."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        way = os.environ.get("MUJOCO_GL", "")
        cure = "take the versions of sims/robosuite/constraints.txt, and robots, controllers and cameras that the task has"
        raise Refused(f"{what} (MUJOCO_GL = {way!r}): {type(error).__name__}: {packages.said(error)}: {cure}") from error
