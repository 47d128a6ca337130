"""The whole state of a robosuite environment as plain data: MuJoCo's, and what robosuite keeps beside it.

MuJoCo's integration state alone has another future: controllers keep their goals, grippers their opening, observations are
sampled with clocks of their own and computed from others that came before, and some tasks count what happened. Written for
robosuite 1.5.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

PLACES = ("body_pos", "body_quat", "site_pos", "site_rgba", "geom_rgba")
"""Arrays of the model that a reset or an episode changes."""
OBSERVED = ("_time_since_last_sample", "_current_delay", "_current_observed_value", "_sampled")
BUFFERS = ("DeltaBuffer", "RingBuffer")
WIPED = "wiped_markers"
"""Wipe's list of things, which has their names here."""
OTHER = object()
"""Stands for what is no plain data, such as the simulation."""


def take(env: Any) -> dict[str, Any]:
    """env: of robosuite."""
    import mujoco
    import numpy

    model, data = env.sim.model._model, env.sim.data._data
    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    physics = numpy.empty(mujoco.mj_stateSize(model, kind))
    mujoco.mj_getState(model, data, physics, kind)
    state = {
        "physics": physics,
        "places": {name: getattr(model, name).copy() for name in PLACES},
        "holders": [_kept(holder) for holder in _holders(env)],
        "observed": {name: {part: getattr(each, part) for part in OBSERVED} for name, each in env._observables.items()},
    }
    state["cache"] = {name: value for name, value in env._obs_cache.items() if not name.endswith("_image")}
    if hasattr(env, WIPED):
        state[WIPED] = [marker.name for marker in getattr(env, WIPED)]
    return copy.deepcopy(state)


def put(env: Any, state: dict[str, Any]) -> None:
    """The environment must have the same model."""
    import mujoco

    state = copy.deepcopy(state)
    model, data = env.sim.model._model, env.sim.data._data
    for name, value in state["places"].items():
        getattr(model, name)[:] = value
    mujoco.mj_setState(model, data, state["physics"], mujoco.mjtState.mjSTATE_INTEGRATION)
    warm = data.qacc_warmstart.copy()  # what follows would move the solver's start
    mujoco.mj_forward(model, data)
    data.qacc_warmstart[:] = warm
    for holder, values in zip(_holders(env), state["holders"], strict=True):
        for name, value in values.items():
            setattr(holder, name, _unpacked(getattr(holder, name, None), value))
    for name, parts in state["observed"].items():
        vars(env._observables[name]).update(parts)
    if WIPED in state:
        setattr(env, WIPED, [marker for marker in env.model.mujoco_arena.markers if marker.name in state[WIPED]])
    env._obs_cache = state["cache"]


def _holders(env: Any) -> Iterator[Any]:
    """What keeps numbers between two steps."""
    yield env
    for robot in env.robots:
        yield robot
        yield from robot.part_controllers.values()
        for arm in robot.arms:
            if robot.has_gripper[arm]:
                yield robot.gripper[arm]


def _kept(holder: Any) -> dict[str, Any]:
    """The attributes that are plain data. Observations are kept apart, without pictures."""
    packed = {name: _packed(value) for name, value in vars(holder).items() if name != "_obs_cache"}
    return {name: value for name, value in packed.items() if value is not OTHER}


def _packed(value: Any) -> Any:
    """Numbers, words, buffers, and lists and tables of them; else OTHER."""
    import numpy

    if value is None or isinstance(value, (numpy.ndarray, numpy.generic, float, int, bool, str)):
        return OTHER if isinstance(value, numpy.ndarray) and value.dtype == object else value
    if type(value).__name__ in BUFFERS:
        return _packed(vars(value))
    if isinstance(value, dict):
        found = {key: _packed(each) for key, each in value.items() if isinstance(key, (str, int))}
        return OTHER if len(found) < len(value) or any(each is OTHER for each in found.values()) else found
    if type(value) in (list, tuple):
        items = [_packed(each) for each in value]
        return OTHER if any(each is OTHER for each in items) else type(value)(items)
    return OTHER


def _unpacked(held: Any, value: Any) -> Any:
    """What takes the place of `held`: a buffer stays the same and gets its numbers."""
    if type(held).__name__ in BUFFERS:
        vars(held).update(value)
        return held
    if isinstance(held, dict) and isinstance(value, dict):
        held.update({key: _unpacked(held.get(key), each) for key, each in value.items()})
        return held
    return value
