"""Demonstrations in robomimic's HDF5 files, played in the simulator: from the state of each of their steps, pictures and numbers
are made anew, as robomimic's dataset_states_to_obs.py does. Imports nothing of mmrl.

A file has `data/demo_N/actions` float [T, A] and `data/demo_N/states` float [T, time + qpos + qvel], the attribute `model_file`
of each demonstration (MuJoCo's XML), the attribute `env_args` of `data` (JSON: env_name, env_version, env_kwargs), and names of
subsets under `mask` (robomimic, docs/datasets/overview.md).
"""

from __future__ import annotations

import importlib.util
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = __name__.rpartition(".")[0]
packages, making = (sys.modules[f"{HERE}.{name}"] for name in ("packages", "making"))
Refused = packages.Refused
OWN = ("robots", "controller_configs", "control_freq", "lite_physics", "env_configuration", "gripper_types")
"""Arguments of `robosuite.make` that a file decides."""


class File:
    """A file of demonstrations. Raises Refused for one that can't be played."""

    def __init__(self, path: str, filter_key: str | None, env: str) -> None:
        """filter_key: name of a subset, such as `train`; None for all. env: robosuite's name of the task."""
        self.path = Path(path).expanduser()
        if importlib.util.find_spec("h5py") is None:
            raise Refused(f"{self.path} needs h5py where robosuite is: pip install h5py")
        import h5py

        try:
            self.file = h5py.File(self.path, "r")
        except OSError as error:
            raise Refused(
                f"{self.path} can't be opened ({' '.join(str(error).split())[:120]}): give an HDF5 file of robomimic"
            ) from error
        try:
            self.meta = json.loads(self.file["data"].attrs["env_args"])
            told = self.meta["env_name"]
        except (KeyError, TypeError, ValueError) as error:
            raise Refused(f"{self.path} has no data with env_args, and no demonstrations of robomimic: give another") from error
        if told != env:
            raise Refused(f"{self.path} has demonstrations of {told}, and the task is {env}: choose the simulator of its task")
        self.names = self._named(filter_key)

    def __len__(self) -> int:
        return len(self.names)

    def arguments(self) -> dict[str, Any]:
        """Arguments of `robosuite.make`, with which it was recorded. Before robosuite 1.5 the controllers' frame was the
        world's, and a step of the physics was whole (the docstring of its OperationalSpaceController); `control_delta`, which it
        no longer reads, said whether actions are differences."""
        given = {name: value for name, value in self.meta.get("env_kwargs", {}).items() if name in OWN}
        controllers = given.get("controller_configs")
        if [int(part) for part in str(self.meta.get("env_version", "1.5")).split(".")[:2]] < [1, 5]:
            given |= {"lite_physics": False}
            if isinstance(controllers, dict):
                kind = "absolute" if controllers.get("control_delta") is False else "delta"
                controllers |= {"input_ref_frame": "world", "input_type": kind}
        return given | {"controller_configs": making.composite(controllers, given.get("robots", ()))}

    def episode(self, number: int, units: Sequence[float] | None, at: int = 0) -> Episode:
        """The demonstration with this number, modulo how many there are. units: what 1 is in each number of an action, where it
        is a pose; None for differences, which a file has as actions here are. at: the steps that were played."""
        name = self.names[number % len(self.names)]
        held = self.file["data"][name]
        where = f"{self.path}: {name}"
        if lacks := [part for part in ("actions", "states") if part not in held]:
            raise Refused(f"{where} has no {lacks[0]}: give a file in robomimic's form")
        if "model_file" not in held.attrs:
            raise Refused(f"{where} has no attribute model_file: give a file in robomimic's form")
        actions, states = held["actions"][()].astype("float32"), held["states"][()].astype("float64")
        if actions.ndim != 2 or states.ndim != 2 or len(actions) != len(states) or not len(actions):
            raise Refused(
                f"{where} has actions {list(actions.shape)} and states {list(states.shape)}: they must be rows of as many steps"
            )
        return Episode(where, actions, states, held.attrs["model_file"], held.attrs.get("ep_meta"), at, units)

    def _named(self, filter_key: str | None) -> list[str]:
        masks = self.file.get("mask", {})
        if filter_key is None:
            found = list(self.file["data"])
        elif filter_key in masks:
            found = [name.decode() if isinstance(name, bytes) else str(name) for name in masks[filter_key][()]]
        else:
            raise Refused(f"{self.path} has no subset {filter_key!r} for filter_key: it has {', '.join(masks) or 'none'}")
        found = [name for name in found if name in self.file["data"]]
        if not found:
            raise Refused(f"{self.path} has no demonstration{'' if filter_key is None else f' in {filter_key}'}: give another")
        return sorted(found, key=lambda name: (len(name), name))


class Episode:
    """A demonstration that is played: from its first state on, as long as its own actions are given."""

    def __init__(
        self, where: str, actions: Any, states: Any, model: str, meta: str | None, at: int, units: Sequence[float] | None
    ) -> None:
        self.where, self.actions, self.states, self.model, self.meta, self.at = where, actions, states, model, meta, at
        self.units = units

    def begin(self, env: Any) -> Any:
        """Build its scene and take it to its first state; what is observed there."""
        if env.action_dim != self.actions.shape[1]:
            raise Refused(f"{self.where} has actions of {self.actions.shape[1]} numbers, and the robot's have {env.action_dim}")
        env.set_ep_meta(json.loads(self.meta) if self.meta else {})
        env.reset()
        env.reset_from_xml_string(env.edit_model_xml(self.model))
        env.sim.reset()
        if len(env.sim.get_state().flatten()) != self.states.shape[1]:
            said = f"states of {self.states.shape[1]} numbers, and its scene {len(env.sim.get_state().flatten())}"
            raise Refused(f"{self.where} has {said}: it was recorded with another version of robosuite")
        return self._see(env, self.states[0])

    def action(self) -> list[float]:
        """Its own action now. After the last one differences are nothing but what it did with the hand, and a pose stays."""
        own: list[float] = self._own(min(self.at, len(self.actions) - 1)).tolist()
        over = self.at == len(self.actions) and self.units is None
        return [*[0.0] * (len(own) - 1), own[-1]] if over else own

    def continues(self, action: Any) -> bool:
        """Whether an action is its own, so that the next state is the recorded one."""
        return self.at < len(self.actions) and bool((action == self._own(self.at)).all())

    def _own(self, step: int) -> Any:
        """float32 [A], -1 to 1: its action of a step."""
        import numpy

        own = self.actions[step]
        return numpy.clip(own if self.units is None else own / numpy.array(self.units, "float32"), -1.0, 1.0)

    def step(self, env: Any) -> tuple[Any, float, bool]:
        """The next recorded state, or, after the last one, a step of the simulation: observations, reward, whether it ended."""
        action = self.actions[self.at].astype("float64")
        self.at += 1
        if self.at == len(self.states):
            obs, reward, done, _ = env.step(action)
            return obs, reward, done
        first = 0
        for robot in env.robots:  # fingers open and close by what they were told before, which is in no state
            for name, (begin, end) in robot.composite_controller._action_split_indexes.items():
                if name in robot.composite_controller.grippers:
                    robot.composite_controller.grippers[name].format_action(action[first + begin : first + end])
            first += robot.action_dim
        env.timestep += 1
        obs = self._see(env, self.states[self.at])
        return obs, env.reward(action), False

    def _see(self, env: Any, state: Any) -> Any:
        env.sim.set_state_from_flattened(state)
        env.sim.forward()
        return env._get_observations(force_update=True)
